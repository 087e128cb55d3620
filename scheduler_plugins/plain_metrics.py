"""Metrics that the scheduling loop can afford many times a cycle: plain counts, made into series at each scrape."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class PlainHistogram(Collector):
    """A histogram that costs a cycle a microsecond: plain counts, made into a metric at each scrape. Thread safe."""

    def __init__(self, name: str, about: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._name, self._about, self._labels, self._bounds = name, about, list(labels), list(bounds)
        self._lock = threading.Lock()
        self._series: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def observe(self, labels: tuple[str, ...], value: float) -> None:
        """Count `value` in the series of these label values."""
        with self._lock:
            series = self._series.get(labels)
            if series is None:
                series = self._series[labels] = ([0] * (len(self._bounds) + 1), [0.0])
            series[0][bisect_left(self._bounds, value)] += 1
            series[1][0] += value

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Current counts."""
        family = HistogramMetricFamily(self._name, self._about, labels=self._labels)
        with self._lock:
            copies = [(labels, list(counts), total[0]) for labels, (counts, total) in self._series.items()]
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for labels, counts, total in copies:
            buckets = list(zip(names, itertools.accumulate(counts), strict=True))
            family.add_metric(list(labels), buckets, total)
        yield family


class Evaluations(Collector):
    """How often plugins were asked: plain counts of whole lists of plugins, told apart at each scrape."""

    def __init__(self, name: str, about: str) -> None:
        self._name, self._about = name, about
        self._asked: dict[tuple[tuple[str, ...], str, str], int] = {}

    def add(self, plugins: Sequence[str], point: str, profile: str) -> None:
        """These plugins were asked. For one thread alone."""
        key = (tuple(plugins), point, profile)
        self._asked[key] = self._asked.get(key, 0) + 1

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Current counts."""
        labels = ["plugin", "extension_point", "profile"]
        family = CounterMetricFamily(self._name, self._about, labels=labels)
        counts: Counter[tuple[str, str, str]] = Counter()
        for (plugins, point, profile), count in self._asked.copy().items():
            counts.update({(plugin, point, profile): count for plugin in plugins})
        for values, count in counts.items():
            family.add_metric(list(values), count)
        yield family
