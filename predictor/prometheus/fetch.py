"""The queries of one piece of time, and their answers side by side: use, capacity and requests of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

import numpy as np

from predictor.prometheus import queries as q
from predictor.prometheus.answers import Points, complete, grid
from predictor.prometheus.plan import Span
from predictor.prometheus.sources import Source
from predictor.prometheus.survey import Asks, Survey
from predictor.prometheus.tiers import PodName, tiers
from predictor.prometheus.windows import Use
from predictor.slots import SLOT_SECONDS
from slacktide.tier import Tier

_HOUR: Final = 3600
_LEAST_JOIN_SECONDS: Final = 300
"""kube-state-metrics may be scraped less often than cAdvisor."""
_STATES: Final = Source(q.STATES_NODE)

ByNode = dict[str, Points]
K = TypeVar("K")


class Shard(NamedTuple):
    """Some of the nodes: their names, and the values that the labels of cAdvisor and node-exporter have for them."""

    nodes: frozenset[str]
    kubelets: tuple[str, ...]
    exporters: tuple[str, ...]


class Raw(NamedTuple):
    """What the server says of one piece of time. Rows are `nodes`.

    cpu, memory              cores and bytes by windows
    memory_step, _window     seconds between windows of memory, and of one such window
    capacity_*, requested_*  by slots; cores (BE: millicores, as batch requests are) and bytes
    be_seen                  whether pods of other tiers than LS were there
    """

    nodes: list[str]
    cpu: Use
    memory: Use
    memory_step: int
    memory_window: int
    capacity_cpu: Points
    capacity_memory: Points
    ls_requested_cpu: Points
    ls_requested_memory: Points
    be_requested_cpu: Points
    be_requested_memory: Points
    be_seen: bool


class Fetcher:
    """Asks for whole pieces. Not for several threads at once."""

    def __init__(self, client: Asks, survey: Survey, extra: tuple[str, ...]) -> None:
        self.client = client
        self.survey = survey
        self.extra = extra

    def fetch(self, span: Span, shard: Shard | None = None) -> Raw:
        """Everything about nodes in `span`, of the nodes of `shard` only when there is one.

        Raises Partial, TooHeavy, Away, PrometheusError.
        """
        return _Piece(self, span, shard).raw()

    def cadvisor(self, shard: Shard | None) -> q.Cadvisor | None:
        """Queries of cAdvisor's series; None when it has no series here."""
        if self.survey.cadvisor is None:
            return None
        match = q.Match(self.extra, None if shard is None else shard.kubelets)
        return q.Cadvisor(self.survey.cadvisor.label, self.survey.form, match)

    def states(self, shard: Shard | None) -> q.Match:
        """Conditions for series of kube-state-metrics."""
        nodes = None if shard is None else tuple(sorted(shard.nodes))
        return q.Match(self.extra, nodes, self.survey.exported)

    def tiers(self, span: Span) -> dict[PodName, Tier]:
        """Tier of the pods in `span` that may not be LS."""
        if self.survey.form is None or not (self.survey.labels or self.survey.requests):
            return {}
        hours = -(-(span.to_second - span.from_second) // _HOUR)
        start = span.to_second - (hours - 1) * _HOUR
        match = self.states(None)
        # A little more than the step, since a scrape may come late.
        window = _HOUR + _LEAST_JOIN_SECONDS
        found = [
            complete(self.client.range(expression(match, window), start, span.to_second, _HOUR))
            for expression in (q.marks_by_label, q.marks_by_request)
        ]
        return tiers(*([series.metric for series in part] for part in found))

    def series(
        self, expression: str, source: Source, span: Span, step: int, shard: Shard | None
    ) -> Iterator[tuple[str, Mapping[str, str], Points]]:
        """Node, labels and values of each series of `expression` whose node is wanted.

        The values are at the ends of windows that are `step` seconds apart: (slots x slot / step,).
        """
        start = span.from_second + step
        count = span.slots * SLOT_SECONDS // step
        found = complete(self.client.range(expression, start, span.to_second, step))
        for series, values in zip(found, grid(found, start, step, count), strict=True):
            node = source.node(series.metric.get(source.label, ""))
            if node is not None and (shard is None or node in shard.nodes):
                yield node, series.metric, values

    def shards(self, span: Span) -> tuple[Shard, Shard] | None:
        """Two halves of the nodes that were there in `span`; None when there is but one node."""
        kubelets = self._values(self.survey.cadvisor, q.CPU, 'pod!=""' if self.survey.form else 'id="/"', span)
        exporters = self._values(self.survey.exporter, q.NODE_CPU, 'mode="idle"', span)
        return halved(kubelets, exporters, sorted({*kubelets, *exporters}))

    def split(self, shard: Shard) -> tuple[Shard, Shard] | None:
        """Two halves of `shard`; None when it has but one node."""
        survey = self.survey
        kubelets = _names(survey.cadvisor, shard.kubelets)
        exporters = _names(survey.exporter, shard.exporters)
        return halved(kubelets, exporters, sorted(shard.nodes))

    def _values(self, source: Source | None, metric: str, matcher: str, span: Span) -> dict[str, list[str]]:
        """Values of the label of `source`, by node."""
        if source is None:
            return {}
        expression = f"group by ({source.label}) ({q.select(metric, matcher, *self.extra)})"
        # Nodes that came or went within the piece are seen when it is looked at several times.
        step = max(SLOT_SECONDS, (span.slots * SLOT_SECONDS) // 4)
        found = complete(self.client.range(expression, span.from_second, span.to_second, step))
        return _names(source, sorted({series.metric.get(source.label, "") for series in found}))


def _names(source: Source | None, values: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value in values:
        name = source.node(value) if source is not None else None
        if name is not None:
            found.setdefault(name, []).append(value)
    return found


def halved(
    kubelets: Mapping[str, list[str]], exporters: Mapping[str, list[str]], nodes: list[str]
) -> tuple[Shard, Shard] | None:
    """The nodes in two shards; None when there is but one."""
    if len(nodes) < 2:
        return None
    middle = len(nodes) // 2

    def of(part: list[str]) -> Shard:
        return Shard(
            frozenset(part),
            tuple(value for node in part for value in kubelets.get(node, ())),
            tuple(value for node in part for value in exporters.get(node, ())),
        )

    return of(nodes[:middle]), of(nodes[middle:])


class _Piece:
    def __init__(self, fetcher: Fetcher, span: Span, shard: Shard | None) -> None:
        self._fetcher = fetcher
        self._survey = survey = fetcher.survey
        self._span = span
        self._shard = shard
        self._exporters = q.Match(fetcher.extra, None if shard is None else shard.exporters)
        self._states = fetcher.states(shard)
        self._step, self._window = survey.step_seconds, survey.window_seconds
        self._cadvisor = fetcher.cadvisor(shard)
        self._tiers: dict[PodName, Tier] = {}

    def raw(self) -> Raw:
        self._tiers = self._fetcher.tiers(self._span)
        be_seen = any(tier is not Tier.LS for tier in self._tiers.values())
        cpu = self._cpu(be_seen)
        memory, memory_step, memory_window = self._memory(be_seen)
        nodes = sorted({*cpu[0], *cpu[1], *memory[0], *memory[1]})
        slots = [self._matrix(part, nodes, SLOT_SECONDS) for part in (*self._capacity(), *self._requests(be_seen))]
        return Raw(
            nodes=nodes,
            cpu=Use(*(self._matrix(part, nodes, self._step) for part in cpu)),
            memory=Use(*(self._matrix(part, nodes, memory_step) for part in memory)),
            memory_step=memory_step,
            memory_window=memory_window,
            capacity_cpu=slots[0],
            capacity_memory=slots[1],
            ls_requested_cpu=slots[2],
            ls_requested_memory=slots[3],
            be_requested_cpu=slots[4],
            be_requested_memory=slots[5],
            be_seen=be_seen,
        )

    def _cpu(self, be_seen: bool) -> list[ByNode]:
        survey, window = self._survey, self._window
        total: ByNode = {}
        if survey.total_cpu is q.Total.ROOT and self._cadvisor is not None:
            total = self._nodes(self._cadvisor.root_cpu(window), survey.cadvisor, self._step)
        elif survey.exporter is not None:
            label = survey.exporter.label
            total = self._nodes(q.exporter_cpu(label, self._exporters, window), survey.exporter, self._step)
        if survey.form is None or self._cadvisor is None:
            return [total, {}, {}, {}]
        pods = self._nodes(self._cadvisor.pod_cpu(window), survey.cadvisor, self._step)
        if not be_seen:
            return [total, pods, {}, {}]
        marked = self._cadvisor.pod_cpu(window, q.BY_POD, self._marked(window))
        return [total, pods, *self._by_tier(marked, survey.cadvisor, self._step)]

    def _memory(self, be_seen: bool) -> tuple[list[ByNode], int, int]:
        """Use of memory, seconds between windows, seconds of a window.

        Without best-effort pods nothing has to be told apart in time, and the highest of each slot is asked for.
        """
        survey = self._survey
        step, window = (self._step, self._window) if be_seen else (SLOT_SECONDS, max(SLOT_SECONDS, self._window))
        total: ByNode = {}
        if survey.total_memory is q.Total.ROOT and self._cadvisor is not None:
            total = self._nodes(self._cadvisor.root_memory(window), survey.cadvisor, step)
        elif survey.total_memory is q.Total.EXPORTER and survey.exporter is not None:
            label = survey.exporter.label
            total = self._nodes(q.exporter_memory(label, self._exporters, window), survey.exporter, step)
        if survey.form is None or self._cadvisor is None:
            return [total, {}, {}, {}], step, window
        pods = self._nodes(self._cadvisor.pod_memory(window), survey.cadvisor, step)
        if not be_seen:
            return [total, pods, {}, {}], step, window
        # The lowest of what may be taken off: protected use is rather too high than too low.
        marked = self._cadvisor.pod_memory(window, q.BY_POD, self._marked(window), least=True)
        return [total, pods, *self._by_tier(marked, survey.cadvisor, step)], step, window

    def _capacity(self) -> list[ByNode]:
        survey, window = self._survey, max(SLOT_SECONDS, self._window)
        if survey.kubelet_capacity:
            return [
                self._nodes(q.node_capacity(self._states, resource, window), _STATES, SLOT_SECONDS)
                for resource in ("cpu", "memory")
            ]
        if survey.machine_capacity and self._cadvisor is not None:
            return [
                self._nodes(self._cadvisor.machine(metric, window), survey.cadvisor, SLOT_SECONDS)
                for metric in (q.MACHINE_CPU, q.MACHINE_MEMORY)
            ]
        if survey.exporter is None:
            return [{}, {}]
        label = survey.exporter.label
        return [
            self._nodes(expression(label, self._exporters, window), survey.exporter, SLOT_SECONDS)
            for expression in (q.exporter_cores, q.exporter_total_memory)
        ]

    def _requests(self, be_seen: bool) -> list[ByNode]:
        """LS requests of CPU and memory, BE requests of CPU and memory."""
        if not self._survey.requests:
            return [{}, {}, {}, {}]
        plain = [self._nodes(self._asked(resource), _STATES, SLOT_SECONDS) for resource in ("cpu", "memory")]
        batch: list[ByNode] = [{}, {}]
        if be_seen:
            marked = self._marked(SLOT_SECONDS)
            for place, resource in enumerate(("cpu", "memory")):
                expression = self._asked(resource, q.BY_POD, marked)
                for part in self._by_tier(expression, _STATES, SLOT_SECONDS):
                    _subtract(plain[place], part)
                expression = self._asked(f"kubernetes_io_batch_{resource}", q.BY_POD)
                batch[place] = self._by_tier(expression, _STATES, SLOT_SECONDS)[0]
        return [*plain, *batch]

    def _asked(self, resource: str, by: tuple[str, ...] = (), condition: str = "") -> str:
        phases = self._survey.phases
        return q.requested(self._states, resource, SLOT_SECONDS, by, phases=phases, condition=condition)

    def _marked(self, window: float) -> str:
        return q.marked(self._fetcher.states(None), max(window, _LEAST_JOIN_SECONDS))

    def _by_tier(self, expression: str, source: Source | None, step: int) -> tuple[ByNode, ByNode]:
        """Sums over the BE pods and over the SYSTEM pods of each node. `expression` is by pod."""
        pods: dict[tuple[str, PodName], Points] = {}
        for node, labels, values in self._series(expression, source, step):
            _raise(pods, (node, PodName(labels.get("namespace", ""), labels.get("pod", ""))), values)
        sums: dict[Tier, ByNode] = {tier: {} for tier in Tier}
        for (node, pod), values in pods.items():
            part = sums[self._tiers.get(pod, Tier.LS)]
            part[node] = _sum(part[node], values) if node in part else values
        return sums[Tier.BE], sums[Tier.SYSTEM]

    def _nodes(self, expression: str, source: Source | None, step: int) -> ByNode:
        """Values by node. Two values of the label that mean one node are two scrapes of it: the higher one counts."""
        found: ByNode = {}
        for node, _, values in self._series(expression, source, step):
            _raise(found, node, values)
        return found

    def _series(
        self, expression: str, source: Source | None, step: int
    ) -> Iterator[tuple[str, Mapping[str, str], Points]]:
        assert source is not None
        return self._fetcher.series(expression, source, self._span, step, self._shard)

    def _matrix(self, part: ByNode, nodes: list[str], step: int) -> Points:
        """(nodes, windows) with NaN for nodes that `part` lacks."""
        nothing = np.full(self._span.slots * SLOT_SECONDS // step, np.nan)
        rows = [part.get(node, nothing) for node in nodes]
        return np.stack(rows) if rows else nothing[None, :][:0]


def _raise(found: dict[K, Points], key: K, values: Points) -> None:
    found[key] = np.fmax(found[key], values) if key in found else values


def _sum(left: Points, right: Points) -> Points:
    """The sum where both are known, the one that is known elsewhere."""
    return np.where(np.isnan(left), right, left + np.nan_to_num(right))


def _subtract(total: ByNode, part: ByNode) -> None:
    for node, values in part.items():
        if node in total:
            total[node] = np.maximum(total[node] - np.nan_to_num(values), 0.0)
