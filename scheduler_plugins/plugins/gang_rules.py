"""What binds a gang: its minimum, how long its pods wait for each other, what it needs; from its object or its pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_plugins.framework.interfaces import ObjectStore
from scheduler_plugins.plugins.gang_group import (
    LONGEST_SECONDS,
    MIN_MEMBERS,
    GangId,
    Member,
)
from scheduler_plugins.plugins.kinds import POD_GROUPS, SIGS_POD_GROUPS, SigsPodGroup
from slacktide.errors import QuantityError
from slacktide.resources import amounts_of


@dataclass(frozen=True, slots=True)
class Rules:
    """`minimum` pods are placed together or none; `timeout_seconds` is None where the gang states none.

    `needs` must be free in the whole cluster before the first is placed (`cpu` in millicores, else whole units).
    `created` is text that sorts by time: the older gang goes first.
    """

    minimum: int
    timeout_seconds: float | None = None
    needs: Mapping[str, int] = field(default_factory=dict)
    created: str = ""


def rules_of(gang: GangId, members: Sequence[Member], objects: ObjectStore) -> Rules | str | None:
    """None while the object that rules the gang is not there; text says why its rules cannot be read.

    `members` are those that are not leaving.
    """
    if gang.stated:
        return _from_pods(gang, members)
    if gang.of_sigs:
        group = objects.get(SIGS_POD_GROUPS, gang.namespace, gang.name)
        return None if group is None else _from_sigs(gang, group)
    stock = objects.get(POD_GROUPS, gang.namespace, gang.name)
    if stock is None:
        return None
    created = stock.metadata.creation_timestamp or ""
    policy = stock.spec.scheduling_policy.gang
    if policy is None:
        return Rules(1, created=created)
    if policy.min_count < 1:
        return f"minCount of PodGroup {gang.key} is {policy.min_count}; it must be 1 or more"
    return Rules(policy.min_count, created=created)


def _from_sigs(gang: GangId, group: SigsPodGroup) -> Rules | str:
    spec = group.spec
    if spec.min_member < 1:
        return f"minMember of PodGroup {gang.key} is {spec.min_member}; it must be 1 or more"
    try:
        needs = amounts_of(spec.min_resources)
    except QuantityError as error:
        return f"minResources of PodGroup {gang.key}: {error}"
    seconds = spec.schedule_timeout_seconds
    return Rules(
        spec.min_member,
        float(min(seconds, LONGEST_SECONDS)) if seconds is not None and seconds > 0 else None,
        {name: amount for name, amount in needs.items() if amount > 0},
        group.metadata.creation_timestamp or "",
    )


def _from_pods(gang: GangId, members: Sequence[Member]) -> Rules | str:
    """The largest of what the pods state that can take part.

    So while a minimum is being changed pod by pod, the stricter one holds, and a pod that is kept out decides nothing.
    """
    able = [member for member in members if member.able]
    minimum = max((member.minimum or 0 for member in able), default=0)
    if not minimum:
        return f"no pod of gang {gang.key} that could be placed states {MIN_MEMBERS}"
    created = min((member.pod.metadata.creation_timestamp or "" for member in members), default="")
    timeout = max(member.timeout or 0 for member in able)
    return Rules(minimum, float(timeout) if timeout else None, created=created)
