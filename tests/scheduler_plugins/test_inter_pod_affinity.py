"""InterPodAffinity: what placed pods do not want beside them."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.events import Hint
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.plugins.inter_pod_affinity import InterPodAffinity
from tests.scheduler_plugins.build import framework, info, node, pod, snapshot_of

ZONES = [
    node("a1", labels={"zone": "a", "host": "a1"}),
    node("a2", labels={"zone": "a", "host": "a2"}),
    node("b1", labels={"zone": "b", "host": "b1"}),
    node("none"),
]


def minding(key: str = "zone", selector: Any = {"matchLabels": {"app": "web"}}, **more: Any) -> Any:  # noqa: B006
    term = {"topologyKey": key, "labelSelector": selector, **more}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return pod("owner", nodeName="a1", affinity=rule)


WEB = info("web", metadata={"labels": {"app": "web"}})


def left(who: Any, owner: Any) -> list[str]:
    profile = framework(InterPodAffinity())
    snapshot = snapshot_of(profile, ZONES, {owner.spec.node_name: [owner]})
    state, diagnosis = CycleState(), Diagnosis(names=snapshot.names)
    rows = profile.run_pre_filter(state, who, snapshot, diagnosis).rows
    _, rows = profile.run_filter(state, who, snapshot, rows, diagnosis)
    return sorted(snapshot.names[row] for row in rows)


@pytest.mark.parametrize(
    ("owner", "want"),
    [
        (minding(), ["b1", "none"]),
        (minding("host"), ["a2", "b1", "none"]),
        (minding("absent"), ["a1", "a2", "b1", "none"]),
        (minding(selector=None), ["a1", "a2", "b1", "none"]),
        (minding(selector={}), ["b1", "none"]),
        (minding(selector={"matchLabels": {"app": "db"}}), ["a1", "a2", "b1", "none"]),
        (minding(selector={"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}), ["b1", "none"]),
        (minding(namespaces=["elsewhere"]), ["a1", "a2", "b1", "none"]),
        (minding(namespaces=["default"]), ["b1", "none"]),
        (minding(namespaceSelector={}), ["b1", "none"]),
        (minding(namespaceSelector={"matchLabels": {"team": "x"}}, namespaces=["elsewhere"]), ["b1", "none"]),
    ],
)
def test_domains_closed_by_a_placed_pod(owner: Any, want: list[str]) -> None:
    assert left(WEB, owner) == want


def test_nobody_minds_a_pod_of_another_namespace_or_label() -> None:
    assert len(left(info("web", metadata={"labels": {"app": "web"}, "namespace": "other"}), minding())) == 4
    assert len(left(info("db"), minding())) == 4


def test_only_the_end_of_the_pod_that_minds_wakes() -> None:
    from tests.scheduler_plugins.build import READER

    hints = [r.hint for r in InterPodAffinity().events_to_register() if r.event.covers(events.ASSIGNED_POD_DELETE)]
    assert [hint(WEB, READER.read(minding()), None) for hint in hints] == [Hint.QUEUE]
    assert [hint(info("db"), READER.read(minding()), None) for hint in hints] == [Hint.SKIP]
