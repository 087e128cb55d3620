"""What a person can do about a refusal, by the plugin that refused. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cli.cycles import CountedReason, Refusal

_INSUFFICIENT: Final = "Insufficient "
_BATCH: Final = "kubernetes.io/batch-"
_NO_ROOM: Final = "no forecast room for "
_NEVER: Final = "node(s) that can never have so much "

_BY_TEXT: Final = (
    ("node(s) without a forecast", "no forecast is there: is the predictor running, and the agent of the node?"),
    ("forecast expired", "forecasts are too old: is the predictor running?"),
    ("forecast is from the future", "clocks differ: set those of the nodes and of the scheduler alike"),
    ("node(s) with a forecast that cannot be read", "the forecast is of another version: update the older component"),
    ("node(s) closed for batch work", "online work needs all of the node now; it opens again by itself"),
    ("forecast does not look as far ahead", "state a shorter life (slacktide.io/expected-life-seconds), or none"),
    ("Too many pods", "the node may hold no more pods: end some, or raise its limit of pods"),
)
_BY_PLUGIN: Final = {
    "NodeUnschedulable": "nodes are cordoned: `kubectl uncordon`",
    "TaintToleration": "tolerate the taint, or take it off the node",
    "NodeAffinity": "no such labels: change nodeSelector or affinity, or label a node",
    "NodeName": "the pod names a node that is not there",
    "NodePorts": "the host port is taken: ask for another one, or for none",
    "PodTopologySpread": "like pods may not be less even: add nodes where few are, or allow a larger maxSkew",
    "InterPodAffinity": "rules about other pods leave no node: loosen the affinity, or place what it asks for first",
    "DomainLimit": "as many alike as one domain may have: more domains, or a higher limit",
    "Gang": "the gang is placed whole or not at all: fewer or smaller members, or more room",
    "SchedulingGates": "somebody has yet to take the gate off",
    "UnsupportedPods": "let the stock scheduler place it, with our extender (docs/scheduler-extender.md)",
}


def advice(refusals: Sequence[Refusal]) -> list[str]:
    """One sentence each, what refused most nodes first, nothing twice."""
    said: dict[str, None] = {}
    for refusal in sorted(refusals, key=lambda one: -one.nodes):
        for reason in sorted(refusal.reasons, key=lambda one: -one.nodes):
            text = _about(reason) or _BY_PLUGIN.get(refusal.plugin, "")
            if text:
                said.setdefault(text)
    return list(said)


def _about(reason: CountedReason) -> str:
    text = reason.reason
    if text.startswith(_NO_ROOM):
        return (
            f"ask for less {text.removeprefix(_NO_ROOM)}{_numbers(reason)}, or wait until online work needs less: "
            f"`slacktide explain node {reason.nearest}` says what it needs"
        )
    if text.startswith(_NEVER):
        return f"ask for less {text.removeprefix(_NEVER)}: even an empty node is too small{_numbers(reason)}"
    if text.startswith(_INSUFFICIENT):
        resource = text.removeprefix(_INSUFFICIENT)
        less = f"ask for less {resource}{_numbers(reason)}"
        if resource in {"cpu", "memory"}:
            return f"{less}, or let it run as best effort (--tier be) on what others asked for and do not use"
        return less if not resource.startswith(_BATCH) else f"{less}, or wait until batch work ends"
    return next((words for start, words in _BY_TEXT if text.startswith(start)), "")


def _numbers(reason: CountedReason) -> str:
    if not reason.detail:
        return ""
    return f" ({reason.detail} on {reason.nearest})" if reason.nearest else f" ({reason.detail})"
