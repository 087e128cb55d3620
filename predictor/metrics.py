"""What the predictor counts. All names begin with slacktide_predictor_."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """All metrics of one predictor, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"slacktide_predictor_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"slacktide_predictor_{name}", text, labels, registry=registry)

        def latency(name: str, text: str) -> Histogram:
            return Histogram(f"slacktide_predictor_{name}", text, buckets=_LATENCY_BUCKETS, registry=registry)

        self.samples = counter("samples", "Samples that became durable")
        self.duplicates = counter("duplicate_samples", "Samples that were durable already")
        self.refused = counter("refused_samples", "Samples refused for good", ("reason",))
        self.streams = gauge("streams", "Open usage streams")
        self.waiting = gauge("waiting_samples", "Samples that wait for their durable write")
        self.ack_seconds = latency("ack_seconds", "Time from receiving a sample to its acknowledgement")
        self.commit_seconds = latency("commit_seconds", "Time of one durable write")
        self.commit_failures = counter("commit_failures", "Durable writes that failed; their samples are sent again")
        self.history_rows = gauge("history_rows", "Rows in the history", ("table",))
        self.history_bytes = gauge("history_bytes", "Bytes of the history on disk")
        self.history_days_dropped = counter("history_days_dropped", "Days of history removed early for lack of room")
        self.history_usable = gauge("history_usable", "1 while samples become durable")
        self.pass_seconds = latency("pass_seconds", "Time of one forecast pass over all nodes")
        self.leader = gauge("leader", "1 while this replica publishes")
        self.publications = counter("publications", "Patches of a node by what made them due", ("cause",))
        self.publish_failures = counter("publish_failures", "Patches of a node that failed")
        self.skipped_pods = counter("skipped_pods", "Pods whose requests could not be read")
        self.clock_skew = gauge("clock_skew_seconds", "How far the clock of a node is ahead", ("node",))
        self.sample_age = gauge("sample_age_seconds", "Age of the newest sample", ("node",))
        self.reclaimable = gauge("reclaimable", "Computed amount that may be sold", ("node", "resource"))
        self.published = gauge("published", "Amount in the node status", ("node", "resource"))
        self.closed = gauge("closed", "1 while nothing more is sold on the node", ("node",))

    def forget_node(self, node: str) -> None:
        """Drop the series of a node that is gone."""
        for per_node in (self.clock_skew, self.sample_age, self.closed):
            _remove(per_node, node)
        for per_resource in (self.reclaimable, self.published):
            for resource in ("cpu", "memory"):
                _remove(per_resource, node, resource)

    def amount(self, metric: Gauge, node: str, resource: str, value: int | None) -> None:
        """Set a per-node amount; one that is not known has no series, never 0."""
        if value is None:
            _remove(metric, node, resource)
        else:
            metric.labels(node, resource).set(value)


def _remove(metric: Gauge, *labels: str) -> None:
    try:
        metric.remove(*labels)
    except KeyError:
        # Never set, or removed before: nothing to drop.
        return
