"""Who has to go first, who is already going, and how few are enough. Pure; *evict* and *kill* share it.

Candidates are BE pods that live, may be evicted and are not barred. The lowest priority goes first; a pod whose use
is not known comes after those of its priority whose use is (kubernetes#123591: absence is not guilt); one whose use
is exactly 0 is no candidate, since its end helps nobody (systemd#35270, oomd 5d730e5). Then *evict* takes the newest,
which loses the least work, and *kill* the largest, since its gap cannot wait.

A pod whose end has begun counts as released until its grace period and a margin are over (kubernetes#41032, #43166;
koordinator#3137; oomd e9e97ae). One that is still there after that is counted as what it is, in use, and it is not
hit again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from agent.eviction import Attempt, EvictorView, Outcome, Spent, Way
from agent.snapshot import NodeSnapshot, PodSnapshot
from slacktide.tier import Tier

HOUR: Final = 3600.0
DEFAULT_GRACE_SECONDS: Final = 30.0
"""Grace period of a pod that states none (Kubernetes' default)."""

NOTHING_DONE: Final = EvictorView()
_BEGUN: Final = frozenset({Outcome.SENT, Outcome.GONE})

Measure = Callable[[PodSnapshot], int | None]
"""How much of something a pod has; None is not known."""


def cpu_use(pod: PodSnapshot) -> int | None:
    """Millicores that it uses."""
    return pod.usage.cpu_millis


def memory_use(pod: PodSnapshot) -> int | None:
    """Working set in bytes: what comes back at once, page cache left out (volcano#5333)."""
    return pod.usage.memory_bytes


def cpu_request(pod: PodSnapshot) -> int | None:
    """Millicores of batch CPU that it asked for."""
    return pod.identity.requested.cpu_millis


def candidates(snapshot: NodeSnapshot, barred: Collection[str] = ()) -> tuple[PodSnapshot, ...]:
    """BE pods that may be made to go; one without UID never came from the API and cannot be named safely."""
    return tuple(
        pod
        for pod in snapshot.pods_of(Tier.BE)
        if pod.identity.uid
        and pod.identity.evictable
        and not pod.identity.terminating
        and pod.identity.uid not in barred
    )


def newest_first(pods: Iterable[PodSnapshot], use: Measure) -> tuple[PodSnapshot, ...]:
    """By priority, then known before unknown use, then newest; an age that is not known counts as old."""
    return tuple(sorted(pods, key=lambda pod: (*_class_of(pod, use), -(pod.identity.created_at or 0.0), _uid(pod))))


def largest_first(pods: Iterable[PodSnapshot], use: Measure) -> tuple[PodSnapshot, ...]:
    """By priority, then known before unknown use, then most use."""
    return tuple(sorted(pods, key=lambda pod: (*_class_of(pod, use), -(use(pod) or 0), _uid(pod))))


def _class_of(pod: PodSnapshot, use: Measure) -> tuple[int, bool]:
    return pod.identity.priority, use(pod) is None


def _uid(pod: PodSnapshot) -> str:
    return pod.identity.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """One pod of a choice: what it frees (None: to be measured), and what those before it free together."""

    pod: PodSnapshot
    frees: int | None
    before: int


def choose(ranked: Sequence[PodSnapshot], gap: int, *, frees: Measure, use: Measure, most: int) -> tuple[Pick, ...]:
    """The first pods of `ranked` that together free `gap`, at most `most`.

    Pods that use or free exactly nothing are passed over. After one whose share is not known the choice ends: what
    it freed has to be seen first.
    """
    picks: list[Pick] = []
    freed = 0
    for pod in ranked:
        if freed >= gap or len(picks) >= most:
            break
        share = frees(pod)
        if share == 0 or use(pod) == 0:
            continue
        picks.append(Pick(pod=pod, frees=share, before=freed))
        if share is None:
            break
        freed += share
    return tuple(picks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A pod whose end began at `since` (monotonic), by whoever's doing."""

    uid: str
    since: float


def leaving(snapshot: NodeSnapshot, earlier: Iterable[Leaving]) -> tuple[Leaving, ...]:
    """Pods that are here and going. `earlier` is the last answer: it remembers when each was first seen to go."""
    known = {one.uid: one.since for one in earlier}
    begun = {attempt.uid: attempt.at for attempt in begun_attempts(snapshot)}
    return tuple(
        Leaving(uid=pod.identity.uid, since=begun.get(pod.identity.uid, known.get(pod.identity.uid, snapshot.at)))
        for pod in snapshot.pods
        if pod.identity.terminating or pod.identity.uid in begun
    )


def credited(
    snapshot: NodeSnapshot, going: Iterable[Leaving], margin_seconds: float, most_seconds: float
) -> tuple[PodSnapshot, ...]:
    """Pods among `going` that count as released: for their grace period and a margin, at most `most_seconds`."""
    since = {one.uid: one.since for one in going}
    return tuple(
        pod
        for pod in snapshot.pods
        if pod.identity.uid in since
        and snapshot.at - since[pod.identity.uid] < _credit(pod, margin_seconds, most_seconds)
    )


def _credit(pod: PodSnapshot, margin_seconds: float, most_seconds: float) -> float:
    grace = pod.identity.grace_seconds
    return min(most_seconds, (DEFAULT_GRACE_SECONDS if grace is None else grace) + margin_seconds)


def begun_attempts(snapshot: NodeSnapshot) -> tuple[Attempt, ...]:
    """Attempts after which the pod goes; one of a dry run counts as if it did, within its own drill only."""
    drill = snapshot.drill.id if snapshot.drill else ""
    return tuple(
        attempt
        for attempt in (snapshot.evictor or NOTHING_DONE).attempts
        if attempt.way is not Way.FREEZE
        and (attempt.outcome in _BEGUN or (attempt.outcome is Outcome.DRY and attempt.drill in {"", drill}))
    )


def barred(snapshot: NodeSnapshot, blocked_seconds: float, refused_seconds: float) -> frozenset[str]:
    """Pods not to be asked for now: those that were sent away, and those that the API protects for a while."""
    found = set()
    for attempt in (snapshot.evictor or NOTHING_DONE).attempts:
        age = snapshot.at - attempt.at
        blocked = max(blocked_seconds, attempt.retry_after_seconds or 0.0)
        if (
            (attempt.outcome in _BEGUN and attempt.way is not Way.FREEZE)
            or (attempt.outcome is Outcome.BLOCKED and age < blocked)
            or (attempt.outcome is Outcome.REFUSED and age < refused_seconds)
        ):
            found.add(attempt.uid)
    return frozenset(found)


def spent_within(spent: Iterable[Spent], now: float, ways: Collection[Way], *, drill: str = "") -> int:
    """How many of `ways` count against the budget of the hour before `now`, for one drill or (empty) in earnest.

    An entry of the future (a clock that went back) counts.
    """
    return sum(now - one.at < HOUR for one in spent if one.way in ways and one.drill == drill)


def described(pod: PodSnapshot) -> tuple[tuple[str, str], ...]:
    """The figures of a pod that decide its rank, for the audit line."""
    identity = pod.identity
    return (
        ("priority", str(identity.priority)),
        ("created_at", words(None if identity.created_at is None else round(identity.created_at))),
        ("cpu_millis", words(cpu_use(pod))),
        ("memory_bytes", words(memory_use(pod))),
        ("requested_cpu_millis", words(cpu_request(pod))),
    )


def words(value: int | None) -> str:
    """A number, or `unknown`."""
    return "unknown" if value is None else str(value)
