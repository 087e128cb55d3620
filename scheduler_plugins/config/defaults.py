"""The default profile: which plugins run without being asked for, in what order, and what their scores weigh.

Order and weights of the stock plugins are those of kube-scheduler 1.35; what is not registered is left out. Stock
plugins that may be missing are named with the reason, so that a file of the stock scheduler is refused in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from scheduler_plugins.config.types import PluginRef

_ORDER: Final[Mapping[str, int]] = {
    "SchedulingGates": 0,
    "PrioritySort": 0,
    "UnsupportedPods": 0,
    "NodeUnschedulable": 0,
    "NodeName": 0,
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "NodePorts": 0,
    "BatchForecast": 5,
    "NodeResourcesFit": 1,
    "VolumeRestrictions": 0,
    "NodeVolumeLimits": 0,
    "VolumeBinding": 0,
    "VolumeZone": 0,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "DomainLimit": 0,
    "DefaultPreemption": 0,
    "Gang": 0,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
    "GpuWear": 3,
    "DefaultBinder": 0,
}
"""Plugin -> weight, 0 for one that does not score. Ours change nothing for a pod that does not ask for it: those that
do, such as ActualLoad, must be enabled. BatchForecast weighs most for the pods that it rates, which are best-effort
ones: what a node has left at its peak matters more to them than any single stock score, and less than a taint and an
affinity together."""

_REFUSED: Final = "pods that need it are refused with a reason; let the stock scheduler place them, with our extender"
_GONE: Final = "newer releases of it do not have it either"

MISSING_STOCK: Final[Mapping[str, str]] = {
    "DynamicResources": f"resource claims are not judged here: {_REFUSED}",
    "NodeDeclaredFeatures": "features that nodes declare are not judged here",
    "GangScheduling": "gangs are placed by the plugin Gang here",
    "TopologyPlacementGenerator": "placement of whole workloads is not there; gangs are placed by the plugin Gang",
    "PodGroupPodsCount": "placement of whole workloads is not there; gangs are placed by the plugin Gang",
    "SelectorSpread": _GONE,
    "EBSLimits": _GONE,
    "GCEPDLimits": _GONE,
    "AzureDiskLimits": _GONE,
    "CinderLimits": _GONE,
}
"""Plugin of the stock scheduler -> why it cannot be enabled where no plugin of that name is registered."""


def default_plugins(registered: Iterable[str]) -> tuple[PluginRef, ...]:
    """Plugins of the default profile in order, as far as they are registered."""
    known = frozenset(registered)
    return tuple(PluginRef(name=name, weight=weight) for name, weight in _ORDER.items() if name in known)
