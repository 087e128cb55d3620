"""What the evictor did, in every form in which people and policies see it: attempts, audit, events, counters, log.

Used by both threads of the evictor, under one lock, in which the disk is written as well. The control thread only
takes `view`, which waits for nobody: what is known is put there as one value. Events are kept until the API answers,
since what was done while it was away is what people most want to know.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from agent.act.audit import Audit, AuditLine
from agent.act.ledger import Ledger
from agent.eviction import Attempt, EvictorView, Outcome, Spent, Victim, Way
from agent.policy.victims import HOUR
from slacktide.objects import ObjectMeta, Pod
from slacktide.observe import get_logger

_LOG: Final = get_logger("agent.evictor")
_DETAIL_CHARACTERS: Final = 500
_UNREPORTED: Final = 200

EventType = Literal["Normal", "Warning"]

COUNTED: Final = {
    "evictions": "Pods that the API took for eviction.",
    "evictions_of_drills": "Those of them that a drill asked for.",
    "evictions_gone": "Pods that were gone before they were evicted.",
    "evictions_blocked": "Evictions that a PodDisruptionBudget forbade.",
    "evictions_refused": "Evictions that the API refused for good.",
    "evictions_retried": "Evictions that the API asked to try later, or failed at.",
    "evictions_unreachable": "Evictions that got no answer.",
    "evictions_dry_run": "Evictions and kills that were only said.",
    "evictions_over_budget": "Evictions held back by the evictor's own look at the budget.",
    "evictions_expired": "Lists of victims that nobody renewed in time.",
    "evictions_stale": "Lists of victims made before the last eviction was known.",
    "evictions_overdue": "Evicted pods that were still there after their grace period.",
    "eviction_events_lost": "Events dropped while the API was away.",
    "eviction_errors": "Errors of the evictor that nobody foresaw.",
    "kills": "Pods whose processes were killed for lack of memory.",
    "kills_failed": "Kills that did not work.",
    "freezes": "Pods that were frozen while the API was away.",
    "thaws": "Pods that were thawed.",
}
"""Counters of the evictor and what they count."""

_COUNTER: Final = {
    Outcome.SENT: "evictions",
    Outcome.GONE: "evictions_gone",
    Outcome.BLOCKED: "evictions_blocked",
    Outcome.REFUSED: "evictions_refused",
    Outcome.RETRY: "evictions_retried",
    Outcome.UNREACHABLE: "evictions_unreachable",
    Outcome.DRY: "evictions_dry_run",
}

_EVENT: Final[Mapping[Outcome, tuple[EventType, str, str]]] = {
    Outcome.SENT: ("Warning", "SlacktideEvicted", "Evicted for the pods that must answer: {reason}"),
    Outcome.BLOCKED: ("Normal", "SlacktideEvictionBlocked", "Would be evicted, {detail}: {reason}"),
    Outcome.REFUSED: ("Warning", "SlacktideEvictionRefused", "Cannot be evicted, {detail}: {reason}"),
}


class Recorder(Protocol):
    """Takes events; `slacktide.cluster.EventRecorder`."""

    def record(self, involved: Pod, type_: EventType, reason: str, message: str) -> None:
        """Queue one event about a pod; returns at once."""


def pod_of(victim: Victim) -> Pod:
    """The pod as far as the API needs it: by name, and by UID so that no other of that name is meant."""
    return Pod(metadata=ObjectMeta(namespace=victim.namespace, name=victim.name, uid=victim.uid))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What a view is made of. `spent_dry` counts dry runs as well."""

    attempts: tuple[Attempt, ...] = ()
    spent: tuple[Spent, ...] = ()
    spent_dry: tuple[Spent, ...] = ()
    away_since: float | None = None
    serial: int = 0


