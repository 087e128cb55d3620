"""DefaultBinder: tells the API server where a pod goes, through the host."""

from __future__ import annotations

from scheduler_plugins.framework.interfaces import BindPlugin, Handle
from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.registry import NoArgs, Registry
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.framework.status import Status


class DefaultBinder(BindPlugin):
    """Binds every pod that no earlier bind plugin took."""

    name = "DefaultBinder"

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def bind(self, state: CycleState, pod: PodInfo, node_name: str) -> Status:  # noqa: ARG002  # part of the extension point
        """Success once the API server has the placement."""
        return self._handle.bind(pod, node_name)


def register(registry: Registry) -> None:
    """Make the plugin known by its name."""
    registry.register(DefaultBinder.name, lambda _args, handle: DefaultBinder(handle), NoArgs)
