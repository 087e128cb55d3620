"""Judges a plan as a whole, before anything of it is carried out. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from agent.capabilities import Knob, Value
from agent.host.cgroup import PodGroup
from agent.host.knobs import ADAPTERS
from agent.policy.base import Plan, Request
from agent.snapshot import PodIdentity
from slacktide.kernel.hierarchy import checked_group
from slacktide.kernel.kubepods import container_id, pod_uid, stray
from slacktide.tier import Tier


class PlanError(ValueError):
    """A plan that must not be carried out; nothing of it was. `policy` asked for what is wrong with it."""

    def __init__(self, policy: str, problem: str) -> None:
        super().__init__(f"policy {policy} {problem}")
        self.policy = policy


def wishes_by_group(
    plan: Plan,
    groups: Mapping[str, PodGroup],
    identities: Mapping[str, PodIdentity],
    writable: frozenset[Knob],
) -> tuple[dict[str, dict[Knob, Request]], int]:
    """Requests by cgroup, and how many name a pod or container that is not here (any more).

    Raises PlanError for a request that is no pod's or container's, takes from a pod that is to be protected, or has a
    value that no kernel takes. A pod whose tier nobody knows is to be protected.
    """
    owners = {pod.group: pod for pod in groups.values()}
    owners |= {container.group: pod for pod in groups.values() for container in pod.containers}
    wishes: dict[str, dict[Knob, Request]] = {}
    gone = 0
    passed: set[tuple[Knob, Value, type, Tier]] = set()
    for (group, knob), request in plan.settings.items():
        owner = owners.get(group)
        if owner is None:
            _must_be_pod(group, request)
            gone += 1
            continue
        identity = identities.get(owner.group)
        if identity is None:
            raise PlanError(request.policy, f"wants {knob.value} for {group}, whose tier is not known")
        judged = (knob, request.value, type(request.value), identity.tier)
        if judged not in passed:
            _check(request, identity, writable)
            passed.add(judged)
        wishes.setdefault(group, {})[knob] = request
    return wishes, gone


def _must_be_pod(group: str, request: Request) -> None:
    """A pod may go between decision and act; any other cgroup is a mistake (koordinator 1467, 2732)."""
    try:
        names = checked_group(group).split("/")
    except ValueError as error:
        raise PlanError(request.policy, f"names no cgroup: {error}") from error
    if stray(names[-1]) is not None:
        return
    pods = [number for number, name in enumerate(names) if pod_uid(name) is not None]
    below = names[pods[-1] + 1 :] if pods else []
    if not pods or len(below) > 1 or any(container_id(name) is None for name in below):
        raise PlanError(request.policy, f"names cgroup {group!r}, which is no pod or container")


def _check(request: Request, identity: PodIdentity, writable: frozenset[Knob]) -> None:
    who, knob, group = request.policy, request.knob, request.group
    if identity.tier not in knob.tiers:
        raise PlanError(who, f"wants {knob.value} for {group}, which is not {' or '.join(sorted(knob.tiers))}")
    if knob not in writable:
        raise PlanError(who, f"wants {knob.value}, which this node does not have")
    problem = ADAPTERS[knob].problem(request.value)
    if problem is not None:
        raise PlanError(who, f"wants {knob.value} for {group}: {problem}")
    if identity.tier is not Tier.BE and knob is Knob.BVT and int(request.value) < 0:
        raise PlanError(who, f"wants {knob.value} = {request.value} for {group}, which is not BE")
