"""Our plugins in the order and with the weights of the stock profile, as far as they are ours to judge."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from scheduler_plugins.framework.interfaces import Handle, Plugin
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.status import SUCCESS
from scheduler_plugins.framework.unobserved import Unobserved
from scheduler_plugins.plugins import default_registry
from slacktide import names
from slacktide.cluster import NAMESPACES, PDBS
from slacktide.cluster.kinds import Kind, Namespace, PodDisruptionBudget

PLUGINS: Final = (
    "PrioritySort",
    "NodeUnschedulable",
    "NodeName",
    "TaintToleration",
    "NodeAffinity",
    "NodePorts",
    "NodeResourcesFit",
    "PodTopologySpread",
    "InterPodAffinity",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
    "DefaultBinder",
)
WEIGHTS: Final = {"TaintToleration": 3, "NodeAffinity": 2, "PodTopologySpread": 2, "InterPodAffinity": 2}


class Objects:
    """Objects of a test: the namespaces and disruption budgets of the cluster, nothing else."""

    def __init__(self, namespaces: Iterable[Namespace], budgets: Iterable[PodDisruptionBudget] = ()) -> None:
        self._namespaces = {one.metadata.name: one for one in namespaces}
        self._budgets = tuple(budgets)

    def all(self, kind: Kind[Any]) -> Iterable[Any]:
        if kind is PDBS:
            return self._budgets
        return self._namespaces.values() if kind is NAMESPACES else ()

    def get(self, kind: Kind[Any], namespace: str, name: str) -> Any:
        return self._namespaces.get(name) if kind is NAMESPACES else None


def stock_handle(objects: Objects, **more: Any) -> Handle:
    """What plugins of a test are lent."""
    return Handle(
        wall_seconds=time.time,
        bind=lambda _pod, _node: SUCCESS,
        cpu_resource=names.BATCH_CPU,
        memory_resource=names.BATCH_MEMORY,
        objects=objects,
        **more,
    )


def stock_framework(handle: Handle, *more: Plugin) -> Framework:
    """The profile, with `more` plugins. Those that are not there yet are an error, named by the registry."""
    registry = default_registry()
    plugins = [registry.build(name, {}, handle) for name in PLUGINS]
    return Framework("stock", [*plugins, *more], WEIGHTS, Unobserved())
