"""Which pods are on this node, as far as the agent cares: identities by UID, never forgetting too early.

The list of the API is joined with the cgroups that exist: a pod that the API no longer has keeps its identity as long
as its cgroup is there (its last use must not count as SYSTEM), and an API that is away, or that answers with an
empty list, takes nothing away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from agent.snapshot import ContainerIdentity, PodIdentity
from slacktide import quantity
from slacktide.errors import QuantityError
from slacktide.evictable import CONFIG_MIRROR, is_evictable
from slacktide.forecast import Amount
from slacktide.kernel.kubepods import container_id
from slacktide.objects import Container, Pod, Quantity, epoch_seconds, is_terminal, is_terminating
from slacktide.resources import CPU, MEMORY, limits_of, requests_of
from slacktide.rivals import agent_in
from slacktide.settings import ResourceNames
from slacktide.tier import Tier, tier_of

_CONFIG_HASH: Final = "kubernetes.io/config.hash"


class PodSource(Protocol):
    """Where pods come from: an informer in real life."""

    @property
    def synced(self) -> bool:
        """Whether a whole list was received at least once."""

    def items(self) -> tuple[Pod, ...]:
        """The pods of this node as last known."""


def identity_of(pod: Pod, names: ResourceNames) -> PodIdentity:
    """What matters of `pod`. A quantity that cannot be read makes its amounts unknown, not 0."""
    meta = pod.metadata
    bare = PodIdentity(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        tier=tier_of(pod, frozenset({names.cpu, names.memory})),
        priority=pod.spec.priority or 0,
        created_at=epoch_seconds(meta.creation_timestamp),
        terminating=is_terminating(pod) or is_terminal(pod),
        grace_seconds=_grace(pod),
        evictable=is_evictable(pod),
        containers=_containers(pod, names),
        rival=agent_in(pod),
    )
    try:
        plain, limits = requests_of(pod), limits_of(pod)
    except QuantityError:
        return bare
    asked, sold = _requested(plain, CPU, MEMORY), _requested(plain, names.cpu, names.memory)
    return replace(
        bare,
        requested=sold if bare.tier is Tier.BE else asked,
        cpu_request_millis=max(0, plain.get(CPU, 0)),
        cpu_limit_millis=_whole_limit(pod, limits, CPU),
        memory_limit_bytes=_whole_limit(pod, limits, MEMORY),
        batch_only=bool(sold.cpu_millis or sold.memory_bytes)
        and not any(amounts.get(name) for amounts in (plain, limits) for name in (CPU, MEMORY)),
        batch_limit=Amount(
            cpu_millis=_whole_limit(pod, limits, names.cpu), memory_bytes=_whole_limit(pod, limits, names.memory)
        ),
    )


def cgroup_uid(pod: Pod) -> str:
    """UID that names the pod's cgroup: its own, or for the mirror of a static pod the hash of its manifest.

    Source: kubernetes pkg/kubelet/types/pod_update.go (annotations kubernetes.io/config.mirror and config.hash).
    """
    annotations = pod.metadata.annotations
    manifest = annotations.get(_CONFIG_HASH, "") if CONFIG_MIRROR in annotations else ""
    return (manifest or pod.metadata.uid).lower()


def _grace(pod: Pod) -> float | None:
    """How long it may take to end: what its deletion says, else its spec; None when neither does."""
    stated = pod.metadata.deletion_grace_period_seconds
    return pod.spec.termination_grace_period_seconds if stated is None else stated


def _requested(amounts: Mapping[str, int], cpu: str, memory: str) -> Amount:
    return Amount(cpu_millis=max(0, amounts.get(cpu, 0)), memory_bytes=max(0, amounts.get(memory, 0)))


def _containers(pod: Pod, names: ResourceNames) -> tuple[ContainerIdentity, ...]:
    """All containers; a limit without a request is its own request, as in the API."""
    ids = _ids(pod)
    return tuple(
        ContainerIdentity(
            name=container.name,
            id=ids.get(container.name, ""),
            batch_request=_amount({**container.resources.limits, **container.resources.requests}, names),
            batch_limit=_amount(container.resources.limits, names),
            init=init,
        )
        for container, init in _all(pod)
    )


def _all(pod: Pod) -> list[tuple[Container, bool]]:
    """All containers, and whether each only runs before the others; a sidecar stays and is none of those."""
    inits = [(container, container.restart_policy != "Always") for container in pod.spec.init_containers]
    return [(container, False) for container in pod.spec.containers] + inits


def _ids(pod: Pod) -> dict[str, str]:
    """Container name -> id of the runtime, from `scheme://ID`; what is no id of a known form is left out."""
    found = {}
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        leaf = status.container_id.rpartition("://")[2]
        if container_id(leaf) == leaf:
            found[status.name] = leaf
    return found


def _amount(amounts: Mapping[str, Quantity], names: ResourceNames) -> Amount:
    return Amount(cpu_millis=_count(amounts.get(names.cpu)), memory_bytes=_count(amounts.get(names.memory)))


def _count(source: Quantity | None) -> int | None:
    """An amount in whole units; None for one that is not stated, cannot be read, or is not above 0 (0 is no limit).

    A part of a unit cannot be meant: batch-cpu counts millicores, so `200m` is a slip for 200, and the 1 that the API
    makes of it would hold the pod to nothing (volcano#4625).
    """
    if source is None:
        return None
    try:
        amount = quantity.parse(source)
    except QuantityError:
        return None
    count = amount.value()
    return count if count > 0 and amount.is_whole else None


def _whole_limit(pod: Pod, limits: Mapping[str, int], name: str) -> int | None:
    """The limit of the pod as a whole, None where any container has none: the sum would not bound that one."""
    own = pod.spec.resources
    stated = own is not None and name in own.limits
    if not stated and not all(_count(container.resources.limits.get(name)) for container, _ in _all(pod)):
        return None
    limit = limits.get(name, 0)
    return limit if limit > 0 else None


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
            uid = cgroup_uid(pod)
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
            uid = cgroup_uid(pod)
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
