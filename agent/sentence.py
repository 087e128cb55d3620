"""The status line of a turn: what the agent sees, and what it does about it. Pure."""

from __future__ import annotations

from agent.policy.base import Plan
from agent.snapshot import NodeSnapshot
from slacktide.tier import Tier


def sentence(snapshot: NodeSnapshot, plan: Plan, held: str, *, observe_only: bool) -> str:
    """The status line: what is seen and what is done about it."""
    parts = [f"{tier.value} {_millis(snapshot.of(tier).cpu_millis)}" for tier in Tier]
    counts = f"{len(snapshot.pods_of(Tier.LS))} LS and {len(snapshot.pods_of(Tier.BE))} BE pods"
    seen = f"{counts}; CPU {', '.join(parts)} of {_millis(snapshot.capacity.cpu_millis)}"
    pressure = snapshot.pressure
    waits = "LS pressure unknown" if pressure is None else f"LS pressure {pressure.value:.2f} ({pressure.kind})"
    if held:
        return f"{seen}; {waits}; {held}"
    limit = plan.be_limit_millis
    does = "BE has no limit" if limit is None else f"BE is limited to {limit}m: {plan.be_limit_reason}"
    said = [does, plan.reasons.get("spread", ""), _ladder(plan), _going(plan), _closed(plan)]
    note = " (observe only: nothing is written)" if observe_only else ""
    return "; ".join([seen, waits, *(part for part in said if part)]) + note


def _ladder(plan: Plan) -> str:
    held = [f"{rung.name} {rung.level}/{rung.top}" for rung in plan.rungs.values() if rung.engaged]
    return f"rungs in force: {', '.join(held)}" if held else ""


def _going(plan: Plan) -> str:
    names = [f"{victim.namespace}/{victim.name} ({victim.way.value})" for victim in plan.victims]
    return f"shall go: {', '.join(names)}" if names else ""


def _closed(plan: Plan) -> str:
    return f"closed: {plan.closed}" if plan.closed else ""


def _millis(value: int | None) -> str:
    return "unknown" if value is None else f"{value}m"
