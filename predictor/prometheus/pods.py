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
from predictor.prometheus.answers import Points, complete, grid
from predictor.prometheus.fetch import Fetcher, Shard
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
        columns = _Columns(self._first_hour)
        for node, name in sorted({*cpu, *memory}):
            if tiers.get(name, Tier.LS) is Tier.LS:
                hours = self._known(node, name, uids)
                if hours:
                    group = groups.get(name, "")
                    used = [self._cut(part.get((node, name))) for part in (cpu, memory)]
                    columns.add(name, node, group, hours, used[0] * 1000.0, used[1])
        return columns.done()

    def _known(self, node: str, name: PodName, uids: dict[_There, str]) -> dict[int, str]:
        """UID of a pod by hour of the span, in the hours in which it is sure."""
        found = {hour: uids.get(_There(node, name, self._first_hour + hour), "") for hour in range(self._hours)}
        return {hour: uid for hour, uid in found.items() if uid}

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
        for labels, hour in self._hourly(q.POD_INFO, 'uid!=""', (q.STATES_NODE, *q.BY_POD, "uid")):
            name = PodName(labels.get("namespace", ""), labels.get("pod", ""))
            found[_There(labels.get(q.STATES_NODE, ""), name, hour)].add(labels["uid"])
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
        told = q.state(metric, self._fetcher.states(None), _LOOK_SECONDS, matcher)
        expression = f"group by ({', '.join(by)}) ({told})"
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

    def __init__(self, first_hour: int) -> None:
        self._first_hour = first_hour
        self._pods: dict[str, tuple[int, Pod]] = {}
        self._rows: list[tuple[float, ...]] = []

    def add(self, name: PodName, node: str, group: str, hours: dict[int, str], cpu: Points, memory: Points) -> None:
        """Hours of a name on a node: UID by hour, (hours, slots of an hour) millicores and bytes."""
        known = np.count_nonzero(~np.isnan(cpu) | ~np.isnan(memory), axis=1)
        measures = np.stack([*_mean_and_highest(cpu), *_mean_and_highest(memory)], axis=1).tolist()
        for hour, uid in hours.items():
            if known[hour]:
                pod = Pod(uid, *name, node, group, "ls", np.nan, np.nan)
                place, _ = self._pods.setdefault(uid, (len(self._pods), pod))
                self._rows.append((place, self._first_hour + hour, known[hour], *measures[hour]))

    def done(self) -> PodHours:
        """All rows as columns."""
        if not self._rows:
            return no_hours()
        table = np.asarray(self._rows, dtype=np.float64).T
        pods = [pod for _, pod in self._pods.values()]
        return PodHours(pods, *(part.astype(np.int64) for part in table[:3]), *table[3:])


def _mean_and_highest(values: Points) -> tuple[Points, Points]:
    """(hours,) of (hours, slots of an hour), NaN where no slot is known."""
    known = np.count_nonzero(~np.isnan(values), axis=1)
    mean = np.nansum(values, axis=1) / np.maximum(known, 1)
    highest = np.max(np.where(np.isnan(values), -np.inf, values), axis=1)
    return np.where(known, mean, np.nan), np.where(known, highest, np.nan)
