"""Settings of the extender: file, SLACKTIDE_EXTENDER_* variables and flags (see slacktide.settings)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from slacktide.settings import ClusterSettings, DaemonSettings, ResourceNames, Settings
from slacktide.transport import TlsSettings


class ExtenderProfile(Settings, frozen=True):
    """Which plugins judge a pod beside those of the stock scheduler."""

    plugins: Annotated[
        list[str],
        Meta(min_length=1, description="plugins in the order they are asked; those of the stock scheduler ran before"),
    ] = msgspec.field(default_factory=lambda: ["BatchForecast"])
    weights: Annotated[
        dict[str, int], Meta(description="weight of the score of a plugin; one that is not named weighs 1")
    ] = msgspec.field(default_factory=dict)
    arguments: Annotated[
        dict[str, str],
        Meta(description='arguments of a plugin as a JSON object, such as ActualLoad={"loadWeight":0.7}'),
    ] = msgspec.field(default_factory=dict)


class ExtenderSettings(DaemonSettings, frozen=True):
    """How the extender is asked, what it judges, and where it learns of nodes and pods."""

    cluster: ClusterSettings = ClusterSettings()
    resources: ResourceNames = ResourceNames()
    profile: ExtenderProfile = ExtenderProfile()
    tls: TlsSettings = TlsSettings()
    listen: Annotated[str, Meta(min_length=1, description="HOST:PORT where schedulers ask")] = "127.0.0.1:7444"
    tiers: Annotated[
        list[Literal["LS", "BE", "SYSTEM"]],
        Meta(min_length=1, description="tiers that the plugins judge; pods of the others pass without any work"),
    ] = msgspec.field(default_factory=lambda: ["BE"])
    bind: Annotated[
        bool,
        Meta(description="serve the bind verb: who reaches the port may then bind any pod. A placement counts at once"),
    ] = False
    highest_score: Annotated[
        int,
        Meta(ge=1, le=100, description="score of the best node; more than 10 is finer, and outside the convention"),
    ] = 10
    max_connections: Annotated[int, Meta(ge=1, le=4096, description="connections at once; more get 503")] = 128
    max_body_bytes: Annotated[int, Meta(ge=1 << 16, le=1 << 30, description="largest request; larger ones get 413")] = (
        32 << 20
    )
    request_seconds: Annotated[
        float, Meta(ge=0.1, le=600, description="a request must arrive, and its answer be taken, within this time each")
    ] = 5.0
    idle_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="a connection without a request is closed after this time")
    ] = 180.0
    wait_seconds: Annotated[
        float,
        Meta(ge=0.01, le=600, description="longest wait for the pods before; less than httpTimeout of the scheduler"),
    ] = 3.0
    hung_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="a pod judged for longer means a plugin that hangs: not live any more")
    ] = 30.0
