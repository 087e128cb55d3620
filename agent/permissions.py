"""What the agent may do with the Kubernetes API, and why. The chart grants this and no more."""

from __future__ import annotations

from typing import Final

from agent.settings import AgentSettings
from slacktide.cluster.permissions import Permission, permissions

PERMISSIONS: Final[tuple[Permission, ...]] = (
    *permissions("list watch", "pods", "know the tier and the requests of the pods of this node"),
    *permissions("create", "pods/eviction", "make BE pods give way, disruption budgets permitting"),
    *permissions("create patch", "events", "tell about throttles, evictions and drills"),
)
GPU_PERMISSIONS: Final[tuple[Permission, ...]] = permissions("patch", "nodes", "publish what the GPUs of this node do")
"""Only where `collect.gpu` and `collect.gpu_publish` are on."""

DRILL_PERMISSIONS: Final[tuple[Permission, ...]] = (
    *permissions("create", "tokenreviews", "know who asks for a drill", group="authentication.k8s.io"),
    *permissions("create", "subjectaccessreviews", "know whether they may", group="authorization.k8s.io"),
)
"""Only where `drill.listen` is HOST:PORT and callers show tokens."""

FORECAST_PERMISSIONS: Final[tuple[Permission, ...]] = permissions(
    "get", "nodes", "see in a drill how its forecast ages"
)
"""Only where `drill.listen` is set."""


def needed(settings: AgentSettings) -> tuple[Permission, ...]:
    """The permissions that an agent with these settings uses."""
    found = PERMISSIONS
    if settings.observe_only:
        found = tuple(one for one in found if one.verb in ("list", "watch"))
    elif settings.collect.gpu and settings.collect.gpu_publish:
        found += GPU_PERMISSIONS
    drill = settings.drill
    if drill.listen:
        found += FORECAST_PERMISSIONS
    if drill.listen and not drill.listen.startswith("unix:") and not drill.tls_client_ca_file:
        found += DRILL_PERMISSIONS
    return found
