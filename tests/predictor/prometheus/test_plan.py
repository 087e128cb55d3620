from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from predictor.prometheus.plan import Span, halves, merged, missing, pieces, span_of
from predictor.prometheus.progress import Ledger

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda p: Span(p[0], p[0] + p[1])), max_size=8)


def slots(spans):
    return sorted(slot for span in spans for slot in range(span.first, span.end))


@given(SPANS)
def test_merged_spans_are_apart_and_hold_the_same_slots(spans):
    found = merged(spans)
    assert slots(found) == sorted({*slots(spans)})
    assert all(left.end < right.first for left, right in itertools.pairwise(found))


@given(st.integers(0, 60), st.integers(0, 30), SPANS, st.integers(1, 13))
def test_what_is_missing_is_fetched_once_and_nothing_else(first, length, done, size):
    wanted = Span(first, first + length)
    open_ = missing(wanted, done)
    assert slots(open_) == [slot for slot in range(wanted.first, wanted.end) if slot not in {*slots(done)}]
    cut = list(pieces(open_, size))
    assert slots(cut) == slots(open_)
    assert all(0 < piece.slots <= size for piece in cut)
    assert [piece.first for piece in cut] == sorted((piece.first for piece in cut), reverse=True)


def test_only_whole_slots_and_whole_hours_are_fetched():
    assert span_of(1.0, 899.0) == Span(1, 2)
    assert span_of(0.0, 900.0) == Span(0, 3)
    assert span_of(10.0, 20.0).slots == 0
    assert span_of(1.0, 3 * 3600.0 + 5, 12) == Span(12, 36)


@given(st.integers(0, 50), st.integers(1, 50), st.sampled_from([1, 12]))
def test_halves_are_the_whole_and_stop_at_one_unit(first, units, multiple):
    span = Span(first * multiple, (first + units) * multiple)
    found = halves(span, multiple)
    if units == 1:
        assert found is None
        return
    assert found is not None
    newer, older = found
    assert (older.first, older.end, newer.end) == (span.first, newer.first, span.end)
    assert newer.slots % multiple == older.slots % multiple == 0


def test_what_is_done_is_kept_by_server_and_conditions():
    ledger = Ledger(None, "http://a", ())
    ledger.add(Span(4, 8), pods=False)
    ledger.add(Span(8, 12), pods=False)
    ledger.add(Span(0, 12), pods=True)
    again = Ledger(ledger.blob(), "http://a", ())
    assert (again.spans(pods=False), again.spans(pods=True)) == ([Span(4, 12)], [Span(0, 12)])
    assert Ledger(ledger.blob(), "http://b", ()).spans(pods=False) == []
    assert Ledger(ledger.blob(), "http://a", ('cluster="x"',)).spans(pods=False) == []
    again.forget()
    assert Ledger(again.blob(), "http://a", ()).spans(pods=False) == []


def test_a_damaged_ledger_means_beginning_anew():
    assert Ledger(b"\xff\x00junk", "http://a", ()).spans(pods=False) == []
