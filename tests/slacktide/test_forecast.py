from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.forecast import (
    AGEING_TTLS,
    MAX_CLOCK_SKEW_SECONDS,
    Amount,
    Forecast,
    ForecastError,
    Freshness,
    Terms,
    closed_words,
    decode,
    encode,
    freshness,
    room,
    trust,
)

AT = 1_800_000_000.0
FOUR_CPUS = Amount(cpu_millis=4000, memory_bytes=8 << 30)


def make(reclaimable=FOUR_CPUS, *, at=AT, ttl_seconds=100.0, closed="") -> Forecast:
    zero = Amount(cpu_millis=0, memory_bytes=0)
    terms = Terms(capacity=zero, reserve=zero, peak=zero, now=Amount(), sold=zero, model="window-max", risk=0.05)
    return Forecast(at=at, ttl_seconds=ttl_seconds, peak=zero, reclaimable=reclaimable, terms=terms, closed=closed)


NOTHING_SOLD = Amount(cpu_millis=0, memory_bytes=0)


@pytest.mark.parametrize(
    ("age", "state", "share"),
    [
        (0, Freshness.FRESH, 1.0),
        (100, Freshness.FRESH, 1.0),
        (100.001, Freshness.AGEING, 0.999995),
        (150, Freshness.AGEING, 0.75),
        (200, Freshness.AGEING, 0.5),
        (300, Freshness.AGEING, 0.0),
        (300.001, Freshness.EXPIRED, 0.0),
        (1e9, Freshness.EXPIRED, 0.0),
        (-MAX_CLOCK_SKEW_SECONDS, Freshness.FRESH, 1.0),
        (-MAX_CLOCK_SKEW_SECONDS - 0.001, Freshness.EXPIRED, 0.0),
        (-1e9, Freshness.EXPIRED, 0.0),
    ],
)
def test_ages_by_the_clock_alone(age, state, share):
    assert freshness(make(), AT + age) is state
    assert trust(make(), AT + age) == pytest.approx(share, abs=1e-9)


def test_room_is_what_is_left_and_decays_towards_what_is_sold():
    sold = Amount(cpu_millis=1000, memory_bytes=2 << 30)
    assert room(make(), sold, AT) == Amount(cpu_millis=3000, memory_bytes=6 << 30)
    assert room(make(), sold, AT + 200) == Amount(cpu_millis=1500, memory_bytes=3 << 30)
    assert room(make(), sold, AT + 301) == NOTHING_SOLD


def test_sold_above_reclaimable_leaves_nothing():
    assert room(make(), Amount(cpu_millis=4001, memory_bytes=9 << 30), AT) == NOTHING_SOLD


def test_negative_reclaimable_leaves_nothing():
    assert room(make(Amount(cpu_millis=-5, memory_bytes=-5)), NOTHING_SOLD, AT) == NOTHING_SOLD


def test_closed_sells_nothing_while_fresh():
    assert room(make(closed="agent has not reported for 120 s"), NOTHING_SOLD, AT) == NOTHING_SOLD


def test_what_is_not_known_leaves_no_room_for_that_resource_only():
    assert room(make(Amount(memory_bytes=5)), NOTHING_SOLD, AT) == Amount(cpu_millis=0, memory_bytes=5)
    assert room(make(), Amount(memory_bytes=0), AT) == Amount(cpu_millis=0, memory_bytes=8 << 30)


def test_large_amounts_are_not_rounded():
    huge = (1 << 62) + 1
    assert room(make(Amount(cpu_millis=0, memory_bytes=huge)), NOTHING_SOLD, AT).memory_bytes == huge


MAYBE = st.none() | st.integers(-(1 << 63), 1 << 63)
AMOUNTS = st.builds(Amount, cpu_millis=MAYBE, memory_bytes=MAYBE)
AGES = st.floats(-MAX_CLOCK_SKEW_SECONDS, 5000)


@given(AMOUNTS, AMOUNTS, AGES, AGES, st.floats(0.001, 1000), st.sampled_from(["", "closed"]))
def test_room_is_never_negative_never_above_what_is_left_and_never_rises_with_age(
    reclaimable, sold, one, other, ttl_seconds, closed
):
    forecast = make(reclaimable, at=AT, ttl_seconds=ttl_seconds, closed=closed)
    early = room(forecast, sold, AT + min(one, other))
    late = room(forecast, sold, AT + max(one, other))
    for name in ("cpu_millis", "memory_bytes"):
        assert 0 <= getattr(late, name) <= getattr(early, name)
        total, taken = getattr(reclaimable, name), getattr(sold, name)
        left = 0 if total is None or taken is None else max(0, total - taken)
        assert getattr(early, name) <= left


@given(AMOUNTS, AMOUNTS, st.floats(0.001, 1000))
def test_expired_sells_nothing_whatever_it_says(reclaimable, sold, ttl_seconds):
    forecast = make(reclaimable, ttl_seconds=ttl_seconds)
    assert room(forecast, sold, AT + AGEING_TTLS * ttl_seconds + 1) == NOTHING_SOLD


@given(AMOUNTS, AMOUNTS, st.text(max_size=20))
def test_round_trip(reclaimable, sold, closed):
    forecast = make(reclaimable, closed=closed)
    assert decode(encode(forecast)) == forecast


def test_not_known_is_null_and_never_zero_on_the_wire():
    text = json.loads(encode(make(Amount(cpu_millis=0))))
    assert text["reclaimable"] == {"cpu_millis": 0, "memory_bytes": None}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[]",
        "not json",
        encode(make()).replace(f'"ttl_seconds":{100.0}', '"ttl_seconds":0'),
        encode(make()).replace(f'"ttl_seconds":{100.0}', '"ttl_seconds":-5'),
        encode(make()).replace(f'"ttl_seconds":{100.0}', '"ttl_seconds":86401'),
        encode(make()).replace(f'"ttl_seconds":{100.0}', '"ttl_seconds":1e300'),
        encode(make()).replace(f'"at":{AT}', '"at":"today"'),
        encode(make()).replace(f'"at":{AT}', '"at":NaN'),
        encode(make()).replace("4000", "1e400"),
        encode(make())[:-1] + ',"version":2}',
        encode(make()).replace("4000", "1.5"),
    ],
)
def test_what_is_no_forecast_is_refused(text):
    assert text != encode(make())
    with pytest.raises(ForecastError):
        decode(text)


def test_fields_of_a_later_minor_version_are_skipped():
    assert decode(encode(make())[:-1] + ',"news":[1]}') == make()


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("memory is short", "closed: memory is short"),
        ("closed by the agent: LS is short of CPU", "closed by the agent: LS is short of CPU"),
    ],
)
def test_that_a_node_is_closed_is_said_once(reason, said):
    assert closed_words(reason) == said
