"""BatchForecast: no data means no room; reasons carry numbers; the columns agree with the wire contract."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugins.framework import events
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Code, Status
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.batch_forecast import BatchForecast
from scheduler_plugins.plugins.batch_score import BatchForecastArgs
from slacktide import forecast as wire
from slacktide.errors import SettingsError
from slacktide.names import EXPECTED_LIFE_ANNOTATION, FORECAST_ANNOTATION
from slacktide.objects import Node
from tests.scheduler_plugins.build import (
    GI,
    Clock,
    be,
    be_info,
    framework,
    handle,
    info,
    node,
    offering,
    pod,
    snapshot_of,
)
from tests.scheduler_plugins.forecasts import forecast, terms

NOW = 10_000.0


def plugin() -> BatchForecast:
    return BatchForecast(BatchForecastArgs(), handle(Clock(NOW)))


def verdict(who: Any, where: Node, placed: list[Any] = []) -> Status:  # noqa: B006
    profile = framework(plugin())
    snapshot = snapshot_of(profile, [where], {"n": placed})
    state, diagnosis = CycleState(), Diagnosis(names=snapshot.names)
    before = profile.run_pre_filter(state, who, snapshot, diagnosis)
    status, rows = profile.run_filter(state, who, snapshot, before.rows, diagnosis)
    return status if len(rows) or not status.ok else diagnosis.statuses()["n"]


@pytest.mark.parametrize(
    ("who", "text", "placed", "code", "message"),
    [
        (be_info(cpu=2000), forecast(at=NOW), [], Code.SUCCESS, ""),
        (be_info(cpu=4000), forecast(at=NOW), [], Code.SUCCESS, ""),
        (
            be_info(cpu=2000),
            forecast(at=NOW),
            [be("q", 2800, nodeName="n")],
            Code.UNSCHEDULABLE,
            "needs 2000m, room 1200m",
        ),
        (be_info(cpu=4001), forecast(at=NOW), [], Code.UNRESOLVABLE, "needs 4001m, room 4000m"),
        (be_info(cpu=1, memory=9 * GI), forecast(at=NOW), [], Code.UNRESOLVABLE, "needs 9Gi, room 8Gi"),
        (be_info(cpu=64000), forecast(at=NOW), [], Code.UNRESOLVABLE, "asks for 64000m, the whole node has 8000m"),
        (be_info(cpu=64000), None, [], Code.UNRESOLVABLE, "can never have so much kubernetes.io/batch-cpu"),
        (be_info(), None, [], Code.UNRESOLVABLE, f"without a forecast (no annotation {FORECAST_ANNOTATION})"),
        (be_info(), "{", [], Code.UNRESOLVABLE, "cannot be read"),
        (be_info(), forecast(at=NOW - 275), [], Code.UNRESOLVABLE, "forecast expired (95 s ago)"),
        (be_info(), forecast(at=NOW - 180), [], Code.UNRESOLVABLE, "forecast expired (0 s ago)"),
        (be_info(), forecast(at=NOW + 300), [], Code.UNRESOLVABLE, "from the future (300 s ahead"),
        (
            be_info(),
            forecast(at=NOW, closed="LS pressure"),
            [],
            Code.UNRESOLVABLE,
            "closed for batch work (LS pressure)",
        ),
        (be_info(cpu=2000), forecast(at=NOW - 120), [], Code.SUCCESS, ""),
        (be_info(cpu=2001), forecast(at=NOW - 120), [], Code.UNRESOLVABLE, "needs 2001m, room 2000m"),
        (be_info(cpu=1), forecast(cpu=None, at=NOW), [], Code.UNRESOLVABLE, "room 0"),
        (be_info(cpu=1), forecast(cpu=-500, at=NOW), [], Code.UNRESOLVABLE, "room 0"),
        (be_info(cpu=1), forecast(cpu=10**30, at=NOW), [], Code.SUCCESS, ""),
        (info(metadata={"labels": {"slacktide.io/tier": "be"}}), forecast(at=NOW), [], Code.SUCCESS, ""),
        (info(metadata={"labels": {"slacktide.io/tier": "be"}}), None, [], Code.UNRESOLVABLE, "without a forecast"),
        (info(requests={"cpu": "1"}), None, [], Code.SUCCESS, ""),
        (be_info(metadata={"labels": {"slacktide.io/tier": "system"}}), None, [], Code.SUCCESS, ""),
    ],
)
def test_filter(who: Any, text: str | None, placed: list[Any], code: Code, message: str) -> None:
    status = verdict(who, offering("n", text), placed)
    assert status.code is code
    assert message in status.message


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"ttl_seconds": 0},
        {"ttl_seconds": -5},
        {"ttl_seconds": 1e300},
        {"at": "now"},
        {"at": math.nan},
        {"at": math.inf},
        {"reclaimable": None},
        {"at": None},
        {"reclaimable": {"cpu_millis": math.nan}},
        {"reclaimable": {"cpu_millis": 1e400}},
        {"horizon_seconds": "long"},
    ],
)
def test_a_forecast_of_another_shape_counts_as_none(change: dict[str, Any]) -> None:
    text = json.dumps(json.loads(forecast(at=NOW)) | change)
    assert verdict(be_info(cpu=1), offering("n", text)).code is Code.UNRESOLVABLE


def test_node_without_readable_capacity_has_no_room() -> None:
    assert verdict(be_info(cpu=1), offering("n", forecast(at=NOW), capacity={})).code is Code.UNRESOLVABLE


AMOUNT = st.one_of(st.none(), st.integers(-(10**6), 10**12))


@settings(max_examples=200, deadline=None)
@given(
    cpu=AMOUNT,
    memory=AMOUNT,
    age=st.floats(-200, 400),
    ttl=st.floats(1, 200),
    closed=st.booleans(),
    sold=st.integers(0, 8000),
    need=st.integers(1, 8000),
)
def test_columns_judge_as_the_wire_contract_does(
    cpu: int | None, memory: int | None, age: float, ttl: float, closed: bool, sold: int, need: int
) -> None:
    text = forecast(cpu, memory, at=NOW - age, ttl=ttl, closed="why" if closed else "")
    status = verdict(be_info("p", need), offering("n", text), [be("q", sold, nodeName="n")] * (sold > 0))
    # The node has 8000m: what an annotation offers beyond that is not there.
    whole = forecast(None if cpu is None else min(cpu, 8000), memory, at=NOW - age, ttl=ttl, closed="y" * closed)
    room = wire.room(wire.decode(whole), wire.Amount(cpu_millis=sold, memory_bytes=0), NOW).cpu_millis
    assert status.ok == (need <= room)
    if not status.ok:
        assert status.parts


def scores_of(
    judge: BatchForecast, who: Any, nodes: list[Node], placed: dict[str, Any] | None = None
) -> dict[str, float]:
    snapshot = snapshot_of(framework(judge), nodes, placed)
    scores = judge.score_nodes(CycleState(), who, snapshot, snapshot.all())
    assert np.all((scores >= 0) & (scores <= 100))
    return dict(zip(snapshot.names, scores.tolist(), strict=True))


HEADROOM = BatchForecastArgs(even_weight=0, steady_weight=0, calm_weight=0, cold_weight=0)
EVEN = BatchForecastArgs(headroom_weight=0, steady_weight=0, calm_weight=0, cold_weight=0)


@pytest.mark.parametrize(
    ("args", "want"),
    [
        (HEADROOM, {"wide": 62.5, "narrow": 12.5, "sold": 25.0, "ageing": 25.0, "memory": 3.125}),
        (EVEN, {"wide": 550 / 6, "narrow": 75.0, "sold": 250 / 6, "ageing": 250 / 3, "memory": 75.0}),
    ],
)
def test_score_prefers_what_is_left_of_the_scarcer_resource(args: BatchForecastArgs, want: dict[str, float]) -> None:
    nodes = [
        offering("wide", forecast(6000, 30 * GI, at=NOW)),
        offering("narrow", forecast(2000, 30 * GI, at=NOW)),
        offering("sold", forecast(6000, 30 * GI, at=NOW)),
        offering("ageing", forecast(6000, 30 * GI, at=NOW - 120)),
        offering("memory", forecast(6000, 2 * GI, at=NOW)),
        offering("expired", forecast(6000, 30 * GI, at=NOW - 500)),
        offering("silent"),
    ]
    judge = BatchForecast(args, handle(Clock(NOW)))
    placed = {"sold": [be("q", 3000, nodeName="sold")]}
    assert scores_of(judge, be_info(cpu=1000, memory=GI), nodes, placed) == pytest.approx(
        want | {"expired": 0, "silent": 0}
    )


@given(st.lists(st.integers(1000, 24_000), min_size=2, max_size=6), st.data())
def test_the_even_part_puts_a_pod_where_the_shares_sold_stay_most_even(rooms: list[int], data: Any) -> None:
    """Most even: the least sum of squares of the share sold, each weighed by the room."""
    sold = [data.draw(st.integers(0, room)) for room in rooms]
    cpu = data.draw(st.integers(1, 3000))
    judge = BatchForecast(EVEN, handle(Clock(NOW)))
    nodes = [offering(f"n{i}", forecast(room, at=NOW), capacity={"cpu": "32"}) for i, room in enumerate(rooms)]
    placed = {f"n{i}": [be(f"q{i}", amount)] for i, amount in enumerate(sold) if amount}
    fitting = [i for i, room in enumerate(rooms) if sold[i] + cpu <= room]
    scores = scores_of(judge, be_info(cpu=cpu), nodes, placed)
    growth = {f"n{i}": ((sold[i] + cpu) ** 2 - sold[i] ** 2) / rooms[i] for i in fitting}
    for name, worse in growth.items():
        for other, least in growth.items():
            if least < worse * (1 - 1e-9):
                assert scores[other] >= scores[name]


def weighing(**weights: int) -> BatchForecast:
    none = {"headroom_weight": 0, "even_weight": 0, "steady_weight": 0, "calm_weight": 0, "cold_weight": 0}
    return BatchForecast(BatchForecastArgs(**(none | weights)), handle(Clock(NOW)))


def test_score_prefers_nodes_where_little_is_going_to_be_taken_back() -> None:
    nodes = [
        offering("steady", forecast(at=NOW, of=terms(now=(2000, 4 * GI), peak=(2000, 4 * GI)))),
        offering("swings", forecast(at=NOW, of=terms(now=(2000, 4 * GI), peak=(6000, 4 * GI)))),
        offering("memory", forecast(at=NOW, of=terms(now=(2000, 4 * GI), peak=(2000, 12 * GI)))),
        offering("falls", forecast(at=NOW, of=terms(now=(6000, 4 * GI), peak=(2000, 4 * GI)))),
        offering("unknown", forecast(at=NOW)),
        offering("ageing", forecast(at=NOW - 120, of=terms(now=(2000, 4 * GI), peak=(2000, 4 * GI)))),
        offering("silent"),
    ]
    scores = scores_of(weighing(steady_weight=1), be_info(), nodes)
    assert scores == pytest.approx(
        {"steady": 100, "swings": 50, "memory": 75, "falls": 100, "unknown": 0, "ageing": 50, "silent": 0}
    )


def test_score_prefers_nodes_whose_processors_stay_free() -> None:
    quiet, busy = terms(now=(1600, GI)), terms(now=(5600, GI))
    nodes = [
        offering("quiet", forecast(8000, at=NOW, of=quiet)),
        offering("busy", forecast(8000, at=NOW, of=busy)),
        offering("sold", forecast(8000, at=NOW, of=quiet)),
        offering("full", forecast(8000, at=NOW, of=busy)),
        offering("unknown", forecast(8000, at=NOW)),
    ]
    placed = {name: [be(name, 4000, nodeName=name)] for name in ("sold", "full")}
    scores = scores_of(weighing(calm_weight=1), be_info(cpu=800), nodes, placed)
    assert scores == pytest.approx({"quiet": 70, "busy": 20, "sold": 20, "full": 0, "unknown": 0})


def bound(name: str, seconds_ago: float, **kwargs: Any) -> Any:
    when = datetime.fromtimestamp(NOW - seconds_ago, timezone(timedelta(hours=8))).isoformat()
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": when}
    return be(name, 100, status={"phase": "Running", "conditions": [condition]}, **kwargs)


def test_binds_of_the_last_minutes_cool_down_with_time_whoever_made_them() -> None:
    """Times in another zone than UTC are read as such (crane-scheduler: 8 hours off)."""
    clock = Clock(NOW)
    weights = {"headroom_weight": 0, "even_weight": 0, "steady_weight": 0, "calm_weight": 0}
    judge = BatchForecast(BatchForecastArgs(**weights, recent_seconds=100, recent_binds=4), handle(clock))
    nodes = [offering(name, forecast(at=NOW, ttl=3600)) for name in ("cold", "hot", "cooling", "others", "skewed")]
    placed = {
        "hot": [bound("a", 0), bound("b", 0), bound("c", 0), bound("d", 0)],
        "cooling": [bound("e", 100), bound("f", 100)],
        "others": [pod("ls", {"cpu": "1"}), bound("old", 100_000)],
        "skewed": [bound("g", -3600)],
    }
    snapshot = snapshot_of(framework(judge), nodes, placed)

    def scores() -> dict[str, float]:
        found = judge.score_nodes(CycleState(), be_info(), snapshot, snapshot.all())
        return dict(zip(snapshot.names, found.tolist(), strict=True))

    e = math.exp(-1)
    want = {"cold": 100, "hot": 0, "cooling": 100 * (1 - 2 * e / 4), "others": 100, "skewed": 75}
    assert scores() == pytest.approx(want)
    clock.forward(100)
    assert scores()["hot"] == pytest.approx(100 * (1 - e))
    clock.forward(3000)
    assert min(scores().values()) > 99.9


def test_an_assumed_pod_counts_as_bound_at_this_moment_and_its_node_stays_what_it_was() -> None:
    clock = Clock(NOW)
    judge = BatchForecast(
        BatchForecastArgs(headroom_weight=0, even_weight=0, steady_weight=0, calm_weight=0), handle(clock)
    )
    profile, cache = framework(judge), Cache()
    cache.set_node(offering("n", forecast(at=NOW, ttl=3600)))
    cache.assume(be_info("p"), "n")
    snapshot = profile.new_snapshot()
    cache.refresh(snapshot)
    first = judge.score_nodes(CycleState(), be_info("q"), snapshot, snapshot.all())[0]
    clock.forward(60)
    cache.set_node(offering("n", forecast(at=NOW, ttl=3601)))
    cache.refresh(snapshot)
    later = judge.score_nodes(CycleState(), be_info("q"), snapshot, snapshot.all())[0]
    assert (first, later) == pytest.approx((80.0, 100 * (1 - math.exp(-0.5) / 5)))


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(SettingsError, match="all 0"):
        weighing()
    with pytest.raises(SettingsError, match="recentSeconds"):
        default_registry().build("BatchForecast", {"recentSeconds": 0}, handle())


LONG = {"metadata": {"annotations": {EXPECTED_LIFE_ANNOTATION: "7200"}}}


@pytest.mark.parametrize(
    ("life", "horizon", "message"),
    [
        ("3600", 3600.0, ""),
        (None, None, ""),
        ("0", 3600.0, ""),
        ("3600.5", 3600.0, "it looks 3600 s ahead"),
        ("7200", None, "does not say how far it looks"),
        ("90m", 3600.0, "is '90m'; it must be seconds"),
        ("nan", 3600.0, "it must be seconds"),
        ("-1", 3600.0, "it must be seconds"),
        ("1e99", 3600.0, "it must be seconds"),
        ("", 3600.0, "it must be seconds"),
    ],
)
def test_forecast_must_look_as_far_ahead_as_the_pod_lives(
    life: str | None, horizon: float | None, message: str
) -> None:
    annotations = {} if life is None else {EXPECTED_LIFE_ANNOTATION: life}
    who = be_info(metadata={"annotations": annotations})
    profile = framework(plugin())
    snapshot = snapshot_of(profile, [offering("n", forecast(at=NOW, horizon=horizon))])
    state, diagnosis = CycleState(), Diagnosis(names=snapshot.names)
    before = profile.run_pre_filter(state, who, snapshot, diagnosis)
    status = before.status
    if status.ok:
        _, rows = profile.run_filter(state, who, snapshot, before.rows, diagnosis)
        status = SUCCESS if len(rows) else diagnosis.statuses()["n"]
    assert (status.code is Code.SUCCESS, message in status.message) == (not message, True)
    assert status.code in (Code.SUCCESS, Code.UNRESOLVABLE)


def test_expected_life_is_left_alone_where_the_settings_say_so() -> None:
    judge = BatchForecast(BatchForecastArgs(refuse_beyond_horizon=False), handle(Clock(NOW)))
    snapshot = snapshot_of(framework(judge), [offering("n", forecast(at=NOW))])
    verdicts = judge.filter_nodes(CycleState(), be_info(**LONG), snapshot, snapshot.all())
    assert verdicts.codes.tolist() == [Code.SUCCESS]


def test_thousands_of_refusals_are_told_by_kind_with_the_nearest_of_each() -> None:
    nodes = [offering(f"room-{i}", forecast(1000 + i, at=NOW)) for i in range(50)]
    nodes += [offering(f"old-{i}", forecast(at=NOW - 500)) for i in range(30)]
    nodes += [offering(f"closed-{i}", forecast(at=NOW, closed="LS pressure")) for i in range(3)]
    nodes += (
        [offering(f"none-{i}") for i in range(2)] + [offering("torn", "{")] + [offering("early", forecast(at=NOW + 99))]
    )
    nodes += [offering("both", forecast(10, 1, at=NOW)), offering("tiny", forecast(at=NOW), capacity={"cpu": "1"})]
    profile = framework(plugin())
    snapshot = snapshot_of(profile, nodes)
    diagnosis = Diagnosis(names=snapshot.names)
    _, rows = profile.run_filter(CycleState(), be_info(cpu=2000, memory=GI), snapshot, snapshot.all(), diagnosis)
    assert not len(rows)
    message = diagnosis.message()
    for part in (
        "51 no forecast room for kubernetes.io/batch-cpu (nearest room-49: needs 2000m, room 1049m)",
        "1 no forecast room for kubernetes.io/batch-memory (needs 1Gi, room 1)",
        "30 forecast expired (nearest old-",
        "3 node(s) closed for batch work (nearest closed-",
        "2 node(s) without a forecast",
        "1 node(s) with a forecast that cannot be read",
        "1 forecast is from the future (99 s ahead of this clock)",
        "1 node(s) that can never have so much kubernetes.io/batch-cpu (asks for 2000m, the whole node has 1000m)",
    ):
        assert part in message


def test_judges_a_node_of_a_what_if_question_by_that_snapshot_alone() -> None:
    judge = plugin()
    snapshot = snapshot_of(
        framework(judge), [offering("a"), offering("n", forecast(4000, at=NOW))], {"n": [be("q", 4000)]}
    )
    changed = snapshot.nodes[snapshot.index["n"]].clone()
    one = snapshot.single(changed)
    assert judge.filter_nodes(CycleState(), be_info(), one, one.all()).codes.tolist() == [Code.UNSCHEDULABLE]
    changed.remove_pod("uid-q")
    one = snapshot.single(changed)
    assert judge.filter_nodes(CycleState(), be_info(), one, one.all()).codes.tolist() == [Code.SUCCESS]


def test_score_is_silent_for_other_tiers() -> None:
    snapshot = snapshot_of(framework(plugin()), [node("n")])
    assert plugin().pre_score(CycleState(), info("p"), snapshot, snapshot.all()).skipped
    assert plugin().pre_score(CycleState(), be_info("p"), snapshot, snapshot.all()) is SUCCESS


def woken(event: ClusterEvent, old: Any, new: Any) -> bool:
    hints = [r.hint for r in plugin().events_to_register() if r.event.covers(event)]
    return any(hint is not None and hint(be_info(cpu=2000), old, new) is Hint.QUEUE for hint in hints)


ANNOTATION = ClusterEvent(events.NODE, Action.UPDATE_NODE_ANNOTATION)


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        (None, forecast(at=NOW), True),
        # It does not fit, yet its reason is no longer "without a forecast".
        (None, forecast(1000, at=NOW), True),
        (forecast(3000, at=NOW - 500), forecast(1000, at=NOW), True),
        (forecast(1000, at=NOW), forecast(3000, at=NOW), True),
        (forecast(3000, at=NOW), forecast(3000, at=NOW), False),
        (forecast(3000, at=NOW), forecast(2500, at=NOW), False),
        (forecast(1000, at=NOW), forecast(1500, at=NOW), False),
        (forecast(3000, at=NOW, horizon=60), forecast(3000, at=NOW, horizon=3600), True),
        (forecast(3000, at=NOW, closed="x"), forecast(3000, at=NOW), True),
        (forecast(3000, at=NOW), forecast(3000, at=NOW, closed="x"), False),
        (forecast(3000, at=NOW - 100), forecast(3000, at=NOW), True),
        (forecast(3000, at=NOW), forecast(3000, at=NOW - 500), False),
        ("{", forecast(3000, at=NOW), True),
        (forecast(3000, at=NOW), "{", False),
        (forecast(3000, at=NOW), None, False),
    ],
)
def test_annotation_wakes_only_when_it_may_help(old: str | None, new: str | None, want: bool) -> None:
    assert woken(ANNOTATION, offering("n", old), offering("n", new)) is want


def test_new_nodes_and_leaving_batch_pods_wake() -> None:
    assert woken(events.NODE_ADD, None, offering("n", forecast(at=NOW)))
    assert not woken(events.NODE_ADD, None, offering("n"))
    assert woken(events.ASSIGNED_POD_DELETE, be_info("q", nodeName="n"), None)
    assert not woken(events.ASSIGNED_POD_DELETE, info("q", {"cpu": "1"}, nodeName="n"), None)
    grown = ClusterEvent(events.NODE, Action.UPDATE_NODE_ALLOCATABLE)
    text = forecast(at=NOW)
    assert woken(grown, offering("n", text, capacity={"cpu": "1"}), offering("n", text))
