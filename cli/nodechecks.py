"""Judges one node of a cluster: what the API server says of it, and what its agent says itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cli.clusterchecks import Finding, component_of, judge_nodes, ours
from slacktide.status import AgentStatus

if TYPE_CHECKING:
    from cli.asking import Told
    from cli.clusterfacts import CheckedNode, Facts

_PRESSURES: Final = ("MemoryPressure", "DiskPressure", "PIDPressure")
_STANDS_SECONDS: Final = 15.0
"""An agent whose last turn is longer ago does not protect LS. It has one a second."""


def judge_node(facts: Facts, told: Told[AgentStatus]) -> list[Finding]:
    """Every finding about the only node of `facts`, in the order in which a person reads them."""
    (node,) = facts.nodes or ()
    return [*_itself(node), *judge_nodes(facts), *_agent(facts, told)]


def _itself(node: CheckedNode) -> Iterator[Finding]:
    conditions = {one.type: one for one in node.status.conditions}
    ready = conditions.get("Ready")
    if ready is None or ready.status != "True":
        evidence = (
            f"not Ready: {ready.reason}: {ready.message}" if ready is not None else "nobody says that it is Ready"
        )
        remedy = "its kubelet says why; nothing is placed there until it is Ready"
        yield Finding(name="node", verdict="problem", evidence=evidence, remedy=remedy)
    elif node.spec.unschedulable:
        remedy = f"kubectl uncordon {node.metadata.name} lets pods in again"
        yield Finding(name="node", verdict="warning", evidence="Ready, cordoned", remedy=remedy)
    else:
        yield Finding(name="node", verdict="ok", evidence="Ready, takes pods")
    pressed = [name for name in _PRESSURES if name in conditions and conditions[name].status == "True"]
    if pressed:
        remedy = "the kubelet evicts there: find out who fills it (slacktide explain node)"
        yield Finding(name="node", verdict="problem", evidence=", ".join(pressed), remedy=remedy)


def _agent(facts: Facts, told: Told[AgentStatus]) -> Iterator[Finding]:
    if facts.pods is not None:
        yield component_of(facts, "agent", ours(facts, "agent"))
    status = told.value
    if status is None:
        remedy = "ask as someone who may get pods/proxy there, or run slacktide doctor on the node"
        yield Finding(name="agent says", verdict="unknown", evidence=told.problem, remedy=remedy)
        return
    yield _turn(facts, status)
    if status.observe_only:
        remedy = "LS is not protected there until its setting observe_only is off"
        yield Finding(name="agent", verdict="warning", evidence="writes nothing, only observes", remedy=remedy)
    for name, why in sorted(status.skipped.items()):
        remedy = "it works without, and does less: docs/agent.md says what"
        yield Finding(name=f"agent skips {name}", verdict="warning", evidence=why, remedy=remedy)


def _turn(facts: Facts, status: AgentStatus) -> Finding:
    """How long ago the last turn was, by the clock of the API server; the node's clock is judged on its own."""
    if facts.now is not None and (ago := facts.now - status.at) > _STANDS_SECONDS:
        remedy = "its loop stands, or the node's clock is behind: see `clocks of nodes` and the agent's log"
        evidence = f"last turn {ago:.0f} s ago"
        return Finding(name="agent says", verdict="problem", evidence=evidence, remedy=remedy)
    return Finding(name="agent says", verdict="ok", evidence=status.line or f"turn {status.turn}")
