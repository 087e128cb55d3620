"""Use of single LS pods by hours, so that it can move with them.

Only pods whose UID kube-state-metrics tells are taken, since a name may be used again; an hour in which one name had
two UIDs on a node is left out. Pods of other tiers come and go and nobody forecasts them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from predictor.prometheus import queries as q
from predictor.prometheus.answers import Points, grid
from predictor.prometheus.fetch import KSM_NODE, Fetcher, Shard, complete
from predictor.prometheus.plan import Span
from predictor.prometheus.tiers import PodName
from predictor.slots import SLOT_SECONDS
from predictor.store.columns import HOUR_SECONDS, SLOTS_PER_HOUR, Pod, PodHours, no_hours
from slacktide.objects import ObjectMeta, OwnerReference, owner_group
from slacktide.objects import Pod as PodObject
from slacktide.tier import Tier

_LOOK_SECONDS: Final = HOUR_SECONDS + 300
_TEMPLATE_HASH: Final = re.compile(r".+-([bcdfghjklmnpqrstvwxz2456789]{6,10})")
"""Ending of the name of a ReplicaSet that a Deployment made; Kubernetes takes it from this alphabet."""


class _There(NamedTuple):
    """A pod by name on a node in an hour."""

    node: str
    pod: PodName
    hour: int


def fetch_pods(fetcher: Fetcher, span: Span, shard: Shard | None = None) -> PodHours:
    """Hours of the LS pods in `span`, whose edges are full hours; of the nodes of `shard` only when there is one.

    Raises Partial, TooHeavy, Away, PrometheusError.
    """
    return _Hours(fetcher, span, shard).read()


class _Hours:
    def __init__(self, fetcher: Fetcher, span: Span, shard: Shard | None) -> None:
        self._fetcher = fetcher
        self._span = span
        self._shard = shard
        self._first_hour = span.first // SLOTS_PER_HOUR
        self._hours = span.slots // SLOTS_PER_HOUR
        self._ends = (span.from_second + HOUR_SECONDS, span.to_second)

    def read(self) -> PodHours:
        survey = self._fetcher.survey
        source = self._fetcher.cadvisor(self._shard)
        if source is None:
            return no_hours()
        tiers = self._fetcher.tiers(self._span)
        window = max(SLOT_SECONDS, survey.window_seconds)
        cpu = self._by_pod(source.pod_cpu(window, q.BY_POD))
        memory = self._by_pod(source.pod_memory(window, q.BY_POD))
        uids, groups = self._uids(), self._groups()
        columns = _Columns()
        for node, name in sorted({*cpu, *memory}):
            if tiers.get(name, Tier.LS) is not Tier.LS:
                continue
            used = [self._cut(part.get((node, name))) for part in (cpu, memory)]
            for hour in range(self._hours):
                uid = uids.get(_There(node, name, self._first_hour + hour), "")
                if uid:
                    pod = Pod(uid, *name, node, groups.get(name, ""), "ls", np.nan, np.nan)
                    columns.add(pod, self._first_hour + hour, used[0][hour] * 1000.0, used[1][hour])
        return columns.done()

    def _by_pod(self, expression: str) -> dict[tuple[str, PodName], Points]:
        """Values by slots, by node and pod."""
        found: dict[tuple[str, PodName], Points] = {}
        source = self._fetcher.survey.cadvisor
        assert source is not None
        for node, labels, values in self._fetcher.series(expression, source, self._span, SLOT_SECONDS, self._shard):
            key = (node, PodName(labels.get("namespace", ""), labels.get("pod", "")))
            found[key] = np.fmax(found[key], values) if key in found else values
        return found

    def _cut(self, values: Points | None) -> Points:
        """(hours, slots of an hour)."""
        if values is None:
            return np.full((self._hours, SLOTS_PER_HOUR), np.nan)
        return values.reshape(self._hours, SLOTS_PER_HOUR)

    def _uids(self) -> dict[_There, str]:
        """UID of each pod in each hour; those of which a name had two are not there."""
        found: defaultdict[_There, set[str]] = defaultdict(set)
        for labels, hour in self._hourly(q.POD_INFO, 'uid!=""', (KSM_NODE, *q.BY_POD, "uid")):
            name = PodName(labels.get("namespace", ""), labels.get("pod", ""))
            found[_There(labels.get(KSM_NODE, ""), name, hour)].add(labels["uid"])
        return {there: uids.pop() for there, uids in found.items() if len(uids) == 1}

    def _groups(self) -> dict[PodName, str]:
        """Controller of each pod that has one, as `slacktide.objects.owner_group` calls it."""
        if not self._fetcher.survey.owners:
            return {}
        labels_of = ("namespace", "pod", "owner_kind", "owner_name")
        found: dict[PodName, str] = {}
        for labels, _ in self._hourly(q.POD_OWNER, 'owner_is_controller="true"', labels_of):
            name = PodName(labels.get("namespace", ""), labels.get("pod", ""))
            found[name] = group_of(name, labels.get("owner_kind", ""), labels.get("owner_name", ""))
        return found

    def _hourly(self, metric: str, matcher: str, by: tuple[str, ...]) -> Iterator[tuple[dict[str, str], int]]:
        """Label sets of a metric, and each hour in which it had them."""
        selector = q.select(metric, matcher, *self._fetcher.extra)
        expression = f"group by ({', '.join(by)}) ({q.highest(selector, _LOOK_SECONDS)})"
        start, end = self._ends
        for series in complete(self._fetcher.client.range(expression, start, end, HOUR_SECONDS)):
            present = grid(series, start, HOUR_SECONDS, self._hours)
            for hour in np.flatnonzero(~np.isnan(present)):
                yield series.metric, self._first_hour + int(hour)


def group_of(pod: PodName, kind: str, name: str) -> str:
    """Group of a pod by its controller; empty when it has none."""
    if not kind or not name:
        return ""
    made = _TEMPLATE_HASH.fullmatch(name) if kind == "ReplicaSet" else None
    owner = OwnerReference(kind=kind, name=name, controller=True)
    labels = {"pod-template-hash": made[1]} if made else {}
    return owner_group(PodObject(metadata=ObjectMeta(namespace=pod.namespace, labels=labels, owner_references=[owner])))


class _Columns:
    """Rows that become PodHours."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[int, Pod]] = {}
        self._rows: list[tuple[int, int, int, float, float, float, float]] = []

    def add(self, pod: Pod, hour: int, cpu: Points, memory: Points) -> None:
        """An hour of a pod, from (slots of an hour,) millicores and bytes; nothing when none is known."""
        known = int(np.count_nonzero(~np.isnan(cpu) | ~np.isnan(memory)))
        if known:
            place, _ = self._pods.setdefault(pod.uid, (len(self._pods), pod))
            self._rows.append((place, hour, known, *_mean_and_highest(cpu), *_mean_and_highest(memory)))

    def done(self) -> PodHours:
        """All rows as columns."""
        if not self._rows:
            return no_hours()
        table = np.asarray(self._rows, dtype=np.float64).T
        pods = [pod for _, pod in self._pods.values()]
        return PodHours(pods, *(part.astype(np.int64) for part in table[:3]), *table[3:])


def _mean_and_highest(values: Points) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    return (float(known.mean()), float(known.max())) if len(known) else (np.nan, np.nan)
