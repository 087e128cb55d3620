"""Pure: the node object of this machine, as patches that name only what the runner owns.

Capacity and allocatable of cpu, memory and pods are ours; batch resources, other labels and annotations belong to
others and are never mentioned, so a patch leaves them alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from slacktide import names
from slacktide.objects import NodeCondition
from slacktide.quantity import format_millis
from standalone.runner.machine import Machine, Pressure
from standalone.runner.podstatus import timestamp

CGROUPS_ANNOTATION: Final = "slacktide.io/cgroups"
TASKS_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What the node object says. `cgroups` is v1, v2, hybrid or off; `problem` is why the node is not ready."""

    name: str
    address: str
    machine: Machine
    max_pods: int
    cgroups: str
    cgroups_note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Below these (bytes) the node reports pressure."""

    memory_bytes: int
    disk_bytes: int


def metadata_patch(facts: NodeFacts) -> dict[str, Any]:
    """Labels and annotation of the node."""
    labels = {
        names.HOSTNAME_LABEL: facts.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": facts.machine.architecture,
    }
    return {"metadata": {"labels": labels, "annotations": {CGROUPS_ANNOTATION: facts.cgroups}}}


def status_patch(
    facts: NodeFacts,
    pressure: Pressure,
    problem: str | None,
    before: Iterable[NodeCondition],
    thresholds: Thresholds,
    now: float,
) -> dict[str, Any]:
    """Status of the node; `problem` is why it is not ready, `before` the conditions that the API shows."""
    machine = facts.machine
    amounts = {
        "cpu": format_millis(machine.cpu_millis),
        "memory": f"{machine.memory_bytes // 1024}Ki",
        "pods": str(facts.max_pods),
    }
    shown = {condition.type: condition for condition in before}
    states = _states(facts, pressure, problem, thresholds)
    return {
        "status": {
            "capacity": amounts,
            "allocatable": dict(amounts),
            "addresses": [
                {"type": "InternalIP", "address": facts.address},
                {"type": "Hostname", "address": facts.name},
            ],
            "nodeInfo": {
                "machineID": machine.machine_id,
                "systemUUID": machine.machine_id,
                "bootID": machine.boot_id,
                "kernelVersion": machine.kernel,
                "osImage": machine.os_image,
                "containerRuntimeVersion": f"slacktide://{machine.version.removeprefix('slacktide-')}",
                "kubeletVersion": machine.version,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": machine.architecture,
            },
            "conditions": [_condition(shown.get(name), name, *state, now) for name, state in states.items()],
        }
    }


def _states(
    facts: NodeFacts, pressure: Pressure, problem: str | None, thresholds: Thresholds
) -> dict[str, tuple[str, str, str]]:
    ready_message = problem or facts.cgroups_note or f"the runner is ready; cgroups {facts.cgroups}"
    tasks_limit = None if pressure.tasks_max is None else int(pressure.tasks_max * TASKS_SHARE)
    return {
        "MemoryPressure": _short(pressure.memory_available_bytes, thresholds.memory_bytes, "Memory", "bytes available"),
        "DiskPressure": _short(
            pressure.disk_free_bytes, thresholds.disk_bytes, "Disk", "bytes free for state and logs"
        ),
        "PIDPressure": _many(pressure.tasks, tasks_limit),
        "Ready": (
            "False" if problem else "True",
            "RunnerNotReady" if problem else "RunnerReady",
            ready_message,
        ),
    }


def _short(have: int | None, need: int, what: str, unit: str) -> tuple[str, str, str]:
    if have is None:
        return "Unknown", f"{what}Unknown", f"{what.lower()} cannot be measured"
    if have < need:
        return "True", f"RunnerHasInsufficient{what}", f"{have} {unit}, fewer than {need}"
    return "False", f"RunnerHasSufficient{what}", f"at least {need} {unit}"


def _many(have: int | None, limit: int | None) -> tuple[str, str, str]:
    if have is None or limit is None:
        return "Unknown", "PIDUnknown", "the number of processes cannot be measured"
    if have > limit:
        return "True", "RunnerHasInsufficientPID", f"{have} tasks, more than {limit}"
    return "False", "RunnerHasSufficientPID", f"at most {limit} tasks"


def _condition(
    before: NodeCondition | None, name: str, status: str, reason: str, message: str, now: float
) -> dict[str, Any]:
    same = before is not None and before.status == status and before.last_transition_time is not None
    return {
        "type": name,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": timestamp(now),
        "lastTransitionTime": before.last_transition_time if before is not None and same else timestamp(now),
    }
