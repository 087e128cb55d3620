"""What the client counts about itself. One `ClusterMetrics` a process, on the registry of the daemon."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge

from slacktide.cluster.errors import ApiError, ClusterError


class ClusterMetrics:
    """The client's metrics; without a registry they are kept, but nobody sees them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self.requests = Counter(
            "slacktide_api_requests",
            "Calls to the Kubernetes API by verb and HTTP status; 2xx, or unreachable where there was no answer.",
            ["verb", "code"],
            registry=registry,
        )
        self.unreadable = Counter(
            "slacktide_api_unreadable_objects",
            "Objects that did not fit our view of them.",
            ["kind"],
            registry=registry,
        )
        self.lists = Counter(
            "slacktide_informer_lists", "Full lists made by an informer.", ["informer"], registry=registry
        )
        self.failures = Counter(
            "slacktide_informer_failures",
            "Lists and watches that failed, by class of error.",
            ["informer", "reason"],
            registry=registry,
        )
        self.watch_events = Counter(
            "slacktide_informer_watch_events", "Events received by watches.", ["informer", "type"], registry=registry
        )
        self.handler_errors = Counter(
            "slacktide_informer_handler_errors", "Handlers that raised.", ["informer"], registry=registry
        )
        self.cache_age = Gauge(
            "slacktide_informer_age_seconds",
            "Seconds since the API server was last heard; up to 60 s is normal where nothing changes.",
            ["informer"],
            registry=registry,
        )
        self.cache_objects = Gauge(
            "slacktide_informer_objects", "Objects in the cache of an informer.", ["informer"], registry=registry
        )
        self.events = Counter(
            "slacktide_events",
            "Events about objects: created, patched (count raised), limited, dropped (queue full) or failed.",
            ["result"],
            registry=registry,
        )
        self.leading = Gauge("slacktide_leader", "1 while this process leads.", ["lease"], registry=registry)

    @contextlib.contextmanager
    def request(self, verb: str) -> Iterator[None]:
        """Count one call by how the block ends."""
        code = "unreachable"
        try:
            yield
            code = "2xx"
        except ApiError as error:
            code = str(error.status)
            raise
        except ClusterError:
            raise
        finally:
            self.requests.labels(verb, code).inc()
