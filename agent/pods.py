"""Which pods are on this node, as far as the agent cares: identities by UID, never forgetting too early.

The list of the API is joined with the cgroups that exist: a pod that the API no longer has keeps its identity as long
as its cgroup is there (its last use must not count as SYSTEM), and an API that is away, or that answers with an
empty list, takes nothing away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from agent.snapshot import PodIdentity
from slacktide.errors import QuantityError
from slacktide.forecast import Amount
from slacktide.objects import Pod, is_terminal
from slacktide.resources import batch_request, limits_of, requests_of
from slacktide.settings import ResourceNames
from slacktide.tier import Tier, tier_of


class PodSource(Protocol):
    """Where pods come from: an informer in real life."""

    @property
    def synced(self) -> bool:
        """Whether a whole list was received at least once."""

    def items(self) -> tuple[Pod, ...]:
        """The pods of this node as last known."""


def identity_of(pod: Pod, names: ResourceNames) -> PodIdentity:
    """What matters of `pod`. A quantity that cannot be read makes its amounts unknown, not 0."""
    tier = tier_of(pod, frozenset({names.cpu, names.memory}))
    meta = pod.metadata
    try:
        plain, limits = requests_of(pod), limits_of(pod)
        plain_amount = Amount(cpu_millis=plain.get("cpu", 0), memory_bytes=plain.get("memory", 0))
        requested = batch_request(pod, names) if tier is Tier.BE else plain_amount
    except QuantityError:
        return PodIdentity(namespace=meta.namespace, name=meta.name, uid=meta.uid, tier=tier)
    return PodIdentity(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        tier=tier,
        requested=requested,
        cpu_request_millis=plain.get("cpu", 0),
        cpu_limit_millis=limits.get("cpu", limits.get(names.cpu)),
    )


class PodBook:
    """Identities by UID, kept between turns. One thread uses it."""

    def __init__(self, source: PodSource, names: ResourceNames) -> None:
        self._source = source
        self._names = names
        self._known: dict[str, PodIdentity] = {}
        self._seen: dict[str, Pod] = {}

    @property
    def synced(self) -> bool:
        """Whether the API has answered at least once since the agent started."""
        return self._source.synced

    def refresh(self, uids_with_cgroup: Iterable[str]) -> Mapping[str, PodIdentity]:
        """Identities now. `uids_with_cgroup` keeps pods alive that the API has dropped."""
        listed = self._source.items() if self._source.synced else ()
        present = set(uids_with_cgroup)
        kept = {uid: identity for uid, identity in self._known.items() if uid in present}
        seen: dict[str, Pod] = {}
        for pod in listed:
            uid = pod.metadata.uid.lower()
            seen[uid] = pod
            if is_terminal(pod) and uid not in present:
                continue
            kept[uid] = self._identity(uid, pod)
        self._known, self._seen = kept, seen
        return kept

    def find(self, uids: Collection[str]) -> Mapping[str, PodIdentity]:
        """Identities of these pods between two refreshes; those that the API does not have are left out."""
        found = {uid: self._known[uid] for uid in uids if uid in self._known}
        seen: dict[str, Pod] = {}
        for pod in self._source.items() if self._source.synced else ():
            uid = pod.metadata.uid.lower()
            if uid in uids:
                found[uid], seen[uid] = self._identity(uid, pod), pod
        self._known, self._seen = self._known | found, self._seen | seen
        return found

    def _identity(self, uid: str, pod: Pod) -> PodIdentity:
        """Of the newest `pod`; one that did not change is not looked at again."""
        known = self._known.get(uid)
        return known if known is not None and self._seen.get(uid) is pod else identity_of(pod, self._names)


def requested_of(identities: Iterable[PodIdentity], tier: Tier) -> Amount:
    """Sum of what the pods of a tier asked for; None where one of them is unknown."""
    cpu: int | None = 0
    memory: int | None = 0
    for identity in identities:
        if identity.tier is tier:
            cpu = _plus(cpu, identity.requested.cpu_millis)
            memory = _plus(memory, identity.requested.memory_bytes)
    return Amount(cpu_millis=cpu, memory_bytes=memory)


def _plus(total: int | None, part: int | None) -> int | None:
    return None if total is None or part is None else total + part
