from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from predictor.sequences import MAX_HOLES, REPEAT_MILLIS, Seen, holes_from_text, holes_to_text


@given(st.lists(st.integers(1, 60), max_size=80))
def test_each_sequence_is_new_once_in_any_order(sequences):
    seen = Seen()
    # Ends rise with the sequence, as they do on a node.
    stored = [sequence for sequence in sequences if seen.offer(sequence, sequence * 1000)]
    assert sorted(stored) == sorted(set(sequences))


@given(st.lists(st.integers(1, 200), max_size=80))
def test_holes_survive_being_written_down(sequences):
    seen = Seen()
    for sequence in sequences:
        seen.offer(sequence, sequence)
    assert holes_from_text(holes_to_text(seen.holes)) == seen.holes


def test_a_numbering_that_starts_over_is_told_by_its_time():
    seen = Seen()
    for sequence in range(1, 11):
        seen.offer(sequence, sequence * 1000)
    assert not seen.offer(1, 1000)
    assert seen.offer(1, 20_000)
    assert seen.offer(2, 30_000)
    assert not seen.offer(2, 30_000)
    assert seen.high == 2


def test_a_repeat_that_is_placed_a_little_later_is_a_repeat():
    seen = Seen()
    for sequence in range(1, 11):
        seen.offer(sequence, sequence * 10_000)
    assert not seen.offer(10, 10 * 10_000 + REPEAT_MILLIS)
    assert seen.high == 10


def test_holes_are_bounded():
    seen = Seen()
    for sequence in range(1, 1000, 2):
        seen.offer(sequence, sequence)
    assert len(seen.holes) == MAX_HOLES
