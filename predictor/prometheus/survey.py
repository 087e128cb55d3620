"""Which metrics a server has, how its nodes are named there, how often it scrapes.

Nothing of this is asked of the operator unless it cannot be told: a wrong guess would put use under a name that no node
has. Every question is one instant query.
"""

from __future__ import annotations

import datetime as dt
import math
from typing import Final, NamedTuple, Protocol

from predictor.prometheus import queries as q
from predictor.prometheus.answers import Answer, complete, newest
from predictor.prometheus.errors import PrometheusError
from predictor.prometheus.sources import Source, host_of, step_for, window_for
from predictor.slots import SLOT_SECONDS

NODE_LABELS: Final = ("node", "kubernetes_node", "kubernetes_io_hostname", "nodename", "exported_node", "instance")
"""Labels that name a node, the surer ones first."""

_SCRAPES_SECONDS: Final = 900.0
_PAIR_STEP: Final = 6 * 3600.0
_BOTH_SHARE: Final = 0.05
"""Where fewer pods than this have a cgroup and no container, these are pods that just start or end."""
_LOOKS_BACK: Final = (0.0, 3600.0, 6 * 3600.0, 24 * 3600.0, 72 * 3600.0, 168 * 3600.0)
_MIXED_SHARE: Final = 0.05
_ROOT_SHARE: Final = 0.9


class Asks(Protocol):
    """A client of the query API."""

    def instant(self, expression: str, at: float) -> Answer:
        """Vector at an epoch second."""
        ...

    def range(self, expression: str, start: float, end: float, step: float) -> Answer:
        """Matrix between two epoch seconds."""
        ...


class Survey(NamedTuple):
    """What a server has. A part that is None is not there.

    step_seconds    time between two windows
    window_seconds  length of a window
    exported        kube-state-metrics is scraped without `honor_labels` (see `queries.Match`)
    remarks         what is missing, what that means, and what helps
    """

    nodes: tuple[str, ...]
    cadvisor: Source | None
    exporter: Source | None
    form: q.Form | None
    total_cpu: q.Total | None
    total_memory: q.Total | None
    kubelet_capacity: bool
    machine_capacity: bool
    requests: bool
    phases: bool
    labels: bool
    pods: bool
    owners: bool
    exported: bool
    scrape_seconds: float
    step_seconds: int
    window_seconds: int
    remarks: tuple[str, ...]


def survey(
    client: Asks,
    since: float,
    at: float,
    extra: tuple[str, ...] = (),
    node_label: str | None = None,
    step: int | None = None,
) -> Survey:
    """Look at what the server has at epoch second `at`, and how nodes were named from `since` on.

    extra       matchers on every series
    node_label  label that names the node in cAdvisor's and node-exporter's series; None = find it
    step        seconds between windows; None = as often as the cluster is scraped, within reason

    Raises PrometheusError when there is nothing to import, or when the series of several clusters would mix.
    """
    return _Surveyor(client, since, at, extra).run(node_label, step)


class _Found(NamedTuple):
    source: Source
    nodes: frozenset[str]


