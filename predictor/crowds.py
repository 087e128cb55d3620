"""Which LS pods came and went, pass after pass: what newcomers and roll-outs are judged by."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from predictor.bound import Bound, LsPod
from predictor.newcomers import NOBODY, Crowd, Leaver, Newcomers, newcomers
from slacktide.forecast import Amount

_NOTHING: Final = Amount(cpu_millis=0, memory_bytes=0)
_LONGEST_SECONDS: Final = 3600.0
"""Whoever left longer ago is in no peak that counts."""

_GROUP_SECONDS: Final = 7 * 86400.0
"""A group of which no pod was seen for this long is unknown again."""


class PodUses(Protocol):
    """What the samples say of pods (predictor.fleet)."""

    def pod_use(self, uid: str) -> tuple[int | None, int | None] | None:
        """CPU and memory of a pod in the newest sample of its node; None when that does not name it."""
        ...

    def group_peak(self, group: str) -> tuple[int | None, int | None]:
        """Highest CPU and memory of one pod of a group; None per part when it is not known."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """When a pass judges: wall time, the age from which a pod is known, and the end of the newest slot that the peaks
    rest on (None: there are none): who left before it is in them no more."""

    wall: float
    young_seconds: float
    peaks_at: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Gone:
    """A pod that the API no longer has; `use` is the last that was seen of it, `at` when it was missed (wall time)."""

    uid: str
    group: str
    use: Amount
    at: float


class Crowds:
    """Follows the LS pods of all nodes. For the one thread of the forecast pass."""

    def __init__(self, uses: PodUses) -> None:
        self._uses = uses
        self._bound: Mapping[str, Bound] | None = None
        self._before: dict[str, tuple[LsPod, ...]] = {}
        self._gone: dict[str, list[_Gone]] = {}
        self._groups: dict[str, tuple[float, float]] = {}
        self._peaks: dict[str, Amount] = {}
        self._peaks_at: float | None = None
        self._calm: dict[str, tuple[tuple[LsPod, ...], object]] = {}
        self._bases: dict[str, dict[str, Amount]] = {}
        self._most: dict[str, dict[str, Amount]] = {}

    def follow(self, bound: Mapping[str, Bound], moment: Moment) -> None:
        """Take the pods of a pass."""
        if moment.peaks_at != self._peaks_at:
            self._peaks_at, self._peaks = moment.peaks_at, {}
            for one in bound.values():
                self._note_groups(one.pods, moment.wall)
        if bound is not self._bound:
            self._follow(bound, moment.wall)
        self._let_go(moment)

    def _follow(self, bound: Mapping[str, Bound], wall: float) -> None:
        self._bound = bound
        for node in self._before.keys() | bound.keys():
            before, now = self._before.get(node, ()), bound[node].pods if node in bound else ()
            if before is not now:
                self._changed(node, before, now, wall)
        self._before = {node: one.pods for node, one in bound.items()}
        self._calm = {node: calm for node, calm in self._calm.items() if node in bound}
        self._bases = {node: bases for node, bases in self._bases.items() if node in bound}
        self._most = {node: most for node, most in self._most.items() if node in bound}

    def newcomers(self, node: str, bound: Bound, listed: object, peak: Amount, moment: Moment) -> Newcomers:
        """What to add for the newcomers on one node, of which `peak` is expected.

        `listed` is the same object while its samples name the same pods. Where nobody was new, nobody is as long as
        the API and the samples have the same pods.
        """
        if not bound.pods:
            return NOBODY
        calm = self._calm.get(node)
        if calm is not None and calm[0] is bound.pods and calm[1] is listed:
            return NOBODY
        crowd = Crowd(
            bound=bound.pods,
            leavers=self._leavers(node, bound, moment.peaks_at),
            use=self._use,
            group_peak=lambda group: self._group_peak(group, moment),
            peak=peak,
            base=self._bases_of(node, bound, peak).get,
            most=self._most_of(node, bound).get,
        )
        found = newcomers(crowd, moment.wall, moment.young_seconds)
        if found is NOBODY:
            self._calm[node] = (bound.pods, listed)
            self._bases.pop(node, None)
            self._most.pop(node, None)
        return found

    def _bases_of(self, node: str, bound: Bound, peak: Amount) -> dict[str, Amount]:
        """The peak of the node when each of its pods was first seen while somebody there was new."""
        before = self._bases.get(node, {})
        self._bases[node] = {pod.uid: before.get(pod.uid, peak) for pod in bound.pods}
        return self._bases[node]

    def _most_of(self, node: str, bound: Bound) -> dict[str, Amount]:
        """Highest use that was seen of each pod while somebody there was new."""
        before = self._most.get(node, {})
        self._most[node] = {pod.uid: _higher(before.get(pod.uid, _NOTHING), self._use(pod.uid)) for pod in bound.pods}
        return self._most[node]

    def _changed(self, node: str, before: tuple[LsPod, ...], now: tuple[LsPod, ...], wall: float) -> None:
        uids = {pod.uid for pod in now}
        left = [
            _Gone(pod.uid, pod.group, self._use(pod.uid) or _NOTHING, wall)
            for pod in before
            if pod.group and pod.uid not in uids
        ]
        if left:
            self._gone.setdefault(node, []).extend(left)
        self._note_groups(now, wall)

    def _note_groups(self, pods: Iterable[LsPod], wall: float) -> None:
        for pod in pods:
            if pod.group and pod.started is not None:
                since = min(pod.started, self._groups.get(pod.group, (pod.started, wall))[0])
                self._groups[pod.group] = (since, wall)

    def _leavers(self, node: str, bound: Bound, peaks_at: float | None) -> list[Leaver]:
        leavers = []
        for pod in bound.pods:
            if pod.leaving and pod.group:
                use = self._use(pod.uid) or _NOTHING
                leavers.append(Leaver(pod.group, use, use))
        for one in self._gone.get(node, ()):
            counts = peaks_at is None or one.at > peaks_at
            leavers.append(Leaver(one.group, self._use(one.uid) or _NOTHING, one.use if counts else _NOTHING))
        return leavers

    def _use(self, uid: str) -> Amount | None:
        found = self._uses.pod_use(uid)
        return None if found is None else Amount(cpu_millis=found[0], memory_bytes=found[1])

    def _group_peak(self, group: str, moment: Moment) -> Amount | None:
        """What pods of a group are known to need, once one of them was seen that is old enough to know it."""
        since, _ = self._groups.get(group, (moment.wall, moment.wall))
        if moment.wall - since < moment.young_seconds:
            return None
        if group not in self._peaks:
            cpu, memory = self._uses.group_peak(group)
            self._peaks[group] = Amount(cpu_millis=cpu, memory_bytes=memory)
        return self._peaks[group]

    def _let_go(self, moment: Moment) -> None:
        """Forget pods that are neither in the peaks nor in a sample any more, and groups that nobody is of."""
        since = moment.wall - _LONGEST_SECONDS if moment.peaks_at is None else moment.peaks_at
        for node in list(self._gone):
            kept = [one for one in self._gone[node] if one.at > since or self._use(one.uid) is not None]
            if kept:
                self._gone[node] = kept
            else:
                del self._gone[node]
        old = [group for group, (_, seen) in self._groups.items() if moment.wall - seen > _GROUP_SECONDS]
        for group in old:
            del self._groups[group]


def _higher(one: Amount, other: Amount | None) -> Amount:
    if other is None:
        return one
    return Amount(
        cpu_millis=max(one.cpu_millis or 0, other.cpu_millis or 0),
        memory_bytes=max(one.memory_bytes or 0, other.memory_bytes or 0),
    )
