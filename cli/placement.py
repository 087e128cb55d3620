"""What `slacktide placement-check` asks and says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cli.output import MISSING
from scheduler_plugins.dump import Dump, distinct, read_dump
from scheduler_plugins.placement.check import Aim, Check, Finding, check
from scheduler_plugins.placement.read import check_framework, problem_of
from scheduler_plugins.placement.solve import Limits
from slacktide import names
from slacktide.cluster import NODES, PODS
from slacktide.objects import Pod
from slacktide.settings import ResourceNames
from slacktide.tier import Tier, tier_of

if TYPE_CHECKING:
    from cli.app import App
    from slacktide.cluster import Client

COLUMNS: Final = ("QUESTION", "NOW", "BEST", "GAP", "UNIT", "BEST IS", "DETAIL")
_FEW: Final = 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the person asked for."""

    aim: Aim
    tier: str
    namespace: str | None
    topologies: Sequence[str]

    def moves(self, pod: Pod) -> bool:
        """Whether a pod may move."""
        if self.namespace is not None and pod.metadata.namespace != self.namespace:
            return False
        daemon = any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)
        tier = tier_of(pod, frozenset({names.BATCH_CPU, names.BATCH_MEMORY}))
        wanted = {"be": {Tier.BE}, "ls": {Tier.LS}, "all": {Tier.BE, Tier.LS}}[self.tier]
        return not daemon and tier in wanted


@dataclass(frozen=True, slots=True)
class Answer:
    """Findings and what a person should know beside them."""

    check: Check

    @property
    def findings(self) -> tuple[Finding, ...]:
        """One a question."""
        return self.check.findings

    @property
    def remarks(self) -> list[str]:
        """Sentences."""
        check = self.check
        said = [f"{check.pods} pods that may move on {check.nodes} nodes, {check.unplaced} of them not placed yet"]
        if check.impossible:
            said.append("not even a new placement would hold all of them: ask for less, or add nodes")
        if check.unjudged:
            shown = "; ".join(check.unjudged[:_FEW])
            more = f" and {len(check.unjudged) - _FEW} more" if len(check.unjudged) > _FEW else ""
            said.append(f"rules that the solver does not know, so that BEST is a bound: {shown}{more}")
        return said


def objects(app: App, files: Sequence[str]) -> Dump:
    """Nodes and pods from where they were asked for. Raises DumpError, ClusterError, CommandError."""
    if files:
        return read_dump(files)
    with contextlib.closing(app.client()) as client:
        return _of(client)


def _of(client: Client) -> Dump:
    return Dump(nodes=list(client.list(NODES).items), pods=list(client.list(PODS).items))


def run(dump: Dump, wanted: Wanted, seconds: float, now: float, tell: Callable[[str], object]) -> Answer:
    """Make the problem and ask the solver."""
    pods = distinct(dump.pods)
    problem = problem_of(dump.nodes, pods, wanted.moves, check_framework(), ResourceNames(), wanted.topologies, now)
    return Answer(check(problem, wanted.aim, Limits(seconds=seconds), lambda question: tell(f"solving: {question}")))


def cells(finding: Finding) -> list[str]:
    """One line of the table."""
    number = "{:.1f}".format if finding.unit == "%" else "{:.0f}".format
    known = finding.best == finding.best
    return [
        finding.question,
        number(finding.now),
        number(finding.best) if known else MISSING,
        number(finding.gap) if known else MISSING,
        finding.unit,
        "exact" if finding.exact else "bound",
        finding.detail,
    ]


def document(answer: Answer) -> dict[str, Any]:
    """For programs; a bound that is not known is null."""
    findings = [
        {
            "question": one.question,
            "unit": one.unit,
            "now": one.now,
            "best": one.best if one.best == one.best else None,
            "gap": one.gap if one.best == one.best else None,
            "exact": one.exact,
            "detail": one.detail,
        }
        for one in answer.findings
    ]
    check = answer.check
    return {
        "findings": findings,
        "pods": check.pods,
        "nodes": check.nodes,
        "unplaced": check.unplaced,
        "possible": not check.impossible,
        "unjudged": list(check.unjudged),
    }
