"""A gang at one moment: its rules, its pods, and how far each of them has come."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from scheduler_plugins.framework.interfaces import Handle, WaitingPod
from scheduler_plugins.framework.status import Reason
from scheduler_plugins.plugins.gang_book import GangBook
from scheduler_plugins.plugins.gang_group import MEMBERS, GangId, Member, gang_of
from scheduler_plugins.plugins.gang_rules import Rules, rules_of
from slacktide.cluster.kinds import PODS

TOO_FEW = "gang has fewer pods than it needs"
TOO_FEW_FREE = "too many pods of the gang are kept out"


@dataclass(frozen=True, slots=True)
class GangNow:
    """`members` are all pods that are not leaving, `waiting` those that wait at Permit for the plugin.

    `going` are the uids of those that are on a node or being bound.
    """

    gang: GangId
    rules: Rules
    members: Sequence[Member]
    waiting: Sequence[WaitingPod]
    going: Collection[str]

    def placed_beside(self, uid: str) -> int:
        """How many pods other than that one hold a place."""
        waits = sum(1 for one in self.waiting if one.pod.uid != uid)
        return waits + len(self.going) - (uid in self.going)

    @property
    def placed(self) -> int:
        """How many pods hold a place: bound, being bound, or waiting."""
        return len(self.waiting) + len(self.going)

    @property
    def complete(self) -> bool:
        """Whether its minimum holds places."""
        return self.placed >= self.rules.minimum

    def able(self, unfit: Collection[str] = ()) -> list[Member]:
        """Pods that are placed or could be tried; not those of `unfit`, which fitted nowhere."""
        return [one for one in self.members if one.able and (one.placed or one.uid not in unfit)]

    def pending(self) -> list[Member]:
        """Pods that hold no place."""
        waits = {one.pod.uid for one in self.waiting}
        return [one for one in self.members if one.uid not in waits and one.uid not in self.going]

    @property
    def age(self) -> tuple[int, str, GangId]:
        """Sorts gangs: higher priority first, then the older one."""
        priority = max((one.pod.spec.priority or 0 for one in self.members), default=0)
        return (-priority, self.rules.created, self.gang)

    def too_few(self) -> Reason | None:
        """Why the minimum cannot be reached with the pods that there are."""
        minimum, there = self.rules.minimum, len(self.members)
        if there < minimum:
            return Reason(TOO_FEW, f"gang {self.gang.key} has {there}, its minimum is {minimum}")
        free = len(self.able())
        if free < minimum:
            detail = f"gang {self.gang.key} has {there}, {there - free} of them kept out, its minimum is {minimum}"
            return Reason(TOO_FEW_FREE, detail)
        return None


def waiting_of(handle: Handle, gang: GangId, plugin: str) -> list[WaitingPod]:
    """Pods of the gang that wait at Permit for `plugin`."""
    return [one for one in handle.waiting.all() if gang_of(one.pod) == gang and plugin in one.pending()]


def look(handle: Handle, book: GangBook, gang: GangId, plugin: str) -> GangNow | str | None:
    """None while the object that rules the gang is not there; text says why its rules cannot be read."""
    members = members_of(handle, gang)
    rules = rules_of(gang, members, handle.objects)
    if not isinstance(rules, Rules):
        return rules
    released = book.released(gang)
    going = frozenset(one.uid for one in members if one.placed or one.uid in released)
    waiting = [one for one in waiting_of(handle, gang, plugin) if one.pod.uid not in going]
    return GangNow(gang, rules, members, waiting, going)


def members_of(handle: Handle, gang: GangId) -> list[Member]:
    """Pods of the gang that are not leaving."""
    return [one for one in handle.objects.indexed(PODS, MEMBERS, gang) if not one.leaving]
