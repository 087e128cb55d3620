"""Settings of the predictor: file, SLACKTIDE_PREDICTOR_* variables and flags (see slacktide.settings)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from slacktide.settings import ClusterSettings, DaemonSettings, ResourceNames

_RELOADABLE = {"reloadable": True}


class PredictorSettings(DaemonSettings, frozen=True):
    """How the predictor listens, remembers, forecasts and publishes."""

    cluster: ClusterSettings = ClusterSettings()
    resources: ResourceNames = ResourceNames()
    listen: Annotated[str, Meta(min_length=1, description="gRPC address: unix:/path or HOST:PORT")] = "127.0.0.1:7443"
    history_dir: Annotated[str, Meta(min_length=1, description="directory of the usage history")] = (
        "/var/lib/slacktide/predictor"
    )
    identity: Annotated[
        str, Meta(description="name in the leader lease; empty: host name and a hash of the history directory")
    ] = ""

    model: Annotated[str, Meta(description="name of the forecast model")] = "window_max"
    risk: Annotated[
        float, Meta(gt=0, lt=1, description="chance of a higher peak that is asked of models that state one")
    ] = 0.01
    horizon_seconds: Annotated[
        float, Meta(ge=300, le=7 * 86400, description="how far the forecast looks ahead", extra=_RELOADABLE)
    ] = 3600.0
    window_days: Annotated[float, Meta(ge=0.01, le=35, description="days of use that the model sees")] = 7.0
    cold_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=35 * 86400,
            description="a node with less measured time than this counts with its LS requests at least",
            extra=_RELOADABLE,
        ),
    ] = 3600.0
    reserve_cpu_percent: Annotated[
        float, Meta(ge=0, le=100, description="share of the node's CPU that is never sold", extra=_RELOADABLE)
    ] = 5.0
    reserve_memory_percent: Annotated[
        float, Meta(ge=0, le=100, description="share of the node's memory that is never sold", extra=_RELOADABLE)
    ] = 5.0

    publish_seconds: Annotated[
        float, Meta(ge=0.1, le=60, description="time between two forecast passes", extra=_RELOADABLE)
    ] = 2.0
    ttl_seconds: Annotated[
        float, Meta(ge=3, le=3600, description="how long a published forecast stays fresh", extra=_RELOADABLE)
    ] = 60.0
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
        float, Meta(ge=1, le=100, description="report windows without a sample until a node closes", extra=_RELOADABLE)
    ] = 5.0
    stale_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="a node never closes for silence before this time", extra=_RELOADABLE)
    ] = 15.0

    retention_days: Annotated[float, Meta(ge=0.1, le=400, description="how long history is kept")] = 35.0
    history_max_bytes: Annotated[
        int,
        Meta(
            ge=64 << 20,
            description="size of the history on disk; oldest days go when it comes near (10,000 nodes: 0.3 GB a day)",
        ),
    ] = 16 << 30
    commit_seconds: Annotated[
        float, Meta(ge=0, le=5, description="how long samples are gathered for one durable write")
    ] = 0.05
    queue_samples: Annotated[
        int, Meta(ge=1, le=10_000_000, description="samples that may wait for their durable write")
    ] = 20_000
    max_skew_seconds: Annotated[
        float, Meta(ge=0, le=86400, description="samples from further in the future are refused", extra=_RELOADABLE)
    ] = 60.0
