"""Arithmetic of PodDisruptionBudgets and of evictions under them, pure.

Source: Kubernetes disruption controller and eviction subresource. There are no workload controllers here, so the
expected count is the number of matching pods that have not ended, instead of the sum of the owners' scales.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from standalone.api.errors import ApiError, Cause, Target, forbidden, too_many_requests
from standalone.api.times import parse_time

DISRUPTED_TIMEOUT_SECONDS: Final = 120.0
"""An eviction that was granted and whose pod is still not terminating after this long no longer counts."""

MAX_DISRUPTED_PODS: Final = 2000
_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True)
class Budget:
    """The computed part of a budget's status; counts of pods."""

    expected: int
    healthy: int
    desired: int
    allowed: int
    disrupted: Mapping[str, str]


def scaled(value: int | str, of: int) -> int:
    """An int-or-percent, percents of `of` rounded up; ValueError for other text."""
    if isinstance(value, int):
        return value
    if not value.endswith("%") or not value[:-1].isascii() or not value[:-1].isdigit():
        raise ValueError(f"{value!r} is neither a number nor a percentage")
    return math.ceil(int(value[:-1]) * of / 100)


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether condition Ready is True."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def budget(
    spec: Mapping[str, Any], disrupted: Mapping[str, str], pods: Iterable[Mapping[str, Any]], now: datetime
) -> Budget:
    """Status of a budget over the pods that its selector matches; `disrupted`: pod name -> when it was granted."""
    pods = list(pods)
    alive = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in _ENDED]
    kept = _still_disrupted(disrupted, pods, now)
    healthy = sum(
        1
        for pod in pods
        if is_ready(pod) and not pod["metadata"].get("deletionTimestamp") and pod["metadata"]["name"] not in kept
    )
    if "maxUnavailable" in spec:
        expected = len(alive)
        desired = max(expected - scaled(spec["maxUnavailable"], expected), 0)
    else:
        minimum = spec.get("minAvailable", 1)
        expected = len(pods) if isinstance(minimum, int) else len(alive)
        desired = scaled(minimum, expected)
    allowed = max(healthy - desired, 0) if expected > 0 else 0
    return Budget(expected, healthy, desired, allowed, kept)


def _still_disrupted(disrupted: Mapping[str, str], pods: list[Mapping[str, Any]], now: datetime) -> dict[str, str]:
    present = {pod["metadata"]["name"]: pod for pod in pods}
    limit = timedelta(seconds=DISRUPTED_TIMEOUT_SECONDS)
    return {
        name: since
        for name, since in disrupted.items()
        if name in present
        and not present[name]["metadata"].get("deletionTimestamp")
        and now - (parse_time(since) or now) < limit
    }


def status(old: Mapping[str, Any], found: Budget, generation: int, now_text: str) -> dict[str, Any]:
    """Status of a budget as stored; condition DisruptionAllowed keeps its time while it does not change."""
    able = found.allowed > 0
    condition = {
        "type": "DisruptionAllowed",
        "status": "True" if able else "False",
        "reason": "SufficientPods" if able else "InsufficientPods",
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": now_text,
    }
    conditions = []
    for before in old.get("conditions") or ():
        if before.get("type") != "DisruptionAllowed":
            conditions.append(before)
        elif before.get("status") == condition["status"]:
            condition["lastTransitionTime"] = before.get("lastTransitionTime", now_text)
    fresh = {
        **{key: value for key, value in old.items() if key != "disruptedPods"},
        "observedGeneration": generation,
        "expectedPods": found.expected,
        "currentHealthy": found.healthy,
        "desiredHealthy": found.desired,
        "disruptionsAllowed": found.allowed,
        "conditions": [*conditions, condition],
    }
    return fresh | ({"disruptedPods": dict(found.disrupted)} if found.disrupted else {})


def skips_budget(pod: Mapping[str, Any]) -> bool:
    """Whether evicting the pod disrupts nothing: it has not started, has ended, or is already being deleted."""
    phase = (pod.get("status") or {}).get("phase")
    return phase in {"Pending", "Succeeded", "Failed"} or bool(pod["metadata"].get("deletionTimestamp"))


def unready_is_free(pod: Mapping[str, Any], spec: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Whether a pod that is not ready may go without charging the budget (unhealthyPodEvictionPolicy)."""
    if is_ready(pod):
        return False
    if spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    desired = state.get("desiredHealthy", 0)
    return bool(desired > 0 and state.get("currentHealthy", 0) >= desired)


def refusal(target: Target, name: str, generation: int, state: Mapping[str, Any]) -> ApiError | None:
    """Why the budget `name` does not allow one more disruption, or None when it does."""
    if state.get("observedGeneration", 0) < generation:
        cause = Cause("DisruptionBudget", f"The disruption budget {name} is still being processed by the server.")
        return too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", 10, (cause,))
    allowed = state.get("disruptionsAllowed", 0)
    if allowed < 0:
        return forbidden(target, "pdb disruptions allowed is negative")
    if len(state.get("disruptedPods") or {}) > MAX_DISRUPTED_PODS:
        return forbidden(target, "DisruptedPods map too big - too many evictions not confirmed by PDB controller")
    if allowed == 0:
        needs, has = state.get("desiredHealthy", 0), state.get("currentHealthy", 0)
        cause = Cause(
            "DisruptionBudget", f"The disruption budget {name} needs {needs} healthy pods and has {has} currently"
        )
        return too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", 0, (cause,))
    return None
