"""Metrics of the embedded API server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from standalone.api.store import Store
from standalone.api.watchhub import WatchHub


class Metrics:
    """Counts requests and shows the state of store and watches."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "slacktide_apiserver_requests",
            "Requests answered, by method, resource (with subresource) and HTTP code.",
            ["method", "resource", "code"],
            registry=registry,
        )
        self._seconds = Histogram(
            "slacktide_apiserver_request_seconds",
            "Time to answer, watches and log streams left out.",
            ["method", "resource"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0),
            registry=registry,
        )
        self._watchers = Gauge("slacktide_apiserver_watchers", "Watches being served.", registry=registry)
        self._cut = Counter(
            "slacktide_apiserver_watchers_cut", "Watches ended because the client was too slow.", registry=registry
        )
        self._version = Gauge("slacktide_apiserver_resource_version", "Newest version stored.", registry=registry)

    def observe(self, store: Store, hub: WatchHub) -> None:
        """Show the state of these with each scrape."""
        self._watchers.set_function(lambda: float(len(hub)))
        self._version.set_function(lambda: float(store.version))

    def cut_off(self) -> None:
        """A slow watcher was cut."""
        self._cut.inc()

    def answered(self, method: str, resource: str, code: int, seconds: float | None) -> None:
        """A request was answered; seconds None for a stream, whose length says nothing."""
        self._requests.labels(method, resource, str(code)).inc()
        if seconds is not None:
            self._seconds.labels(method, resource).observe(seconds)
