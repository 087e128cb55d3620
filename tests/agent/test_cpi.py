from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cpi import MIN_INSTRUCTIONS, GroupCount, cpi_of, since

SECOND = 1_000_000_000
MUCH = 10 * MIN_INSTRUCTIONS


def count(cycles, instructions, enabled=SECOND, running=SECOND):
    return GroupCount(cycles, instructions, enabled, running)


def test_cycles_per_instruction_over_all_cpus():
    assert cpi_of([count(3 * MUCH, MUCH), count(MUCH, MUCH)]) == 2.0


def test_sharing_of_the_counters_does_not_skew_it():
    # koordinator#1482: multiplexing. Both were counted for the same tenth of the time, so the ratio needs no scaling.
    assert cpi_of([count(2 * MUCH, MUCH, running=SECOND // 5)]) == 2.0


def test_a_cpu_weighs_by_what_ran_there_not_by_how_often_its_counters_did():
    # koordinator#1489: 2 cycles an instruction on a CPU counted in full, 4 on one counted a quarter of the time.
    full, quarter = count(2 * MUCH, MUCH), count(MUCH, MUCH // 4, running=SECOND // 4)
    assert cpi_of([full, quarter]) == 3.0


def test_a_cpu_whose_counters_never_ran_divides_nothing():
    assert cpi_of([count(2 * MUCH, MUCH), count(0, 0, running=0)]) == 2.0
    assert cpi_of([count(0, 0, enabled=0, running=0)]) is None


@pytest.mark.parametrize(
    "counts",
    [
        [],
        [count(2 * MUCH, MIN_INSTRUCTIONS - 1)],
        [count(2 * MUCH, MUCH, enabled=10_000_000, running=10_000_000)],
        [count(2 * MUCH, MUCH, enabled=20 * SECOND)],
        [count(0, MUCH)],
        [count(2 * MUCH, 0)],
    ],
    ids=["nothing", "few instructions", "short", "mostly not counted", "no cycles", "no instructions"],
)
def test_too_little_to_tell_is_none_never_zero(counts):
    assert cpi_of(counts) is None


def test_a_counter_that_went_back_gives_nothing():
    before = count(100, 100)
    assert since(before, count(200, 150, 2 * SECOND, 2 * SECOND)) == count(100, 50)
    assert since(before, before) == count(0, 0, 0, 0)
    assert since(before, count(99, 150, 2 * SECOND, 2 * SECOND)) is None
    assert since(before, count(200, 150, 2 * SECOND, SECOND - 1)) is None


COUNTS = st.builds(
    count,
    st.integers(0, 1 << 63),
    st.integers(0, 1 << 63),
    st.integers(0, 1 << 50),
    st.integers(0, 1 << 50),
)


@given(st.lists(COUNTS, max_size=8))
def test_the_figure_lies_between_those_of_the_cpus(counts):
    cpi = cpi_of(counts)
    if cpi is None:
        return
    ran = [one for one in counts if one.running_ns]
    ratios = [one.cycles / one.instructions for one in ran if one.instructions]
    assert cpi > 0
    assert cpi >= min(ratios) * 0.999
    if all(one.instructions for one in ran):
        assert cpi <= max(ratios) * 1.001
