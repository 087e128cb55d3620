"""What happened to gangs lately that neither the API nor the pods that wait at Permit show.

Only what is under way: an entry means something only together with the pods that the API has now, so one that is left
over does no harm, and a process that starts anew begins with none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from scheduler_plugins.framework.queued import backoff_duration
from scheduler_plugins.plugins.gang_group import GangId, Member

_FIRST_SECONDS: Final = 1.0
_LONGEST_SECONDS: Final = 10.0
_FIRST_SWEEP: Final = 64


@dataclass(slots=True)
class _Lately:
    """One gang.

    `released`: allowed to bind and not yet seen on a node; `rejected`: told to give its place back; `unfit`: fitted
    nowhere when it was tried last; `kept_out`: not let into the queue. `failures` rounds in a row failed; until
    `rests_until` (monotonic seconds) nobody tries again, and `asked` says that somebody wants to after it. `lacking`:
    resources of which there was not enough.
    """

    released: set[str] = field(default_factory=set)
    rejected: set[str] = field(default_factory=set)
    unfit: set[str] = field(default_factory=set)
    kept_out: set[str] = field(default_factory=set)
    failures: int = 0
    rests_until: float = 0.0
    asked: bool = False
    lacking: frozenset[str] = frozenset()


class GangBook:
    """Thread safe: pods are tried on one thread, undone on others. `members` has the pods of a gang in the API."""

    def __init__(self, members: Callable[[GangId], Collection[Member]], backoff_seconds: float) -> None:
        self._members = members
        self._backoff_seconds = backoff_seconds
        self._lock = threading.Lock()
        self._gangs: dict[GangId, _Lately] = {}
        self._sweep_at = _FIRST_SWEEP

    def __len__(self) -> int:
        return len(self._gangs)

    def keep_out(self, gang: GangId, uid: str) -> None:
        """The pod is not let into the queue."""
        with self._lock:
            self._of(gang).kept_out.add(uid)

    def enters(self, gang: GangId, uid: str) -> bool:
        """The pod is let into the queue; whether others were kept out."""
        with self._lock:
            known = self._gangs.get(gang)
            if known is None:
                return False
            known.kept_out.discard(uid)
            return bool(known.kept_out)

    def let_in(self, gang: GangId) -> Collection[str]:
        """Pods that were kept out when they were asked for last; they are not, from now on."""
        with self._lock:
            known = self._gangs.get(gang)
            kept_out = frozenset(known.kept_out) if known else frozenset()
            if known is not None:
                known.kept_out.clear()
            return kept_out

    def release(self, gang: GangId, uids: Iterable[str]) -> None:
        """These pods are allowed to bind: the gang is complete, and starts afresh should it ever fail again."""
        with self._lock:
            lately = self._of(gang)
            on_nodes = {member.uid for member in self._members(gang) if not member.placed}
            lately.released &= on_nodes
            lately.released.update(uids)
            lately.unfit.clear()
            lately.failures, lately.rests_until, lately.asked, lately.lacking = 0, 0.0, False, frozenset()

    def take_back(self, gang: GangId, uids: Iterable[str]) -> None:
        """These pods were not allowed after all."""
        with self._lock:
            self._of(gang).released.difference_update(uids)

    def released(self, gang: GangId) -> Collection[str]:
        """Pods that were allowed to bind. Of those that the API has without a node each is being bound now."""
        with self._lock:
            known = self._gangs.get(gang)
            return frozenset(known.released) if known else frozenset()

    def reject(self, gang: GangId, uids: Iterable[str]) -> None:
        """These pods are being told to give their places back."""
        with self._lock:
            self._of(gang).rejected.update(uids)

    def undone(self, gang: GangId, uid: str) -> bool:
        """The pod lost its place. True if that is news for the gang: it was not told to, and had not been allowed."""
        with self._lock:
            lately = self._of(gang)
            told, allowed = uid in lately.rejected, uid in lately.released
            lately.rejected.discard(uid)
            lately.released.discard(uid)
            return not (told or allowed)

    def unfit(self, gang: GangId, uid: str) -> Collection[str]:
        """The pod fits nowhere; all of which that is known."""
        with self._lock:
            lately = self._of(gang)
            lately.unfit.add(uid)
            return frozenset(lately.unfit)

    def all_unfit(self, gang: GangId) -> Collection[str]:
        """Pods that fitted nowhere when they were tried last."""
        with self._lock:
            known = self._gangs.get(gang)
            return frozenset(known.unfit) if known else frozenset()

    def tried(self, gang: GangId, uid: str) -> bool:
        """The pod is tried again; whether it was unfit before."""
        with self._lock:
            known = self._gangs.get(gang)
            if known is None or uid not in known.unfit:
                return False
            known.unfit.discard(uid)
            return True

    def failed(self, gang: GangId, now: float) -> float:
        """A round of the gang failed; seconds for which it rests: 1, 2, 4, 8, 10, or what the arguments say if more."""
        with self._lock:
            lately = self._of(gang)
            lately.failures += 1
            rest = max(backoff_duration(lately.failures, _FIRST_SECONDS, _LONGEST_SECONDS), self._backoff_seconds)
            lately.rests_until = now + rest
            return rest

    def ask(self, gang: GangId) -> None:
        """Somebody wants to try the gang again as soon as it has rested."""
        with self._lock:
            self._of(gang).asked = True

    def rested(self, gang: GangId, now: float) -> bool:
        """Whether the gang has rested and somebody has asked for that: then nobody counts as unfit any more."""
        with self._lock:
            known = self._gangs.get(gang)
            if known is None or known.rests_until > now or not known.asked:
                return False
            known.asked = False
            known.unfit.clear()
            return True

    def rests(self, gang: GangId, now: float) -> float:
        """Seconds until the gang may be tried again; 0 when it may."""
        with self._lock:
            known = self._gangs.get(gang)
            return max(0.0, known.rests_until - now) if known else 0.0

    def lacks(self, gang: GangId, resources: frozenset[str]) -> None:
        """What there was not enough of when the gang was looked at last; nothing when there was."""
        with self._lock:
            if resources or gang in self._gangs:
                self._of(gang).lacking = resources

    def lacking(self, gang: GangId) -> frozenset[str]:
        """What `lacks` said last."""
        with self._lock:
            known = self._gangs.get(gang)
            return known.lacking if known else frozenset()

    def _of(self, gang: GangId) -> _Lately:
        known = self._gangs.get(gang)
        if known is None:
            if len(self._gangs) >= self._sweep_at:
                self._gangs = {one: lately for one, lately in self._gangs.items() if self._members(one)}
                self._sweep_at = 2 * len(self._gangs) + _FIRST_SWEEP
            known = self._gangs[gang] = _Lately()
        return known
