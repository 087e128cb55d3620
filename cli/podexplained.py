"""Why a pod is where it is, or nowhere: its tier, what the scheduler found, and what can be done. Pure."""

from __future__ import annotations

import msgspec

from cli.advice import advice
from cli.cycles import Cycle, Refusal, drowned
from cli.podview import show_age, show_bytes, show_cpu, waiting_for
from slacktide.explaining import Decision, HeldPod, Hold
from slacktide.names import SCHEDULER_NAME
from slacktide.objects import Pod, is_terminal, pod_key
from slacktide.tier import tier_reason


class PodExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """What stands of one pod. `state` is placed, pending, gated or ended; `why` one sentence about that.

    `source` says where it is known from; `cycle` is the scheduler's record, None where it is gone. `blocking` has who
    refused how many nodes, `actions` what can be done, `remarks` what else is to be said. `held` is what the agent of
    its node does with it, `decisions` when it was told to go, newest first; `silent` says who could not be asked.
    """

    pod: str
    tier: str
    tier_why: str
    scheduler: str
    state: str
    node: str
    why: str
    source: str
    blocking: list[Refusal]
    cycle: Cycle | None
    actions: list[str]
    remarks: list[str]
    held: HeldPod | None = None
    decisions: list[Decision] = []
    silent: list[str] = []


class SchedulersRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What schedulers keep of a pod: its last cycle (None: gone), and who has it.

    `since` is how far back the record goes (seconds since the epoch, None: not said). `heard` is whether any of them
    answered; `problems` are those of the others.
    """

    cycle: Cycle | None
    who: str = "the scheduler"
    since: float | None = None
    heard: bool = True
    problems: tuple[str, ...] = ()


def explain_pod(
    pod: Pod,
    record: SchedulersRecord,
    now: float,
    *,
    held: HeldPod | None = None,
    decisions: list[Decision] | None = None,
    silent: list[str] | None = None,
) -> PodExplanation:
    """Put together what is known of `pod` at `now`, seconds since the epoch."""
    tier, tier_why = tier_reason(pod)
    cycle = record.cycle
    state = _state(pod)
    refusals = cycle.refusals if cycle is not None and state == "pending" else []
    gates = [gate.name for gate in pod.spec.scheduling_gates]
    actions = [f"take off the gates: {', '.join(gates)}"] if state == "gated" else advice(refusals)
    return PodExplanation(
        pod=pod_key(pod),
        tier=tier.value,
        tier_why=tier_why,
        scheduler=pod.spec.scheduler_name,
        state=state,
        node=pod.spec.node_name,
        why=_why(pod, state, cycle, gates),
        source=_source(pod, record, now),
        blocking=refusals,
        cycle=cycle,
        actions=actions,
        remarks=_remarks(pod, state, cycle),
        held=held,
        decisions=decisions or [],
        silent=silent or [],
    )


def _state(pod: Pod) -> str:
    if is_terminal(pod):
        return "ended"
    if pod.spec.node_name:
        return "placed"
    return "gated" if pod.spec.scheduling_gates else "pending"


def _why(pod: Pod, state: str, cycle: Cycle | None, gates: list[str]) -> str:
    if state == "gated":
        return f"no attempt is made while it has scheduling gates: {', '.join(gates)}"
    if state == "pending":
        told = waiting_for(pod)
        if cycle is not None and cycle.result != "chosen":
            return cycle.message
        return told or "it was not tried yet"
    node = pod.spec.node_name
    if not node:
        return "it ended without ever having a node"
    if cycle is None or cycle.node != node:
        return f"it was placed on {node}"
    if cycle.feasible == 1:
        return f"{node} is the only one of {cycle.evaluated} nodes that fits"
    return f"{node} has the highest score of the {cycle.feasible} nodes that fit, of {cycle.evaluated}"


def _source(pod: Pod, record: SchedulersRecord, now: float) -> str:
    cycle = record.cycle
    if cycle is not None:
        return f"{record.who}'s record of attempt {cycle.attempt}, {show_age(max(0.0, now - cycle.at))} ago"
    if not record.heard:
        return "the pod's own status: the scheduler does not answer"
    if pod.spec.scheduler_name != SCHEDULER_NAME:
        return f"the pod's own status: of {pod.spec.scheduler_name}, which is to place it, no record is kept here"
    kept = "" if record.since is None else f"; it began {show_age(max(0.0, now - record.since))} ago"
    return (
        f"the pod's own status: the scheduler's record of it is gone (it keeps the last ones, until it restarts{kept})"
    )


def _remarks(pod: Pod, state: str, cycle: Cycle | None) -> list[str]:
    if cycle is None:
        return []
    said = []
    if state == "pending" and cycle.result == "chosen":
        said.append(f"attempt {cycle.attempt} chose {cycle.node}, and then it was not bound there")
    if state == "placed" and cycle.node != pod.spec.node_name:
        said.append(f"the record is of an attempt that chose {cycle.node or 'no node'}: another one placed it")
    said += drowned(cycle)
    for plugin, nodes in cycle.unrated.items():
        said += [f"{plugin} could not rate {node}: {reason}" for node, reason in nodes.items()]
    return said


HOLD_COLUMNS = ("KNOB", "VALUE", "POLICY", "REASON")


def held_line(held: HeldPod, now: float) -> str:
    """What the agent sees of a pod, in a sentence."""
    ago = show_age(max(0.0, now - held.at))
    if not held.known:
        return f"on {held.node} (its agent, {ago} ago): the pod is not there"
    parts = [f"uses {show_cpu(held.cpu_millis)} cores and {show_bytes(held.memory_bytes)}"]
    if held.quota_millis is not None:
        parts.append(f"quota {show_cpu(held.quota_millis)} cores")
    if held.throttled_ratio:
        parts.append(f"throttled in {held.throttled_ratio:.0%} of the periods of the last turn")
    if held.memory_high_rate:
        parts.append(f"slowed down at memory.high {held.memory_high_rate:.1f} times a second")
    if held.frozen:
        parts.append("frozen")
    return f"on {held.node} (its agent, {ago} ago): {', '.join(parts)}"


def hold_rows(held: HeldPod) -> list[list[str]]:
    """A row a knob that the agent sets on the pod or a container of it."""
    return [
        [f"{hold.container}: {hold.knob}" if hold.container else hold.knob, _value(hold), hold.policy, hold.reason]
        for hold in held.holds
    ]


def _value(hold: Hold) -> str:
    if not hold.value.isdigit():
        return hold.value.replace("\n", ", ")
    if hold.knob == "cpu.quota":
        return f"{show_cpu(int(hold.value))} cores"
    return show_bytes(int(hold.value)) if hold.knob in {"memory.max", "memory.high"} else hold.value
