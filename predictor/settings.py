"""Settings of the predictor: file, SLACKTIDE_PREDICTOR_* variables and flags (see slacktide.settings)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from predictor.auth import AuthSettings
from predictor.engine_settings import EngineSettings
from predictor.ingest_settings import IngestSettings
from predictor.node_metrics import MetricsSettings
from slacktide import names
from slacktide.settings import ClusterSettings, DaemonSettings, ResourceNames, Settings
from slacktide.transport import TlsSettings

_RELOADABLE = {"reloadable": True}


class ForecastSettings(EngineSettings, frozen=True):
    """How the peak is forecast: what the two engines share, and when they run."""

    memory_risk: Annotated[
        float,
        Meta(gt=0, le=0.5, description="as `risk`, for memory: it cannot be taken back by throttling"),
    ] = 0.001
    window_days: Annotated[float, Meta(ge=0.01, le=35, description="days of use that the models see")] = 14.0
    grace_seconds: Annotated[
        float,
        Meta(ge=0, le=240, description="wait after a slot's end for samples under way", extra=_RELOADABLE),
    ] = 10.0
    late_slots: Annotated[
        int, Meta(ge=1, le=288, description="slots without a new forecast until the fallback counts", extra=_RELOADABLE)
    ] = 2
    save_seconds: Annotated[
        float,
        Meta(ge=60, le=86400, description="time between two durable copies of what was learned", extra=_RELOADABLE),
    ] = 3600.0

    def for_memory(self) -> ForecastSettings:
        """The settings of the memory engine."""
        return msgspec.structs.replace(self, risk=self.memory_risk)


class PoolSettings(Settings, frozen=True):
    """Bounds for the nodes with some labels; what is not given is as for all nodes."""

    name: Annotated[str, Meta(min_length=1, description="shown in the forecast of its nodes")] = "pool"
    match_labels: Annotated[
        dict[str, str], Meta(description="labels that a node of the pool has, each with its value; none: all nodes")
    ] = {}  # noqa: RUF012 - msgspec copies it for each struct
    reserve_cpu_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    reserve_memory_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    cap_cpu_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    cap_memory_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    floor_cpu_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    floor_memory_percent: Annotated[float, Meta(ge=0, le=100)] | None = None


class MidSettings(Settings, frozen=True):
    """The mid tier: what LS pods asked for and will not use, for pods that come between LS and BE. Off by default."""

    enabled: Annotated[bool, Meta(description="publish amounts of the mid tier")] = False
    cpu: Annotated[str, Meta(min_length=1, description="resource that counts its millicores")] = names.MID_CPU
    memory: Annotated[str, Meta(min_length=1, description="resource that counts its bytes")] = names.MID_MEMORY
    cap_percent: Annotated[
        float, Meta(ge=0, le=100, description="most of a node that the mid tier gets", extra=_RELOADABLE)
    ] = 100.0


class PredictorSettings(DaemonSettings, frozen=True):
    """How the predictor listens, remembers, forecasts and publishes."""

    cluster: ClusterSettings = ClusterSettings()
    resources: ResourceNames = ResourceNames()
    listen: Annotated[
        str, Meta(min_length=1, description="gRPC address: unix:/path, or HOST:PORT with certificates (`tls`)")
    ] = "127.0.0.1:7443"
    tls: TlsSettings = TlsSettings()
    insecure: Annotated[
        bool, Meta(description="serve plaintext on loopback, where whoever reaches the port may report for any node")
    ] = False
    auth: AuthSettings = AuthSettings()
    history_dir: Annotated[str, Meta(min_length=1, description="directory of the usage history")] = (
        "/var/lib/slacktide/predictor"
    )
    identity: Annotated[
        str, Meta(description="name in the leader lease; empty: host name and a hash of the history directory")
    ] = ""

    forecast: ForecastSettings = ForecastSettings()
    reserve_cpu_percent: Annotated[
        float, Meta(ge=0, le=100, description="share of the node's CPU that is never sold", extra=_RELOADABLE)
    ] = 5.0
    reserve_memory_percent: Annotated[
        float, Meta(ge=0, le=100, description="share of the node's memory that is never sold", extra=_RELOADABLE)
    ] = 5.0
    cap_cpu_percent: Annotated[
        float, Meta(ge=0, le=100, description="most of a node's CPU that is sold", extra=_RELOADABLE)
    ] = 100.0
    cap_memory_percent: Annotated[
        float, Meta(ge=0, le=100, description="most of a node's memory that is sold", extra=_RELOADABLE)
    ] = 100.0
    floor_cpu_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="least of a node's CPU that is offered whatever the forecast says, as far as use now allows",
            extra=_RELOADABLE,
        ),
    ] = 0.0
    floor_memory_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="least of a node's memory that is offered whatever the forecast says, as far as use now allows",
            extra=_RELOADABLE,
        ),
    ] = 0.0
    pools: Annotated[
        tuple[PoolSettings, ...],
        Meta(
            description="other bounds for some nodes: the first pool whose match_labels a node has", extra=_RELOADABLE
        ),
    ] = ()
    young_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=7 * 86400,
            description="an LS pod younger than this counts with its request beside the peak",
            extra=_RELOADABLE,
        ),
    ] = 3600.0
    mid: MidSettings = MidSettings()

    publish_seconds: Annotated[
        float, Meta(ge=0.1, le=60, description="time between two forecast passes", extra=_RELOADABLE)
    ] = 2.0
    writes_per_second: Annotated[
        float, Meta(gt=0, le=10_000, description="most patches of nodes a second, drops first", extra=_RELOADABLE)
    ] = 200.0
    writes_burst: Annotated[
        int, Meta(ge=1, le=100_000, description="patches that may go out at once after a quiet time", extra=_RELOADABLE)
    ] = 400
    ttl_seconds: Annotated[
        float, Meta(ge=3, le=3600, description="how long a published forecast stays fresh", extra=_RELOADABLE)
    ] = 120.0
    rise_wait_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="how long a rise must last before it goes out", extra=_RELOADABLE)
    ] = 30.0
    rise_step_percent: Annotated[
        float, Meta(gt=0, le=100, description="largest rise at a time, of capacity", extra=_RELOADABLE)
    ] = 20.0
    dead_band_percent: Annotated[
        float,
        Meta(ge=0, le=50, description="a smaller rise than this, of capacity, is not published", extra=_RELOADABLE),
    ] = 1.0
    stale_windows: Annotated[
        float,
        Meta(ge=1, le=100, description="report windows without a sample until room begins to fade", extra=_RELOADABLE),
    ] = 5.0
    stale_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="room never fades for silence before this time", extra=_RELOADABLE)
    ] = 15.0
    expire_seconds: Annotated[
        float, Meta(ge=1, le=86400, description="a node that was silent for this long is closed", extra=_RELOADABLE)
    ] = 900.0
    conflict_changes: Annotated[
        int,
        Meta(ge=1, le=1000, description="changes by others until we stop publishing on a node", extra=_RELOADABLE),
    ] = 3
    conflict_seconds: Annotated[
        float,
        Meta(ge=10, le=86400, description="time without a change by others until we publish again", extra=_RELOADABLE),
    ] = 600.0

    retention_days: Annotated[float, Meta(ge=0.1, le=400, description="how long history is kept")] = 35.0
    history_max_bytes: Annotated[
        int,
        Meta(
            ge=64 << 20,
            description="size of the history on disk; oldest days go when it comes near (10,000 nodes: 0.3 GB a day)",
        ),
    ] = 16 << 30
    commit_seconds: Annotated[
        float, Meta(ge=0, le=5, description="how long samples are gathered at least for one durable write")
    ] = 0.05
    queue_samples: Annotated[
        int, Meta(ge=1, le=10_000_000, description="samples that may wait for their durable write")
    ] = 20_000
    ingest: IngestSettings = IngestSettings()
    metrics: MetricsSettings = MetricsSettings()
    max_skew_seconds: Annotated[
        float, Meta(ge=0, le=86400, description="samples from further in the future are refused", extra=_RELOADABLE)
    ] = 60.0
