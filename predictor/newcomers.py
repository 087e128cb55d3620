"""LS pods of which too little is known: what to keep for them beside the node's peak and its use. Pure.

A pod is a newcomer while it is younger than `young_seconds`, or while no sample names it. The peak knows nothing of
it, and its use says nothing yet. It counts with its request, or, when pods of its group have a history, with the
highest use that is known of one of them; never with less than it uses.

The peak learns of a newcomer bit by bit, and its use would count twice if all of it were added to a peak that has some
of it. So what counts is the peak as it was when the first of the newcomers came, and what all of them add to that.

A roll-out replaces pods of a group by others of it. What goes is in the peak and in the newest sample still, what comes
would be added to it, and the workload would count twice (Koordinator issue 1906). So within a group what is known of
pods that leave is taken off what newcomers add: the larger of the two counts, once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from predictor.bound import LsPod
from slacktide.forecast import Amount

Field = Literal["cpu_millis", "memory_bytes"]

_FIELDS: Final[tuple[Field, Field]] = ("cpu_millis", "memory_bytes")
_NOTHING: Final = Amount(cpu_millis=0, memory_bytes=0)
_UNKNOWN: Final = Amount()


class Leaver(NamedTuple):
    """An LS pod that ends or has ended: its use as far as the newest sample, and as far as the peak, still has it."""

    group: str
    in_now: Amount
    in_peak: Amount


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Newcomers:
    """What to add for newcomers: to the peak of now, and to the use of the newest sample; `count` pods."""

    beyond_peak: Amount = _NOTHING
    beyond_now: Amount = _NOTHING
    count: int = 0


NOBODY: Final = Newcomers()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """The LS pods of one node.

    bound       pods that the API has there; those that are leaving are passed over
    leavers     pods that leave or have left
    use         use of a pod in the newest sample, by uid; None for one that it does not name
    group_peak  highest use that is known of one pod of a group, None when too little is
    peak        what is expected of the node now
    base        what was expected when a pod came, by uid; None for one that was there before anybody looked
    most        highest use that was ever seen of a pod, by uid, so that it is not forgotten when a sample leaves it out
    """

    bound: Iterable[LsPod]
    leavers: Iterable[Leaver]
    use: Callable[[str], Amount | None]
    group_peak: Callable[[str], Amount | None]
    peak: Amount = _UNKNOWN
    base: Callable[[str], Amount | None] = lambda _: None
    most: Callable[[str], Amount | None] = lambda _: None


class _Newcomer(NamedTuple):
    uid: str
    group: str
    expected: Amount
    used: Amount


def newcomers(crowd: Crowd, wall: float, young_seconds: float) -> Newcomers:
    """Judge the pods of one node at `wall`, in seconds since the epoch."""
    found = [one for pod in crowd.bound if (one := _newcomer(pod, crowd, wall, young_seconds)) is not None]
    if not found:
        return NOBODY
    leavers = list(crowd.leavers)
    return Newcomers(
        beyond_peak=_amount(lambda field: _beyond_peak(found, leavers, crowd, field)),
        beyond_now=_amount(lambda field: _beyond_now(found, leavers, field)),
        count=len(found),
    )


def _newcomer(pod: LsPod, crowd: Crowd, wall: float, young_seconds: float) -> _Newcomer | None:
    if pod.leaving:
        return None
    use = crowd.use(pod.uid)
    if use is not None and pod.started is not None and wall - pod.started >= young_seconds:
        return None
    known = (crowd.group_peak(pod.group) if pod.group else None) or Amount()
    used = use or _NOTHING
    most = crowd.most(pod.uid) or _NOTHING

    def expected(field: Field) -> int:
        peak: int | None = getattr(known, field)
        return max(_of(used, field), _of(most, field), _of(pod.requested, field) if peak is None else peak)

    return _Newcomer(pod.uid, pod.group, _amount(expected), used)


def _beyond_peak(found: list[_Newcomer], leavers: list[Leaver], crowd: Crowd, field: Field) -> int:
    expected = [(one.group, _of(one.expected, field)) for one in found]
    added = _counted_once(expected, [(one.group, _of(one.in_peak, field)) for one in leavers])
    peak: int | None = getattr(crowd.peak, field)
    bases: list[int | None] = [getattr(crowd.base(one.uid) or crowd.peak, field) for one in found]
    known = [base for base in bases if base is not None]
    if peak is None or len(known) < len(bases):
        return added
    # A base above the peak of now is out of date: without newcomers no more can be expected than with them.
    return max(0, min(*known, peak) + added - peak)


def _beyond_now(found: list[_Newcomer], leavers: list[Leaver], field: Field) -> int:
    added = [(one.group, _of(one.expected, field) - _of(one.used, field)) for one in found]
    return _counted_once(added, [(one.group, _of(one.in_now, field)) for one in leavers])


def _counted_once(added: list[tuple[str, int]], gone: list[tuple[str, int]]) -> int:
    """What newcomers add, group by group, less what leavers of the same group have in the base already."""
    sums: dict[str, int] = {}
    credit: dict[str, int] = {}
    for group, amount in added:
        sums[group] = sums.get(group, 0) + amount
    for group, amount in gone:
        credit[group] = credit.get(group, 0) + amount
    # Pods that nothing controls have no group in common, though all of them carry the empty name.
    return sum(max(0, amount - (credit.get(group, 0) if group else 0)) for group, amount in sums.items())


def _amount(of: Callable[[Field], int]) -> Amount:
    return Amount(cpu_millis=of(_FIELDS[0]), memory_bytes=of(_FIELDS[1]))


def _of(amount: Amount, field: Field) -> int:
    value: int | None = getattr(amount, field)
    return value or 0
