"""A limit on BE as CPU lists for its pods and containers: what each may use, which CPUs LS has for itself. Pure.

Which CPUs is in `agent.policy.cpuset_choice`. The rules for whom:

- A group never gets a CPU that it was not allowed before. Once it is confined, the kernel shows our list and not
  what it may use, so that is remembered from before; a list that is neither ours nor the one before is somebody
  else's new choice.
- LS whose cpuset is only a part of the node is pinned (kubelet's static CPU manager, or by hand): its CPUs are left
  out of BE's (koordinator 411, 234), unless BE was given the same pool.
- With the static CPU manager (a container has less than its pod) only containers are confined: the kubelet starts
  them with a cpuset of its own, which a narrower pod would refuse (koordinator 395, 546, 556). Otherwise the pod,
  too, so that new containers inherit it.
- No list is ever empty (ENOSPC; koordinator 1460): a pod that may use none of the chosen CPUs gets some of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.capabilities import Knob
from agent.policy.base import Request
from agent.policy.cpuset_choice import NONE, choose
from agent.snapshot import NodeSnapshot, PodSnapshot
from agent.threads import Mask, format_cpus, parse_cpus
from agent.topology import Cpu, Topology
from slacktide.tier import Tier

MILLIS: int = 1000
"""Millicores of one CPU."""

_ASKS_KEPT = 2
"""A read may still show the list before the last one, when that was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusetState:
    """`chosen` are BE's CPUs, empty when none could be chosen; `note` says what is to be said about them.

    `allowed` is what each group may use without us, `asked` the last lists that we asked for, the newest first. `basis`
    is what `requests` were made from.
    """

    chosen: Mask = NONE
    allowed: Mapping[str, Mask] = field(default_factory=dict)
    asked: Mapping[str, tuple[Mask, ...]] = field(default_factory=dict)
    requests: tuple[Request, ...] = ()
    note: str = ""
    basis: object = None


@dataclass(frozen=True, slots=True)
class _Scene:
    """What the lists are made from. `whole` are all CPUs of the node, `pinned` those that LS has for itself."""

    topology: Topology
    whole: Mask
    pinned: Mask
    static: bool
    allowed: Mapping[str, Mask]


def confined(
    state: CpusetState, snapshot: NodeSnapshot, pods: Sequence[PodSnapshot], limit_millis: int, policy: str, reason: str
) -> CpusetState:
    """The state with the CPUs for this limit; made anew only when limit, pods or what is allowed changed."""
    count = max(1, limit_millis // MILLIS)
    basis = (count, tuple((pod.group, len(pod.containers)) for pod in pods), reason)
    if snapshot.urgent and state.basis == basis and state.chosen:
        return state
    scene = _scene(state, snapshot, pods)
    if scene is None:
        return replace(state, chosen=NONE, requests=(), note="the CPUs of this node are not known")
    free = _union(scene.allowed.values()) & scene.whole if scene.allowed else scene.whole
    note = "" if free - scene.pinned else "LS has every CPU for itself"
    free = free - scene.pinned or free or scene.whole
    chosen = choose(scene.topology, free, count, state.chosen)
    lists = _lists(pods, chosen, scene)
    asked = {group: (mask, *state.asked.get(group, ()))[:_ASKS_KEPT] for group, mask in lists.items()}
    requests = tuple(
        Request(policy=policy, group=group, knob=Knob.CPUSET, value=format_cpus(mask), reason=reason)
        for group, mask in sorted(lists.items())
    )
    note = note or f"BE has CPUs {format_cpus(chosen)}"
    return CpusetState(chosen=chosen, allowed=scene.allowed, asked=asked, requests=requests, note=note, basis=basis)


def _scene(state: CpusetState, snapshot: NodeSnapshot, pods: Sequence[PodSnapshot]) -> _Scene | None:
    allowed = _allowed(state, pods)
    topology = snapshot.topology
    if topology is None:
        known = sorted(_union(allowed.values()))
        topology = Topology(tuple(Cpu(cpu, cpu, 0, 0) for cpu in known))
    whole = topology.ids
    if not whole:
        return None
    held = _held(snapshot.pods_of(Tier.LS))
    be_pool = _union(mask for pod in pods for mask in _leaves_of(pod, allowed)) & whole or whole
    ls = [mask & whole for pod in snapshot.pods_of(Tier.LS) for mask in _leaves_of(pod, held)]
    pinned = _union(mask for mask in ls if not be_pool <= mask)
    static = any(
        container.group in lists and not lists.get(pod.group, whole) <= lists[container.group]
        for lists, some in ((held, snapshot.pods_of(Tier.LS)), (allowed, pods))
        for pod in some
        for container in pod.containers
    )
    return _Scene(topology, whole, pinned, static, allowed)


def _held(pods: Iterable[PodSnapshot]) -> dict[str, Mask]:
    """The lists that the kernel holds, by group; what is not known or empty is left out."""
    texts = {pod.group: pod.cpuset for pod in pods}
    texts.update({container.group: container.cpuset for pod in pods for container in pod.containers})
    return {group: mask for group, text in texts.items() if text and (mask := parse_cpus(text))}


def _allowed(state: CpusetState, pods: Sequence[PodSnapshot]) -> dict[str, Mask]:
    """What each group may use without us."""
    allowed = {}
    for group, mask in _held(pods).items():
        before = state.allowed.get(group)
        allowed[group] = before if before is not None and mask in state.asked.get(group, ()) else mask
    return allowed


def _leaves_of(pod: PodSnapshot, lists: Mapping[str, Mask]) -> list[Mask]:
    """The lists of a pod's containers, or its own where none of them is known."""
    inner = [lists[container.group] for container in pod.containers if container.group in lists]
    return inner or ([lists[pod.group]] if pod.group in lists else [])


def _lists(pods: Sequence[PodSnapshot], chosen: Mask, scene: _Scene) -> dict[str, Mask]:
    """The list of each group that is to be confined. A pod's holds those of its containers: v1 wants it so."""
    lists: dict[str, Mask] = {}
    for pod in pods:
        own = scene.allowed.get(pod.group, scene.whole)
        inner = {
            container.group: _within(chosen, scene.allowed.get(container.group, own), scene)
            for container in pod.containers
        }
        lists.update(inner)
        if not scene.static:
            lists[pod.group] = _within(chosen, own, scene) | _union(inner.values())
    return lists


def _within(chosen: Mask, allowed: Mask, scene: _Scene) -> Mask:
    """The chosen CPUs that a group may use; if it may use none of them, as few of its own as can be."""
    if chosen & allowed:
        return chosen & allowed
    return choose(scene.topology, allowed - scene.pinned, 1) or choose(scene.topology, allowed, 1) or chosen


def _union(masks: Iterable[Mask]) -> Mask:
    return NONE.union(*masks)
