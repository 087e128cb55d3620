"""Why a pod is where it is, or nowhere: its tier, what the scheduler found, and what can be done. Pure."""

from __future__ import annotations

import msgspec

from cli.advice import advice
from cli.cycles import Cycle, Refusal, Scheduling, drowned
from cli.podview import show_age, waiting_for
from slacktide.objects import Pod, is_terminal, pod_key
from slacktide.tier import tier_reason


class PodExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """What stands of one pod. `state` is placed, pending, gated or ended; `why` one sentence about that.

    `source` says where it is known from; `cycle` is the scheduler's record, None where it is gone. `blocking` has who
    refused how many nodes, `actions` what can be done, `remarks` what else is to be said.
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


def explain_pod(pod: Pod, kept: Scheduling | None, now: float, unheard: str) -> PodExplanation:
    """`kept` is what the scheduler's process keeps, None where it was not asked or is silent, as `unheard` says."""
    tier, tier_why = tier_reason(pod)
    cycle = None if kept is None else kept.of(pod.metadata.uid)
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
        source=_source(cycle, now, kept is None, unheard),
        blocking=refusals,
        cycle=cycle,
        actions=actions,
        remarks=_remarks(pod, state, cycle),
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


def _source(cycle: Cycle | None, now: float, silent: bool, unheard: str) -> str:
    if cycle is not None:
        return f"the scheduler's record of attempt {cycle.attempt}, {show_age(max(0.0, now - cycle.at))} ago"
    if silent:
        return f"the pod's own status: {unheard}"
    return "the pod's own status: the scheduler's record of it is gone (it keeps the last ones, until it restarts)"


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
