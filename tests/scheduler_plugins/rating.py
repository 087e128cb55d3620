"""Asking one Score or Filter plugin about a few nodes, as a cycle does."""

from __future__ import annotations

from typing import Any

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Status
from slacktide.objects import Node, Pod
from tests.scheduler_plugins.build import READER

MOST = 100


def snapshot_for(plugin: Any, nodes: list[Node], placed: dict[str, list[Pod]] | None = None) -> Snapshot:
    """Snapshot with the columns of `plugin`; pods by the node on which they are."""
    cache = Cache()
    for node in nodes:
        cache.set_node(node)
    for name, pods in (placed or {}).items():
        for pod in pods:
            cache.add_pod(READER.read(pod).on(name))
    snapshot = Snapshot(plugin.columns(), plugin.interned())
    cache.refresh(snapshot)
    return snapshot


def scores(plugin: Any, who: Any, snapshot: Snapshot) -> dict[str, int]:
    """Score of each node in whole numbers, as the runtime takes it; all within 0..100."""
    state, rows = CycleState(), snapshot.all()
    if hasattr(plugin, "pre_score"):
        assert plugin.pre_score(state, who, snapshot, rows).ok
    raw = plugin.normalize(state, who, plugin.score_nodes(state, who, snapshot, rows))
    assert ((raw >= 0) & (raw <= MOST)).all()
    return dict(zip(snapshot.names, raw.astype("int64").tolist(), strict=True))


def reasons(plugin: Any, who: Any, snapshot: Snapshot) -> dict[str, str]:
    """What the plugin says of nodes that it could not rate."""
    state, rows = CycleState(), snapshot.all()
    plugin.score_nodes(state, who, snapshot, rows)
    return dict(plugin.score_reasons(state, who, snapshot, rows))


def verdicts(plugin: Any, who: Any, snapshot: Snapshot) -> dict[str, Status]:
    """Verdict on each node; all Success where PreFilter skips."""
    state, rows = CycleState(), snapshot.all()
    if hasattr(plugin, "pre_filter") and plugin.pre_filter(state, who, snapshot).status.skipped:
        return {name: Status() for name in snapshot.names}
    found = plugin.filter_nodes(state, who, snapshot, rows)
    return {snapshot.names[row]: found.status(i) for i, row in enumerate(rows)}
