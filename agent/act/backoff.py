"""When a value may be written once more: fights over a knob, and writes that the kernel refuses.

*Drift* is a value of ours that someone else changed. It is put back at once; when the same knob drifts again and again,
two writers fight, and the pauses grow, so that neither node nor log is flooded. A pause only ever delays the *same*
value: what a policy newly wants is written at once, so no cut is withheld. Pauses are jittered, since two agents of
this kind in step would never end. Pure but for its state; time comes with each call.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

from agent.act.journal import Key
from agent.capabilities import Value

AT_ONCE: Final = 3
"""Drifts in a row that are put back without a pause: a restart of the kubelet with a reload of systemd makes two."""
FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 60.0
CALM_SECONDS: Final = 30.0
"""A value that held this long was not fought over: the kubelet's own period is 60 s."""
REMARK_SECONDS: Final = 600.0
"""Single drifts of one knob are told no more often than this."""


@dataclass(slots=True)
class _Drift:
    count: int = 0
    pending: bool = False
    wrote: Value | None = None
    wrote_at: float = 0.0
    until: float = 0.0
    told_at: float | None = None
    fighting: bool = False


@dataclass(slots=True)
class _Refusal:
    target: Value | None
    count: int = 1
    until: float = 0.0


class Backoff:
    """State by knob of a cgroup. `random` gives 0 to 1. Not thread-safe: the executor owns it."""

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._drifts: dict[Key, _Drift] = {}
        self._refusals: dict[Key, _Refusal] = {}
        self.drifts = 0
        self.fights = 0

    @property
    def fighting(self) -> int:
        """Knobs that are fought over now."""
        return sum(drift.fighting for drift in self._drifts.values())

    def fought(self, key: Key) -> bool:
        """Whether this knob is fought over now."""
        drift = self._drifts.get(key)
        return drift is not None and drift.fighting

    def drifted(self, key: Key, what: str, now: float) -> str:
        """A look found a value that is not ours any more. Returns what is to be told, mostly nothing.

        `what` says in words what was found.
        """
        drift = self._drifts.setdefault(key, _Drift())
        if drift.pending:
            return ""
        drift.pending = True
        again = drift.count > 0 and now - drift.wrote_at <= CALM_SECONDS
        drift.count = drift.count + 1 if again else 1
        self.drifts += 1
        self.fights += again
        drift.until = now
        if drift.count > AT_ONCE:
            drift.until += self._pause(drift.count - AT_ONCE)
            if not drift.fighting:
                drift.fighting, drift.told_at = True, now
                return (
                    f"{what}, {drift.count} times in a row: someone fights over it; ours is put back at longer pauses"
                )
        elif drift.told_at is None or now - drift.told_at > REMARK_SECONDS:
            drift.told_at = now
            return what
        return ""

    def steady(self, key: Key, now: float) -> str:
        """A look found our value. Returns what is to be told: the end of a fight."""
        drift = self._drifts.get(key)
        if drift is None:
            return ""
        drift.pending = False
        if not drift.fighting or now - drift.wrote_at <= CALM_SECONDS:
            return ""
        drift.fighting, drift.count = False, 0
        return f"{key[0]}: {key[1].value} stays as we set it: the fight is over"

    def ready(self, key: Key, target: Value | None, now: float) -> bool:
        """Whether this value may be written now."""
        drift, refusal = self._drifts.get(key), self._refusals.get(key)
        if drift is not None and drift.pending and target == drift.wrote and now < drift.until:
            return False
        return refusal is None or target != refusal.target or now >= refusal.until

    def wrote(self, key: Key, target: Value | None, now: float) -> None:
        """The kernel took it."""
        self._refusals.pop(key, None)
        drift = self._drifts.setdefault(key, _Drift())
        drift.pending, drift.wrote, drift.wrote_at = False, target, now

    def refused(self, key: Key, target: Value | None, now: float) -> None:
        """The kernel refused it. The first retry is the next round's, later ones wait."""
        refusal = self._refusals.get(key)
        if refusal is None or refusal.target != target:
            self._refusals[key] = _Refusal(target, until=now)
            return
        refusal.until = now + self._pause(refusal.count)
        refusal.count += 1

    def keep(self, groups: Container[str]) -> None:
        """Forget all groups but these."""
        self._drifts = {key: drift for key, drift in self._drifts.items() if key[0] in groups}
        self._refusals = {key: refusal for key, refusal in self._refusals.items() if key[0] in groups}

    def _pause(self, number: int) -> float:
        longest: float = min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(number - 1, 16))
        return longest * (0.5 + self._random() / 2)
