"""Makes pods go: asks the Eviction API, and kills where memory is an emergency. Never on the control thread.

`want` puts the newest list of victims into a mailbox of one; what is not in it is not done any more. Two threads work
on it, since neither may wait for the other: *evictor* talks to the API, *killer* to the kernel. What became of it
stands in `view()`, which the next snapshot carries, so that policies see it.

    the API says           outcome       then
    200, 201               SENT          done; an alarm when the pod outlives its grace period and a margin
    404, 409 (uid)         GONE          done: no other pod of that name is ever meant
    429, budget            BLOCKED       the policy takes another one; this one again after retryAfter or a while
    429, busy              RETRY         nobody is asked for before retryAfter
    500, several budgets   REFUSED       people are told; another one
    400, 403, 422          REFUSED       the same
    409, 5xx               RETRY         the same pod again, with growing pauses; REFUSED after `retries`
    no answer              UNREACHABLE   all wait, with growing pauses; then the same pod again

A list is void when nobody renewed it for `expiry_seconds`, and when it was made before the last eviction was known
and does not name that pod: its gap may be closed by now. Budgets are looked at once more before each call.

A killed pod is evicted with its UID as soon as the API takes it, for `follow_seconds`, so that its containers do not
start again here (koordinator#728: killing containers of a pod with restartPolicy Always is a loop).

Observing only, or for Outcome.DRY, nothing is sent and nobody is told but the audit and the log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Final, Protocol

from msgspec import Meta

from agent.act.eviction_log import EvictionLog, pod_of
from agent.eviction import Attempt, EvictorView, Outcome, Victim, Way
from agent.policy.evict import EvictSettings
from agent.policy.kill import KillSettings
from agent.policy.victims import DEFAULT_GRACE_SECONDS, spent_within
from agent.snapshot import PodIdentity
from slacktide.cluster.errors import ApiError, ClusterError, Conflict, ServerError, TooManyRequests, Unauthorized
from slacktide.cluster.evict import Eviction
from slacktide.cluster.evict import Outcome as ApiOutcome
from slacktide.cluster.retry import Backoff
from slacktide.errors import Gone, KernelError, Refused
from slacktide.objects import Pod
from slacktide.observe import get_logger
from slacktide.settings import Settings

_LOG: Final = get_logger("agent.evictor")
_IDLE_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 3.0
_FORGET_SECONDS: Final = 120.0
_OLD_VIEW: Final = EvictorView()

_OUTCOMES: Final = {
    ApiOutcome.EVICTED: Outcome.SENT,
    ApiOutcome.BLOCKED: Outcome.BLOCKED,
    ApiOutcome.THROTTLED: Outcome.RETRY,
    ApiOutcome.SEVERAL_BUDGETS: Outcome.REFUSED,
    ApiOutcome.BUDGET_BROKEN: Outcome.REFUSED,
    ApiOutcome.GONE: Outcome.GONE,
    ApiOutcome.UID_MISMATCH: Outcome.GONE,
    ApiOutcome.CONFLICT: Outcome.RETRY,
    ApiOutcome.NAMESPACE_TERMINATING: Outcome.GONE,
}


class EvictorSettings(Settings, frozen=True, kw_only=True):
    """How pods are made to go; who and how many is up to the policies."""

    backoff_seconds: Annotated[float, Meta(ge=0.05, le=60, description="first pause after a failed call")] = 1.0
    backoff_max_seconds: Annotated[float, Meta(ge=0.1, le=600, description="longest pause after a failed call")] = 30.0
    retries: Annotated[int, Meta(ge=1, le=100, description="failures in a row before a pod counts as refused")] = 5
    expiry_seconds: Annotated[float, Meta(ge=1, le=600, description="a list of victims nobody renews is void")] = 10.0
    margin_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="an evicted pod may outlive its grace period by this")
    ] = 15.0
    kill_seconds: Annotated[float, Meta(ge=0.1, le=60, description="a kill may take this long")] = 2.0
    follow_seconds: Annotated[
        float, Meta(ge=1, le=86_400, description="how long eviction of a killed pod is tried")
    ] = 600.0
    audit_bytes: Annotated[int, Meta(ge=65_536, le=1 << 30, description="bound of the audit file")] = 8 << 20


class EvictionApi(Protocol):
    """The two calls of the cluster client that are needed."""

    def evict(self, pod: Pod) -> Eviction:
        """Ask for this very pod, with its own grace period. Raises ClusterError."""

    def version(self) -> object:
        """The cheapest way to see whether the API is there. Raises ClusterError."""


Killer = Callable[[Victim, float], object]
"""Kills all processes of the victim's cgroup, its inode verified just before, within so many seconds.

