"""The row of a pod as kubectl prints it, above all its one-word status. Source: printers/internalversion printPod."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from standalone.api.times import age

Json = Mapping[str, Any]

_NONE: Final = "<none>"


def pod_cells(pod: Json, now: datetime) -> list[Any]:
    """Name, ready, status, restarts, age, IP, node, nominated node, readiness gates."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    statuses = status.get("containerStatuses") or []
    sidecars = {c["name"] for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    inits = status.get("initContainerStatuses") or []
    counted = statuses + [s for s in inits if s.get("name") in sidecars]
    ready = sum(1 for s in counted if s.get("ready") and "running" in (s.get("state") or {}))
    total = len(spec.get("containers") or ()) + len(sidecars)
    return [
        meta["name"],
        f"{ready}/{total}",
        shown_status(pod, sidecars),
        _restarts(counted or inits, now),
        age(meta.get("creationTimestamp"), now),
        status.get("podIP") or _NONE,
        spec.get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _gates(spec, status),
    ]


def shown_status(pod: Json, sidecars: set[str]) -> str:
    """Phase, or what explains it better: a reason of the pod, of a container, or that it is being deleted."""
    status = pod.get("status") or {}
    reason = status.get("reason") or status.get("phase") or "Unknown"
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    if conditions.get("PodScheduled", {}).get("reason") == "SchedulingGated":
        reason = "SchedulingGated"
    initializing = _init_reason(pod, sidecars)
    if initializing is not None:
        reason = initializing
    else:
        reason = _containers_reason(status.get("containerStatuses") or [], conditions, reason)
    if pod["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        return reason if status.get("phase") in {"Succeeded", "Failed"} else "Terminating"
    return str(reason)


def _init_reason(pod: Json, sidecars: set[str]) -> str | None:
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or []
    total = len((pod.get("spec") or {}).get("initContainers") or ())
    for number, found in enumerate(statuses):
        state = found.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting")
        if terminated is not None and terminated.get("exitCode") == 0:
            continue
        if found.get("name") in sidecars and found.get("started"):
            continue
        if terminated is not None:
            return f"Init:{_ended(terminated)}"
        if waiting is not None and waiting.get("reason") not in {None, "", "PodInitializing"}:
            return f"Init:{waiting['reason']}"
        return f"Init:{number}/{total}"
    return None


def _containers_reason(statuses: list[Json], conditions: Mapping[str, Json], reason: str) -> str:
    running = False
    for found in reversed(statuses):
        state = found.get("state") or {}
        waiting, terminated = state.get("waiting"), state.get("terminated")
        if waiting is not None and waiting.get("reason"):
            reason = waiting["reason"]
        elif terminated is not None:
            reason = _ended(terminated)
        elif found.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        return "Running" if conditions.get("Ready", {}).get("status") == "True" else "NotReady"
    return reason


def _ended(terminated: Json) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _restarts(statuses: list[Json], now: datetime) -> str:
    count = sum(int(s.get("restartCount", 0)) for s in statuses)
    ends = [((s.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for s in statuses]
    last = max(filter(None, ends), default=None)
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)


def _gates(spec: Json, status: Json) -> str:
    gates = spec.get("readinessGates") or []
    if not gates:
        return _NONE
    true = {c.get("type") for c in status.get("conditions") or () if c.get("status") == "True"}
    return f"{sum(gate.get('conditionType') in true for gate in gates)}/{len(gates)}"
