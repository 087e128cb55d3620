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
from predictor.store.columns import HOUR_SECONDS, SLOTS_PER_HOUR, Integers, Pod, PodHours, no_hours
from slacktide.objects import ObjectMeta, OwnerReference, owner_group
from slacktide.objects import Pod as PodObject
from slacktide.tier import Tier

_MILLIS: Final = 1000.0
_LOOK_SECONDS: Final = HOUR_SECONDS + 300
_TEMPLATE_HASH: Final = re.compile(r".+-([bcdfghjklmnpqrstvwxz2456789]{6,10})")
"""Ending of the name of a ReplicaSet that a Deployment made; Kubernetes takes it from this alphabet."""


class _There(NamedTuple):
    """A pod by name on a node in an hour."""

    node: str
    pod: PodName
    hour: int


_Key = tuple[str, PodName]
_ByPod = dict[_Key, Points]
"""Values by slots, by node and pod."""


class _Measure(NamedTuple):
    """(pods, hours): how many slots are known, and their mean and highest, NaN where none is."""

    known: Integers
    mean: Points
    highest: Points


class _Used(NamedTuple):
    cpu: _Measure
    memory: _Measure

    @property
    def known(self) -> Integers:
        """Slots of which something is known."""
        return np.maximum(self.cpu.known, self.memory.known)


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
        names = sorted(key for key in {*cpu, *memory} if tiers.get(key[1], Tier.LS) is Tier.LS)
        used = _Used(*(self._measures(part, names) for part in (cpu, memory)))
        pods: dict[str, tuple[int, Pod]] = {}
        rows: list[tuple[int, int, int]] = []
        for row, hour in np.argwhere(used.known > 0).tolist():
            node, name = names[row]
            uid = uids.get(_There(node, name, self._first_hour + hour))
            if uid is not None:
                pod = Pod(uid, *name, node, groups.get(name, ""), "ls", np.nan, np.nan)
                rows.append((pods.setdefault(uid, (len(pods), pod))[0], row, hour))
        if not rows:
            return no_hours()
        pod_of, row_of, hour_of = np.asarray(rows, dtype=np.int64).T
        return PodHours(
            [pod for _, pod in pods.values()],
            pod_of,
            self._first_hour + hour_of,
            used.known[row_of, hour_of],
            used.cpu.mean[row_of, hour_of] * _MILLIS,
            used.cpu.highest[row_of, hour_of] * _MILLIS,
            used.memory.mean[row_of, hour_of],
            used.memory.highest[row_of, hour_of],
        )

    def _measures(self, part: _ByPod, names: list[_Key]) -> _Measure:
        """Mean and highest of each hour, in the order of `names`."""
        nothing = np.full(self._span.slots, np.nan)
        values = np.stack([part.get(name, nothing) for name in names]) if names else nothing[None, :][:0]
        cut = values.reshape(len(names), self._hours, SLOTS_PER_HOUR)
        known = np.count_nonzero(~np.isnan(cut), axis=2)
        mean = np.nansum(cut, axis=2) / np.maximum(known, 1)
        highest = np.max(np.where(np.isnan(cut), -np.inf, cut), axis=2)
        return _Measure(known, np.where(known, mean, np.nan), np.where(known, highest, np.nan))

    def _by_pod(self, expression: str) -> _ByPod:
        found: _ByPod = {}
        source = self._fetcher.survey.cadvisor
        assert source is not None
        for node, labels, values in self._fetcher.series(expression, source, self._span, SLOT_SECONDS, self._shard):
            key = (node, PodName(labels.get("namespace", ""), labels.get("pod", "")))
            found[key] = np.fmax(found[key], values) if key in found else values
        return found

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
        found = complete(self._fetcher.client.range(expression, start, end, HOUR_SECONDS))
        for row, hour in np.argwhere(~np.isnan(grid(found, start, HOUR_SECONDS, self._hours))).tolist():
            yield found[row].metric, self._first_hour + hour


def group_of(pod: PodName, kind: str, name: str) -> str:
    """Group of a pod by its controller; empty when it has none."""
    if not kind or not name:
        return ""
    made = _TEMPLATE_HASH.fullmatch(name) if kind == "ReplicaSet" else None
    owner = OwnerReference(kind=kind, name=name, controller=True)
    labels = {"pod-template-hash": made[1]} if made else {}
    return owner_group(PodObject(metadata=ObjectMeta(namespace=pod.namespace, labels=labels, owner_references=[owner])))
