"""Cycles of the scheduler as its debug endpoint tells them, and their score table in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cli.output import MISSING


class CountedReason(msgspec.Struct, frozen=True):
    """How many nodes fell to one reason, and the nearest one with its numbers."""

    reason: str
    nodes: int
    nearest: str = ""
    detail: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """What one plugin refused; no `reasons` where they were not asked for."""

    plugin: str
    nodes: int
    reasons: list[CountedReason] = []
    point: str = "Filter"


class PluginScore(msgspec.Struct, frozen=True):
    """What one plugin gave a node. `raw` None is no number."""

    raw: float | None
    normalised: int
    weighted: int


class NodeScore(msgspec.Struct, frozen=True):
    """All scores of one node; `extenders` is what each added."""

    node: str
    total: int
    plugins: dict[str, PluginScore]
    extenders: dict[str, int] = {}


class Cycle(msgspec.Struct, frozen=True):
    """One scheduling cycle; see `scheduler_plugins.records.Cycle`. `scores` are those of the best nodes, best first."""

    pod: str
    uid: str
    attempt: int
    at: float
    result: str
    node: str
    message: str
    profile: str = ""
    milliseconds: float = 0.0
    evaluated: int = 0
    feasible: int = 0
    refusals: list[Refusal] = []
    weights: dict[str, int] = {}
    scores: list[NodeScore] = []
    unrated: dict[str, dict[str, str]] = {}


class Scheduling(msgspec.Struct, frozen=True):
    """Answer of the debug endpoint: the last cycles, and the last one of each pod that found no node.

    Kept since `since`, seconds since the epoch; None where a scheduler does not say.
    """

    cycles: list[Cycle] = []
    unplaced: list[Cycle] = []
    since: float | None = None

    def of(self, uid: str) -> Cycle | None:
        """The last cycle of a pod; None where it is not kept any more."""
        return next((cycle for cycle in (*self.cycles, *self.unplaced) if cycle.uid == uid), None)


def shown_nodes(cycle: Cycle, most: int) -> list[NodeScore]:
    """The chosen node, then the next best ones."""
    chosen = [one for one in cycle.scores if one.node == cycle.node]
    return [*chosen, *(one for one in cycle.scores if one.node != cycle.node)][:most]


def table(cycle: Cycle, most: int) -> tuple[list[str], list[list[str]]]:
    """(Columns, rows): a row a plugin, a column a node with raw / normalised / weighted, and the total below."""
    nodes = shown_nodes(cycle, most)
    columns = ["PLUGIN", "WEIGHT", *(one.node for one in nodes), "DIFFERENCE"]
    rows = [
        [plugin, str(weight), *(_cell(one.plugins.get(plugin)) for one in nodes), _span(cycle, plugin)]
        for plugin, weight in cycle.weights.items()
    ]
    rows += [
        [extender, MISSING, *(str(one.extenders.get(extender, 0)) for one in nodes), ""]
        for extender in (nodes[0].extenders if nodes else ())
    ]
    rows.append(["TOTAL", "", *(str(one.total) for one in nodes), ""])
    return columns, rows


def drowned(cycle: Cycle) -> list[str]:
    """A sentence for each plugin that would have chosen another of the nodes, and which plugin outweighed it most."""
    chosen = next((one for one in cycle.scores if one.node == cycle.node), None)
    if chosen is None:
        return []
    said = []
    for plugin, weight in cycle.weights.items():
        rated = [one for one in cycle.scores if plugin in one.plugins]
        if plugin not in chosen.plugins or not rated:
            continue
        best = max(rated, key=lambda one: (one.plugins[plugin].weighted, one.total))
        gain = best.plugins[plugin].weighted - chosen.plugins[plugin].weighted
        if gain > 0:
            said.append(_outweighed(cycle, plugin, weight, chosen, best, gain))
    return said


def _outweighed(cycle: Cycle, plugin: str, weight: int, chosen: NodeScore, best: NodeScore, gain: int) -> str:
    text = f"{plugin} alone would choose {best.node}: {gain} more there at weight {weight}"
    against = {
        other: chosen.plugins[other].weighted - best.plugins[other].weighted
        for other in cycle.weights
        if other in chosen.plugins and other in best.plugins
    }
    strongest = max(against, key=lambda other: against[other], default="")
    if not strongest or against[strongest] <= 0:
        return text
    return f"{text}; outweighed by {strongest}, {against[strongest]} the other way at weight {cycle.weights[strongest]}"


def reason_rows(refusals: Sequence[Refusal]) -> list[list[str]]:
    """PLUGIN NODES REASON NEAREST NUMBERS, the plugin that refused most nodes first."""
    rows = []
    for refusal in sorted(refusals, key=lambda one: -one.nodes):
        reasons = refusal.reasons or [CountedReason("", refusal.nodes)]
        rows += [
            [refusal.plugin or MISSING, str(one.nodes), one.reason, one.nearest or MISSING, one.detail]
            for one in reasons
        ]
    return rows


REASON_COLUMNS = ("PLUGIN", "NODES", "REASON", "NEAREST", "DETAIL")


def _cell(score: PluginScore | None) -> str:
    if score is None:
        return MISSING
    raw = MISSING if score.raw is None else f"{score.raw:.6g}"
    return f"{raw} / {score.normalised} / {score.weighted}"


def _span(cycle: Cycle, plugin: str) -> str:
    """Most less least of what the plugin adds to the totals of the nodes that are kept."""
    values = [one.plugins[plugin].weighted for one in cycle.scores if plugin in one.plugins]
    return str(max(values) - min(values)) if values else MISSING
