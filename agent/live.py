"""The live status that `/status` serves, made once a turn and read by any thread."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.capabilities import Capabilities, Knob
from agent.loop import Turn
from agent.policy.base import Plan
from agent.snapshot import PodSnapshot
from slacktide import __version__
from slacktide.status import AgentStatus, PodReport
from slacktide.tier import Tier


def status_of(node: str, turn: Turn, capabilities: Capabilities, counters: Mapping[str, int]) -> AgentStatus:
    """What the agent knows and does right now."""
    snapshot = turn.snapshot
    return AgentStatus(
        node=node,
        version=__version__,
        at=turn.wall,
        turn=turn.number,
        turn_seconds=turn.seconds,
        line=turn.line,
        capacity=snapshot.capacity,
        node_usage=snapshot.node,
        tiers={tier: snapshot.of(tier) for tier in Tier},
        pods=[_pod(pod, turn.plan, capabilities) for pod in snapshot.pods],
        ls_pressure=snapshot.pressure.value if snapshot.pressure else None,
        be_quota_millis=turn.plan.be_limit_millis,
        reasons=dict(turn.plan.reasons) if not turn.held else {"held": turn.held},
        skipped=dict(capabilities.skipped),
        counters=dict(counters),
    )


def _pod(pod: PodSnapshot, plan: Plan, capabilities: Capabilities) -> PodReport:
    """Quota as the plan has it, idle as the kernel has it unless it was set in this very turn."""
    quota = plan.settings.get((pod.group, Knob.QUOTA))
    idle = plan.settings.get((pod.group, Knob.IDLE))
    held = pod.knobs.idle if pod.knobs else None
    return PodReport(
        namespace=pod.identity.namespace,
        name=pod.identity.name,
        uid=pod.identity.uid,
        tier=pod.tier,
        usage=pod.usage,
        throttled_ratio=pod.throttled_ratio,
        quota_millis=int(quota.value) if quota and not capabilities.observe_only else None,
        idle=bool(idle.value) if idle and not capabilities.observe_only else held,
    )


class Live:
    """Holds the newest status as JSON."""

    def __init__(self) -> None:
        self._body = b"{}"

    def set(self, status: AgentStatus) -> None:
        """Replace it; one assignment, so readers need no lock."""
        self._body = msgspec.json.encode(status)

    def body(self) -> bytes:
        """The newest status; an empty object before the first turn."""
        return self._body
