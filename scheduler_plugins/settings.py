"""Settings of the scheduler: file, SLACKTIDE_SCHEDULER_* variables and flags (see slacktide.settings)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slacktide import names
from slacktide.settings import ClusterSettings, DaemonSettings, ResourceNames


class SchedulerSettings(DaemonSettings, frozen=True):
    """How the scheduler finds its pods and places them."""

    cluster: ClusterSettings = ClusterSettings()
    resources: ResourceNames = ResourceNames()
    configuration: Annotated[
        str,
        Meta(
            description="KubeSchedulerConfiguration v1 file with profiles, plugins, their arguments and extenders; "
            "empty: one default profile. What it states of backoff and lease goes before the settings here"
        ),
    ] = ""
    scheduler_name: Annotated[str, Meta(min_length=1, description="places pods whose spec.schedulerName is this")] = (
        names.SCHEDULER_NAME
    )
    identity: Annotated[
        str,
        Meta(
            description="name in the leader lease; empty: host name and a random part. A fixed name lets a restarted "
            "process lead at once; no two processes may share it"
        ),
    ] = ""
    bind_workers: Annotated[int, Meta(ge=1, le=256, description="bindings that may be under way at once")] = 8
    initial_backoff_seconds: Annotated[
        float, Meta(ge=0.01, le=3600, description="wait of a pod after its first failed attempt")
    ] = 1.0
    maximum_backoff_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="longest wait after many failed attempts; 0 is none")
    ] = 10.0
