"""BatchForecast: no data means no room; reasons carry numbers; the columns agree with the wire contract."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugins.framework import events
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import SUCCESS, Code, Status
from scheduler_plugins.plugins.batch_forecast import BatchForecast
from slacktide import forecast as wire
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node
from tests.scheduler_plugins.build import (
    GI,
    Clock,
    be,
    be_info,
    forecast,
    framework,
    handle,
    info,
    node,
    offering,
    snapshot_of,
)

NOW = 10_000.0


def plugin() -> BatchForecast:
    return BatchForecast(handle(Clock(NOW)))


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
    [{"version": 2}, {"ttl_seconds": 0}, {"ttl_seconds": -5}, {"at": "now"}, {"reclaimable": None}, {"at": None}],
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
    status = verdict(be_info("p", need), offering("n", text), [be("q", sold, nodeName="n")] if sold else [])
    room = wire.room(wire.decode(text), wire.Amount(cpu_millis=sold, memory_bytes=0), NOW).cpu_millis
    assert status.ok == (need <= room)
    if not status.ok:
        assert status.parts


def test_score_prefers_what_is_left_after_the_placement_of_the_scarcer_resource() -> None:
    judge = plugin()
    profile = framework(judge)
    nodes = [
        offering("wide", forecast(6000, 30 * GI, at=NOW)),
        offering("narrow", forecast(2000, 30 * GI, at=NOW)),
        offering("sold", forecast(6000, 30 * GI, at=NOW)),
        offering("ageing", forecast(6000, 30 * GI, at=NOW - 120)),
        offering("memory", forecast(6000, 2 * GI, at=NOW)),
    ]
    snapshot = snapshot_of(profile, nodes, {"sold": [be("q", 3000, nodeName="sold")]})
    scores = judge.score_nodes(CycleState(), be_info(cpu=1000, memory=GI), snapshot, snapshot.all())
    by_name = dict(zip(snapshot.names, scores.tolist(), strict=True))
    assert by_name == pytest.approx({"wide": 62.5, "narrow": 12.5, "sold": 25.0, "ageing": 25.0, "memory": 3.125})
    assert np.all((scores >= 0) & (scores <= 100))


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
