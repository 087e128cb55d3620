"""Settings of the node runner."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from msgspec import Meta

from slacktide.settings import ClusterSettings, DaemonSettings

_ROOT: Final = re.compile(r"slacktide[a-z0-9-]*")


class RunnerSettings(DaemonSettings, frozen=True):
    """What a node runner can be told."""

    cluster: ClusterSettings = ClusterSettings()
    node: Annotated[str, Meta(description="name of this node; empty is the host name in lower case")] = ""
    address: Annotated[str, Meta(min_length=1, description="address of this node and of its pods")] = "127.0.0.1"
    state_dir: Annotated[str, Meta(description="directory for the records of containers")] = ""
    log_dir: Annotated[str, Meta(description="directory for the logs of containers")] = ""
    cgroup_root: Annotated[
        str, Meta(description="name of the cgroup directory that the runner makes, beginning with slacktide")
    ] = ""
    cgroups: Annotated[
        Literal["auto", "off"], Meta(description="auto uses cgroups where they can be written; off never does")
    ] = "auto"
    max_pods: Annotated[int, Meta(ge=1, le=10_000, description="pods that this node takes")] = 110
    tick_seconds: Annotated[float, Meta(ge=0.05, le=60, description="longest pause between two looks")] = 1.0
    heartbeat_seconds: Annotated[float, Meta(ge=0.1, le=300, description="pause between two reports of the node")] = (
        10.0
    )
    lease_seconds: Annotated[int, Meta(ge=1, le=3600, description="life of the node's lease without renewal")] = 40
    log_max_bytes: Annotated[int, Meta(ge=4096, description="size at which a container's log is rotated")] = 10 << 20
    log_keep: Annotated[int, Meta(ge=1, le=1000, description="log files kept for a container")] = 5
    back_off_first_seconds: Annotated[float, Meta(ge=0, le=3600, description="pause before the second restart")] = 10.0
    back_off_max_seconds: Annotated[float, Meta(ge=0, le=86_400, description="longest pause before a restart")] = 300.0
    back_off_reset_seconds: Annotated[
        float, Meta(ge=0, le=86_400, description="a container that ran this long begins its back-off anew")
    ] = 600.0
    memory_pressure_bytes: Annotated[
        int, Meta(ge=0, description="available memory below which the node reports MemoryPressure")
    ] = 100 << 20
    disk_pressure_bytes: Annotated[
        int, Meta(ge=0, description="free space for state or logs below which the node reports DiskPressure")
    ] = 256 << 20

    def __post_init__(self) -> None:
        """Rules that span fields. Raises ValueError with all that is missing."""
        missing = [
            f"--{name.replace('_', '-')} is needed" for name in ("state_dir", "log_dir") if not getattr(self, name)
        ]
        if self.cgroups == "auto" and not _ROOT.fullmatch(self.cgroup_root):
            missing.append(
                f"--cgroup-root {self.cgroup_root!r} must be one name that begins with slacktide (or set --cgroups off)"
            )
        if missing:
            raise ValueError("; ".join(missing))
