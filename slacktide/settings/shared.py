"""Groups of settings that several daemons have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from slacktide import names
from slacktide.settings.schema import Settings


class ClusterSettings(Settings, frozen=True):
    """How to reach the Kubernetes API."""

    server: Annotated[
        str,
        Meta(
            description="API server: unix:/path/api.sock, https://HOST:PORT or http://127.0.0.1:PORT; "
            "empty is in-cluster, else kubeconfig"
        ),
    ] = ""
    kubeconfig: Annotated[str, Meta(description="kubeconfig file; empty is $KUBECONFIG or ~/.kube/config")] = ""
    context: Annotated[str, Meta(description="context of the kubeconfig; empty is its current one")] = ""
    token_file: Annotated[str, Meta(description="file with a bearer token, read again when it changes")] = ""
    timeout_seconds: Annotated[float, Meta(ge=0.1, le=600, description="limit of one call, watches aside")] = 10.0
    silence_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="a watch that is silent for this long is begun again")
    ] = names.WATCH_SILENCE_SECONDS


class ObserveSettings(Settings, frozen=True):
    """What a daemon tells about itself."""

    listen: Annotated[
        str,
        Meta(description="where metrics, health and status are served: HOST:PORT or unix:/path; empty is nowhere"),
    ] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="lowest level that is logged", extra={"reloadable": True}),
    ] = "info"
    log_format: Annotated[
        Literal["console", "json"],
        Meta(description="console for people, json for machines", extra={"reloadable": True}),
    ] = "json"
    traces: Annotated[
        str,
        Meta(
            description="collector that spans are sent to by OTLP over gRPC: http://HOST:PORT or https://HOST:PORT; "
            "empty makes none"
        ),
    ] = ""
    traces_percent: Annotated[
        float, Meta(ge=0, le=100, description="share of traces that are kept, chosen where each begins")
    ] = 10.0


class ResourceNames(Settings, frozen=True):
    """Names of the two resources that are sold to best-effort pods."""

    cpu: Annotated[str, Meta(min_length=1, description="counts millicores in whole numbers")] = names.BATCH_CPU
    memory: Annotated[str, Meta(min_length=1, description="counts bytes")] = names.BATCH_MEMORY


class DaemonSettings(Settings, frozen=True):
    """What every daemon can be told; a daemon's own settings derive from it."""

    observe: ObserveSettings = ObserveSettings()