class EvictionLog:
    """Thread-safe. `counters` has the names of COUNTED."""

    def __init__(
        self,
        recorder: Recorder,
        audit: Audit,
        ledger: Ledger,
        boot_id: str,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._recorder = recorder
        self._audit = audit
        self._ledger = ledger
        self._boot_id = boot_id
        self._clock = clock
        self._wall = wall
        self._lock = threading.RLock()
        self._attempts: dict[tuple[str, Way], Attempt] = {}
        self._serials: dict[tuple[str, Way], int] = {}
        self._serial = 0
        self._begun: tuple[int, str] = (0, "")
        self._away_since: float | None = None
        self._unreported: deque[tuple[Victim, EventType, str, str]] = deque(maxlen=_UNREPORTED)
        self.counters: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self._known = _Known()
        self._publish()

    def view(self, frozen: Collection[str], *, dry: bool) -> EvictorView:
        """What the next snapshot carries. Never waits, also while the disk does not answer."""
        known, now = self._known, self._clock()
        return EvictorView(
            attempts=tuple(one for one in known.attempts if dry or one.outcome is not Outcome.DRY),
            spent=tuple(one for one in (known.spent_dry if dry else known.spent) if now - one.at < HOUR),
            frozen=frozenset(frozen),
            api_away_seconds=None if known.away_since is None else now - known.away_since,
            serial=known.serial,
        )

    def _publish(self) -> None:
        """Under the lock, after each change."""
        self._known = _Known(
            attempts=tuple(self._attempts.values()),
            spent=self._ledger.spent(),
            spent_dry=self._ledger.spent(dry=True),
            away_since=self._away_since,
            serial=self._serial,
        )

    def last(self, victim: Victim) -> tuple[Attempt | None, int]:
        """The last attempt on a victim in its way, and its serial."""
        with self._lock:
            key = (victim.uid, victim.way)
            return self._attempts.get(key), self._serials.get(key, 0)

    def last_begun(self) -> tuple[int, str]:
        """Serial and UID of the last attempt after which a pod goes."""
        with self._lock:
            return self._begun

    def attempts(self) -> tuple[Attempt, ...]:
        """The last attempt of each pod and way."""
        with self._lock:
            return tuple(self._attempts.values())

    def forget(self, here: Collection[str], age_seconds: float) -> None:
        """Drop attempts on pods that are not `here` any more, some time after."""
        with self._lock:
            old = [
                key
                for key, one in self._attempts.items()
                if one.uid not in here and self._clock() - one.at >= age_seconds
            ]
            for key in old:
                del self._attempts[key], self._serials[key]
            if old:
                self._publish()

    def spent(self, *, dry: bool) -> tuple[Spent, ...]:
        """What counts against the budgets."""
        with self._lock:
            return self._ledger.spent(dry=dry)

    def reserve(self, victim: Victim, *, dry: bool) -> Spent:
        """Count a victim before it is tried."""
        with self._lock:
            entry = Spent(uid=victim.uid, at=self._clock(), way=victim.way, drill=victim.drill)
            self._ledger.reserve(entry, keep=not dry)
            self._publish()
            return entry

    def release(self, entry: Spent) -> None:
        """It was not sent."""
        with self._lock:
            self._ledger.release(entry)
            self._publish()

    def attempted(
        self,
        victim: Victim,
        outcome: Outcome,
        detail: str = "",
        *,
        retry_after_seconds: float | None = None,
        began: float | None = None,
    ) -> Attempt:
        """One attempt: remembered, counted, audited, and told where people should know."""
        with self._lock:
            now = self._clock()
            before = self._attempts.get((victim.uid, victim.way))
            attempt = Attempt(
                uid=victim.uid,
                way=victim.way,
                outcome=outcome,
                at=now,
                detail=detail[:_DETAIL_CHARACTERS],
                retry_after_seconds=retry_after_seconds,
                drill=victim.drill,
            )
            self._serial += 1
            self._attempts[victim.uid, victim.way] = attempt
            self._serials[victim.uid, victim.way] = self._serial
            if outcome in {Outcome.SENT, Outcome.GONE, Outcome.DRY}:
                self._begun = (self._serial, victim.uid)
            self._count(attempt)
            self._publish()
            # The same failure again is one line in the log of the first: an API that is away is away for all.
            repeated = before is not None and before.outcome is outcome and outcome is Outcome.UNREACHABLE
            if not repeated:
                self.write(victim, outcome.value, attempt.detail, attempt=attempt, began=began)
            if outcome in _EVENT and victim.way is Way.EVICT:
                type_, reason, text = _EVENT[outcome]
                self.tell(victim, type_, reason, text.format(reason=victim.reason, detail=attempt.detail))
            return attempt

    def _count(self, attempt: Attempt) -> None:
        if attempt.way is Way.KILL and attempt.outcome is not Outcome.DRY:
            self.counters["kills" if attempt.outcome is Outcome.SENT else "kills_failed"] += 1
            return
        self.counters[_COUNTER[attempt.outcome]] += 1
        if attempt.drill and attempt.outcome is Outcome.SENT:
            self.counters["evictions_of_drills"] += 1

    def write(
        self,
        victim: Victim,
        outcome: str,
        detail: str = "",
        *,
        attempt: Attempt | None = None,
        began: float | None = None,
    ) -> None:
        """One audit line and one log line."""
        with self._lock:
            now = self._clock()
            self._audit.append(
                AuditLine(
                    at=now,
                    wall=self._wall(),
                    boot_id=self._boot_id,
                    namespace=victim.namespace,
                    name=victim.name,
                    uid=victim.uid,
                    way=victim.way,
                    outcome=outcome,
                    reason=victim.reason,
                    group=victim.group,
                    detail=detail,
                    numbers=dict(victim.numbers),
                    drill=victim.drill,
                    retry_after_seconds=attempt.retry_after_seconds if attempt else None,
                    seconds=None if began is None else round(now - began, 4),
                )
            )
        _LOG.info(
            "victim",
            pod=f"{victim.namespace}/{victim.name}",
            way=victim.way.value,
            outcome=outcome,
            reason=victim.reason,
            detail=detail,
        )

    def tell(self, victim: Victim, type_: EventType, reason: str, message: str) -> None:
        """An event on the pod, now or when the API answers again."""
        with self._lock:
            if self._away_since is None:
                self._recorder.record(pod_of(victim), type_, reason, message)
                return
            if len(self._unreported) == _UNREPORTED:
                self.counters["eviction_events_lost"] += 1
            self._unreported.append((victim, type_, reason, message))

    def api_answered(self) -> None:
        """The API is there: what waits is told."""
        with self._lock:
            if self._away_since is None:
                return
            _LOG.info("the API answers again", seconds=round(self._clock() - self._away_since, 1))
            self._away_since = None
            self._publish()
            while self._unreported:
                victim, type_, reason, message = self._unreported.popleft()
                self._recorder.record(pod_of(victim), type_, reason, message)

    def api_silent(self, since: float, why: str) -> None:
        """No answer to a call that began at `since`."""
        with self._lock:
            if self._away_since is None:
                self._away_since = since
                self._publish()
                _LOG.warning("the API does not answer", reason=why)

    @property
    def api_away(self) -> bool:
        """Whether the last call got no answer."""
        return self._away_since is not None