Raises Gone where that cgroup is not there any more, Refused where some live on, other KernelErrors for a plain no.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many pods may go. `going_max` at a time; the others an hour."""

    evictions_max: int
    going_max: int
    kills_max: int


def bounds_of(evict: EvictSettings, kill: KillSettings) -> Bounds:
    """The bounds that the policies keep to."""
    return Bounds(evictions_max=evict.max_per_hour, going_max=evict.max_concurrent, kills_max=kill.max_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mail:
    """A list of victims, when it came, what its maker knew, and the pods of the node by UID."""

    victims: tuple[Victim, ...] = ()
    at: float = 0.0
    seen: int = 0
    pods: Mapping[str, PodIdentity] = field(default_factory=dict)


@dataclass(slots=True)
class _Tries:
    """Failures of one pod in a row, and when it may be tried again."""

    backoff: Backoff
    failures: int = 0
    next_at: float = 0.0


class Evictor:
    """See the module. `dry_run` says before each act whether it is only to be said."""

    def __init__(
        self,
        api: EvictionApi,
        kill: Killer,
        log: EvictionLog,
        settings: Callable[[], EvictorSettings],
        bounds: Callable[[], Bounds],
        *,
        dry_run: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float],
    ) -> None:
        self._api = api
        self._kill = kill
        self._log = log
        self._settings = settings
        self._bounds = bounds
        self._dry_run = dry_run
        self._clock = clock
        self._jitter = jitter
        self._news = threading.Condition()
        self._mail = _Mail(at=clock())
        self._posted = 0
        self._stop = threading.Event()
        self._tries: dict[str, _Tries] = {}
        self._api_backoff = self._new_backoff()
        self._api_next_at = 0.0
        self._follow: dict[str, tuple[Victim, float]] = {}
        self._frozen: dict[str, Victim] = {}
        self._overdue: set[str] = set()
        self._expired_at = -1.0
        self._stale_at = -1.0
        self._threads = [
            threading.Thread(target=self._run, args=(step,), name=name, daemon=True)
            for name, step in (("evictor", self.step), ("killer", self.kill_step))
        ]

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both; one that waits for the API is left behind."""
        with self._news:
            self._stop.set()
            self._news.notify_all()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def want(self, victims: tuple[Victim, ...], pods: Mapping[str, PodIdentity], view: EvictorView | None) -> None:
        """The pods that shall go now, decided with `view` at hand; `pods` are all of this node by UID. Never blocks."""
        mail = _Mail(victims=victims, at=self._clock(), seen=(view or _OLD_VIEW).serial, pods=pods)
        with self._news:
            self._mail = mail
            self._posted += 1
            if victims or self._frozen:
                self._news.notify_all()

    def view(self) -> EvictorView:
        """What was done so far."""
        return self._log.view(self._frozen, dry=self._dry_run())

    def _run(self, step: Callable[[], float]) -> None:
        while not self._stop.is_set():
            posted = self._posted
            try:
                pause = step()
            except Exception:  # noqa: BLE001 - the one guard around a thread's work; logged and counted
                self._log.counters["eviction_errors"] += 1
                _LOG.exception("the evictor failed in a way nobody foresaw; it goes on")
                pause = _IDLE_SECONDS
            with self._news:
                self._news.wait_for(partial(self._is_news, posted), pause)

    def _is_news(self, posted: int) -> bool:
        return self._stop.is_set() or self._posted != posted

    def step(self) -> float:
        """What the thread *evictor* does about the newest list; returns how long it may rest then, in seconds."""
        mail = self._mail
        now = self._clock()
        self._log.forget(mail.pods, _FORGET_SECONDS)
        self._tries = {uid: tries for uid, tries in self._tries.items() if uid in mail.pods or tries.next_at > now}
        self._report_frozen(mail)
        self._alarm(mail)
        for victim in self._due(mail):
            if self._stop.is_set() or (self._mail is not mail and victim.uid not in self._follow):
                return 0.0
            if self._clock() >= self._api_next_at:
                self._evict(victim)
        self._probe()
        return self._rest()

    def kill_step(self) -> float:
        """What the thread *killer* does about the newest list; returns how long it may rest then, in seconds."""
        mail = self._mail
        if self._void(mail):
            return _IDLE_SECONDS
        for victim in mail.victims:
            if victim.way is Way.KILL and self._fresh(victim, mail):
                self._kill_now(victim)
        return _IDLE_SECONDS

    def _due(self, mail: _Mail) -> list[Victim]:
        """Whom to ask the API for now: killed pods first, then the list, if it still holds."""
        now = self._clock()
        for uid, (_, until) in list(self._follow.items()):
            if now >= until or (mail.pods and uid not in mail.pods):
                self._follow.pop(uid, None)
        asked = [victim for victim, _ in list(self._follow.values())]
        if not self._void(mail):
            follows = {victim.uid for victim in asked}
            asked += [one for one in mail.victims if one.way is Way.EVICT and one.uid not in follows]
        return [one for one in asked if self._may_try(one, mail, now)]

    def _may_try(self, victim: Victim, mail: _Mail, now: float) -> bool:
        tries = self._tries.get(victim.uid)
        if now < self._api_next_at or (tries is not None and now < tries.next_at):
            return False
        return victim.uid in self._follow or self._fresh(victim, mail)

    def _fresh(self, victim: Victim, mail: _Mail) -> bool:
        """Whether the list's maker knew how the last attempt on this pod ended, and wants it all the same."""
        last, serial = self._log.last(victim)
        if last is None or last.outcome in {Outcome.RETRY, Outcome.UNREACHABLE}:
            return True
        return last.outcome not in {Outcome.SENT, Outcome.GONE} and mail.seen >= serial

    def _void(self, mail: _Mail) -> bool:
        """Whether the list is too old to be acted on."""
        if self._clock() - mail.at > self._settings().expiry_seconds:
            if mail.victims and self._expired_at != mail.at:
                self._expired_at = mail.at
                self._log.counters["evictions_expired"] += 1
                _LOG.warning("nobody renewed the list of victims: it is void", victims=len(mail.victims))
            return True
        serial, uid = self._log.last_begun()
        if mail.seen >= serial or any(victim.uid == uid for victim in mail.victims):
            return False
        if mail.victims and self._stale_at != mail.at:
            self._stale_at = mail.at
            self._log.counters["evictions_stale"] += 1
        return True

    def _evict(self, victim: Victim) -> None:
        dry = self._dry_run()
        follows = victim.uid in self._follow
        if not follows and not self._in_budget(victim, dry=dry):
            return
        if dry:
            self._follow.pop(victim.uid, None)
            self._log.reserve(victim, dry=True)
            self._log.attempted(victim, Outcome.DRY, "observing only, nothing was sent")
            return
        entry = None if follows else self._log.reserve(victim, dry=False)
        began = self._clock()
        outcome, detail, retry_after = self._ask(victim, began)
        if entry is not None and outcome not in {Outcome.SENT, Outcome.UNREACHABLE}:
            self._log.release(entry)
        outcome, detail = self._after(victim, outcome, detail, retry_after)
        self._log.attempted(victim, outcome, detail, retry_after_seconds=retry_after, began=began)

    def _ask(self, victim: Victim, began: float) -> tuple[Outcome, str, float | None]:
        """One call of the Eviction API: outcome, what it said, and how long it asks us to wait."""
        try:
            answer = self._api.evict(pod_of(victim))
        except ApiError as error:
            self._answered()
            later = isinstance(error, (ServerError, TooManyRequests, Unauthorized, Conflict))
            return (Outcome.RETRY if later else Outcome.REFUSED), str(error), error.retry_after
        except ClusterError as error:
            self._silent(began, str(error))
            return Outcome.UNREACHABLE, str(error), None
        self._answered()
        outcome = _OUTCOMES[answer.outcome]
        if answer.outcome is ApiOutcome.THROTTLED:
            self._api_next_at = self._clock() + (answer.retry_after or self._api_backoff.next())
        return (
            outcome,
            "" if outcome is Outcome.SENT else f"{answer.outcome.value}: {answer.message}",
            answer.retry_after,
        )

    def _after(self, victim: Victim, outcome: Outcome, detail: str, retry_after: float | None) -> tuple[Outcome, str]:
        """When this pod may be tried again; one that failed too often in a row is refused."""
        now = self._clock()
        if outcome in {Outcome.SENT, Outcome.GONE}:
            self._tries.pop(victim.uid, None)
            self._follow.pop(victim.uid, None)
            return outcome, detail
        tries = self._tries.setdefault(victim.uid, _Tries(self._new_backoff()))
        if outcome is Outcome.UNREACHABLE:
            return outcome, detail
        tries.failures += 1
        tries.next_at = now + max(retry_after or 0.0, tries.backoff.next())
        if outcome is Outcome.RETRY and tries.failures >= self._settings().retries:
            tries.failures = 0
            return Outcome.REFUSED, f"given up after {self._settings().retries} tries: {detail}"
        return outcome, detail

    def _in_budget(self, victim: Victim, *, dry: bool) -> bool:
        """The bounds once more, with what is known now; a drill has its own, kept by the policy."""
        bounds, now = self._bounds(), self._clock()
        spent = [one for one in self._log.spent(dry=dry) if one.uid != victim.uid]
        if victim.way is Way.KILL:
            fits = spent_within(spent, now, {Way.KILL}) < bounds.kills_max
        else:
            hour = 0 if victim.drill else spent_within(spent, now, {Way.EVICT})
            fits = hour < bounds.evictions_max and self._going(dry=dry) < bounds.going_max
        if not fits:
            self._log.counters["evictions_over_budget"] += 1
        return fits

    def _going(self, *, dry: bool) -> int:
        """Pods that we evicted and that are still going within their time."""
        begun = {Outcome.SENT, Outcome.DRY} if dry else {Outcome.SENT}
        pods = self._mail.pods
        return sum(
            one.way is Way.EVICT and one.outcome in begun and one.uid in pods and not self._late(one, pods[one.uid])
            for one in self._log.attempts()
        )

    def _late(self, attempt: Attempt, identity: PodIdentity) -> bool:
        grace = DEFAULT_GRACE_SECONDS if identity.grace_seconds is None else identity.grace_seconds
        return self._clock() - attempt.at >= grace + self._settings().margin_seconds

    def _kill_now(self, victim: Victim) -> None:
        dry = self._dry_run()
        if not self._in_budget(victim, dry=dry):
            return
        entry = self._log.reserve(victim, dry=dry)
        if dry:
            self._log.attempted(victim, Outcome.DRY, "observing only, nobody was killed")
            return
        began = self._clock()
        detail = "its processes were killed"
        try:
            self._kill(victim, self._settings().kill_seconds)
        except Refused as error:
            # Signals were sent, and what is stuck in the kernel ends when it can: a second victim would be innocent.
            detail = str(error)
        except KernelError as error:
            self._log.release(entry)
            self._log.attempted(victim, Outcome.GONE if isinstance(error, Gone) else Outcome.REFUSED, str(error))
            return
        self._log.attempted(victim, Outcome.SENT, detail, began=began)
        self._log.tell(victim, "Warning", "SlacktideKilled", f"Killed for lack of memory: {victim.reason}")
        until = self._clock() + self._settings().follow_seconds
        self._follow[victim.uid] = (_as_eviction(victim), until)
        with self._news:
            self._posted += 1
            self._news.notify_all()

    def _report_frozen(self, mail: _Mail) -> None:
        """Freezing is the executor's; here it is counted and told. A list that nobody renews says nothing about it."""
        if self._clock() - mail.at > self._settings().expiry_seconds:
            return
        wanted = {victim.uid: victim for victim in mail.victims if victim.way is Way.FREEZE}
        dry = self._dry_run()
        for uid in wanted.keys() - self._frozen.keys():
            self._frozen[uid] = wanted[uid]
            self._note_freeze(wanted[uid], "frozen", "freezes", "SlacktideFrozen", dry=dry)
        for uid in self._frozen.keys() - wanted.keys():
            self._note_freeze(self._frozen.pop(uid), "thawed", "thaws", "SlacktideThawed", dry=dry)

    def _note_freeze(self, victim: Victim, outcome: str, counter: str, reason: str, *, dry: bool) -> None:
        if dry:
            self._log.write(victim, Outcome.DRY.value, f"would be {outcome}")
            return
        self._log.counters[counter] += 1
        self._log.write(victim, outcome)
        self._log.tell(
            victim, "Warning" if outcome == "frozen" else "Normal", reason, f"{outcome.capitalize()}: {victim.reason}"
        )

    def _alarm(self, mail: _Mail) -> None:
        """Say once which evicted pods are still there after their time; they are not hit again."""
        self._overdue &= mail.pods.keys()
        for attempt in self._log.attempts():
            identity = mail.pods.get(attempt.uid)
            if attempt.way is not Way.EVICT or attempt.outcome is not Outcome.SENT or identity is None:
                continue
            if attempt.uid in self._overdue or not self._late(attempt, identity):
                continue
            self._overdue.add(attempt.uid)
            self._log.counters["evictions_overdue"] += 1
            victim = _named(identity, f"still here {self._clock() - attempt.at:.0f} s after it was evicted")
            self._log.write(victim, "overdue")
            self._log.tell(victim, "Warning", "SlacktideEvictionOverdue", f"This pod is {victim.reason}")

    def _probe(self) -> None:
        """While the API is silent, ask it something harmless, so that its return is seen."""
        began = self._clock()
        if not self._log.api_away or began < self._api_next_at or self._dry_run():
            return
        try:
            self._api.version()
        except ApiError:
            self._answered()
        except ClusterError as error:
            self._silent(began, str(error))
        else:
            self._answered()

    def _answered(self) -> None:
        self._api_backoff.reset()
        self._api_next_at = 0.0
        self._log.api_answered()

    def _silent(self, began: float, why: str) -> None:
        self._api_next_at = self._clock() + self._api_backoff.next()
        self._log.api_silent(began, why)

    def _new_backoff(self) -> Backoff:
        settings = self._settings()
        return Backoff(settings.backoff_seconds, settings.backoff_max_seconds, self._jitter)

    def _rest(self) -> float:
        now = self._clock()
        soon = [tries.next_at for tries in self._tries.values()] + [self._api_next_at]
        return min([_IDLE_SECONDS] + [at - now for at in soon if at > now])


def _as_eviction(victim: Victim) -> Victim:
    """The eviction that follows a kill."""
    reason = f"it was killed, so that it does not start again here: {victim.reason}"
    return replace(victim, way=Way.EVICT, reason=reason)


def _named(identity: PodIdentity, reason: str) -> Victim:
    return Victim(
        namespace=identity.namespace,
        name=identity.name,
        uid=identity.uid,
        group="",
        way=Way.EVICT,
        reason=reason,
    )