class _Surveyor:
    def __init__(self, client: Asks, since: float, at: float, extra: tuple[str, ...]) -> None:
        self._client = client
        self._since = since
        self._at = at
        self._extra = extra
        self._states_node = q.STATES_NODE
        self._remarks: list[str] = []

    def run(self, node_label: str | None, step: int | None) -> Survey:
        self._at = self._newest_data()
        exported = self._has(q.POD_INFO, 'exported_pod!=""')
        if self._has(q.NODE_INFO, 'exported_node!=""'):
            self._states_node = "exported_node"
        self._one_cluster()
        self._one_address()
        form = self._form()
        known = frozenset(self._pairs(q.NODE_INFO, self._states_node, self._states_node))
        kubelets = self._source(q.CPU, 'pod!=""' if form else 'id="/"', node_label, known)
        exporters = self._source(q.NODE_CPU, 'mode="idle"', node_label, known)
        nodes = frozenset().union(*(found.nodes for found in (kubelets, exporters) if found))
        cpu = self._total(q.CPU, (q.NODE_CPU, 'mode="idle"'), kubelets, exporters)
        memory = self._total(q.MEMORY, (q.NODE_MEMORY_FREE,), kubelets, exporters)
        scrape = self._scrape(kubelets is not None, q.Total.EXPORTER in (cpu, memory))
        chosen = step or step_for(scrape, len(nodes))
        found = Survey(
            nodes=tuple(sorted(nodes)),
            cadvisor=kubelets.source if kubelets else None,
            exporter=exporters.source if exporters else None,
            form=form,
            total_cpu=cpu,
            total_memory=memory,
            kubelet_capacity=self._has(q.NODE_CAPACITY),
            machine_capacity=self._has(q.MACHINE_CPU),
            requests=self._has(q.REQUESTS, 'resource="cpu"'),
            phases=self._has(q.POD_PHASE),
            labels=self._has(q.POD_LABELS),
            pods=self._has(q.POD_INFO, 'uid!=""'),
            owners=self._has(q.POD_OWNER),
            exported=exported or self._states_node != q.STATES_NODE,
            scrape_seconds=scrape,
            step_seconds=chosen,
            window_seconds=window_for(scrape, chosen),
            remarks=(),
        )
        self._judge(found)
        return found._replace(remarks=tuple(self._remarks))

    def _newest_data(self) -> float:
        """The newest moment, of a few that are tried, at which there is something to look at."""
        expression = f"count({q.select(q.CPU, *self._extra)}) or count({q.select(q.NODE_CPU, *self._extra)})"
        for back in _LOOKS_BACK:
            at = self._at - back
            if at > self._since and complete(self._client.instant(expression, at)):
                return at
        raise PrometheusError(
            f"from {stamp(self._since)} to {stamp(self._at)} the server has neither {q.CPU} (cAdvisor, part of the "
            f"kubelet) nor {q.NODE_CPU} (node-exporter): scrape one of them, check --match, or set --from and --to to "
            "a time when there was one"
        )

    def _one_cluster(self) -> None:
        for label in ("cluster", "cluster_id", "k8s_cluster"):
            found = sorted({*self._values(q.CPU, label, 'id="/"'), *self._values(q.NODE_INFO, label)})
            if len(found) > 1:
                raise PrometheusError(
                    f"the server has series of {len(found)} clusters ({label}: {', '.join(found[:5])}"
                    f"{', ...' if len(found) > 5 else ''}), whose nodes would mix: choose one with "
                    f"--match '{label}={q.quoted(found[0])}'"
                )

    def _one_address(self) -> None:
        """Two nodes of one name are two clusters, except while a node is replaced."""
        node = self._states_node
        selector = q.select(q.NODE_INFO, 'internal_ip!=""', *self._extra)
        pairs = f"group by ({node}, internal_ip) ({selector})"
        several = self._number(f"count(count by ({node}) ({pairs}) > 1)")
        if several > 1 and several > _MIXED_SHARE * self._number(f"count(group by ({node}) ({pairs}))"):
            raise PrometheusError(
                f"{several} nodes have two addresses each in {q.NODE_INFO}: series of several clusters mix; choose one "
                "with --match 'LABEL=VALUE'"
            )

    def _source(self, metric: str, matcher: str, asked: str | None, known: frozenset[str]) -> _Found | None:
        """Where `metric` names its nodes, and which it has now; None when there is no such metric."""
        found: list[_Found] = []
        for label in (asked,) if asked else NODE_LABELS:
            values = self._values(metric, label, matcher)
            if values:
                source = self._instances(known) if label == "instance" else Source(label, known=known)
                found.append(_Found(source, frozenset(filter(None, map(source.node, values)))))
        if not found:
            return None
        best = max(found, key=lambda one: len(one.nodes & known) / max(len(one.nodes), 1))
        some = ", ".join(sorted(best.nodes)[:3])
        if known and 2 * len(best.nodes & known) < len(best.nodes):
            raise PrometheusError(
                f"label {best.source.label!r} of {metric} ({some}) does not name the nodes that {q.NODE_INFO} lists "
                f"({', '.join(sorted(known)[:3])}): name the right label with --node-label"
            )
        if best.source.label == "instance" and not known and not best.source.hosts:
            self._remarks.append(
                f"{metric} names its nodes by `instance` only ({some}): these must be the names that Kubernetes gives "
                "to the nodes; if they are not, give --node-label"
            )
        return best

    def _instances(self, known: frozenset[str]) -> Source:
        names = self._pairs(q.NODE_NAMES, "instance", "nodename")
        hosts = {**{host_of(value): name for value, name in names.items()}, **names}
        return Source("instance", self._pairs(q.NODE_INFO, "internal_ip", self._states_node), hosts, known)

    def _total(
        self, metric: str, other: tuple[str, ...], kubelets: _Found | None, exporters: _Found | None
    ) -> q.Total | None:
        """What stands for whole nodes: root cgroups, unless clearly more nodes have a node-exporter."""
        roots = len(self._values(metric, kubelets.source.label, 'id="/"')) if kubelets else 0
        exported = len(self._values(other[0], exporters.source.label, *other[1:])) if exporters else 0
        if not roots and not exported:
            return None
        return q.Total.ROOT if roots >= _ROOT_SHARE * exported else q.Total.EXPORTER

    def _judge(self, found: Survey) -> None:
        """Say what is missing, what that means, and what helps."""
        say = self._remarks.append
        if found.form is None:
            say(
                f"{q.CPU} has no pods: all use counts as protected; scrape /metrics/cadvisor of the kubelets to tell "
                "pods from the rest"
            )
        for metric, other, total, use in (
            (q.CPU, q.NODE_CPU, found.total_cpu, "CPU"),
            (q.MEMORY, q.NODE_MEMORY_FREE, found.total_memory, "memory"),
        ):
            if total is None:
                say(
                    f'neither {metric}{{id="/"}} nor {other} is there: {use} outside pods is unknown, so this import '
                    f"gives no forecast of {use}; keep the root cgroup in the scrape of cAdvisor, or run node-exporter"
                )
        if not (found.kubelet_capacity or found.machine_capacity or found.exporter):
            say(f"none of {q.NODE_CAPACITY}, {q.MACHINE_CPU}, {q.NODE_CPU} is there: absurd values cannot be told")
        if not found.requests:
            say(f"{q.REQUESTS} is not there: requests stay unknown; run kube-state-metrics")
        if not found.labels:
            say(f"{q.POD_LABELS} is not there: only batch requests mark a pod as best-effort; run kube-state-metrics")
        if found.form is not None and not found.pods:
            say(f"{q.POD_INFO} has no uid: use of single pods is not imported; run kube-state-metrics")
        if found.scrape_seconds > 0.4 * SLOT_SECONDS:
            say(
                f"samples come each {found.scrape_seconds:.0f} s: peaks shorter than {found.window_seconds} s are not "
                "in them, so forecasts start lower than they will be; raise reserve_cpu_percent for the first week"
            )

    def _form(self) -> q.Form | None:
        containers = self._count(q.CPU, *q.POD_MATCHERS[q.Form.CONTAINERS])
        if not containers:
            return q.Form.PODS if self._has(q.CPU, *q.POD_MATCHERS[q.Form.PODS]) else None
        return q.Form.BOTH if self._alone() > _BOTH_SHARE * containers else q.Form.CONTAINERS

    def _has(self, metric: str, *matchers: str) -> bool:
        return self._count(metric, *matchers) > 0

    def _alone(self) -> int:
        """Pods that have a cgroup and no container."""
        have = [
            f"group by (namespace, pod) ({q.select(q.CPU, *q.POD_MATCHERS[form], *self._extra)})"
            for form in (q.Form.PODS, q.Form.CONTAINERS)
        ]
        return self._number(f"count({have[0]} unless {have[1]})")

    def _count(self, metric: str, *matchers: str) -> int:
        return self._number(f"count({q.select(metric, *matchers, *self._extra)})")

    def _number(self, expression: str) -> int:
        series = complete(self._client.instant(expression, self._at))
        value = newest(series[0]) if series else math.nan
        return 0 if math.isnan(value) else round(value)

    def _values(self, metric: str, label: str, *matchers: str) -> list[str]:
        """Values of `label`, without the empty one."""
        expression = f"group by ({label}) ({q.select(metric, *matchers, *self._extra)})"
        found = (series.metric.get(label, "") for series in complete(self._client.instant(expression, self._at)))
        return sorted(value for value in found if value)

    def _pairs(self, metric: str, key: str, value: str) -> dict[str, str]:
        """`value` by `key`, of all that were there in the time that is imported; of several the newest."""
        by = ", ".join(dict.fromkeys((key, value)))
        expression = f"group by ({by}) ({q.select(metric, *self._extra)})"
        # The newest look is at the end, so that the youngest nodes are seen.
        start = self._at - (self._at - self._since) // _PAIR_STEP * _PAIR_STEP
        found = complete(self._client.range(expression, start, self._at, _PAIR_STEP))
        newest_last = sorted(found, key=lambda series: series.values[-1][0] if series.values else 0.0)
        pairs = ((series.metric.get(key), series.metric.get(value)) for series in newest_last)
        return {left: right for left, right in pairs if left and right}

    def _scrape(self, kubelets: bool, exporters: bool) -> float:
        """Seconds between two samples: the median, of the slower source. Raises PrometheusError."""
        read = [(q.CPU, 'id="/"'), (q.CPU, 'pod!=""')] if kubelets else []
        found = next((seconds for metric, matcher in read if (seconds := self._interval(metric, matcher))), 0.0)
        if exporters or not kubelets:
            found = max(found, self._interval(q.NODE_CPU, 'mode="idle",cpu="0"'))
        if found:
            return found
        raise PrometheusError(
            f"there are fewer than two samples of a series in the {_SCRAPES_SECONDS / 60:.0f} minutes before "
            f"{stamp(self._at)}: set --to to a time when the cluster was scraped"
        )

    def _interval(self, metric: str, matcher: str) -> float:
        """Median seconds between two samples, 0.0 when there are none."""
        selector = q.select(metric, matcher, *self._extra)
        counted = f"count_over_time({selector}[{q.seconds(_SCRAPES_SECONDS)}]) > 1"
        count = self._number(f"10 * quantile(0.5, {counted})")
        # The window holds one sample more than intervals when it happens to begin on one.
        return _SCRAPES_SECONDS / (count / 10 - 0.5) if count else 0.0


def stamp(at: float) -> str:
    """An epoch second as people read it, in UTC."""
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%MZ")
