"""The check itself: what is, what could be, and how far apart they are, a line a question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from scheduler_plugins.framework.snapshot import Ints
from scheduler_plugins.placement.problem import Group, Problem, Spread
from scheduler_plugins.placement.solve import Best, Limits, even, pack, skew

Aim = Literal["spread", "pack"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One question: `now` is the placement that there is, `best` the least that is possible, in `unit`.

    `exact` False: `best` is a bound, and a placement that good may not exist. `detail` says where.
    """

    question: str
    unit: str
    now: float
    best: float
    exact: bool
    detail: str = ""

    @property
    def gap(self) -> float:
        """How much better a placement could be; 0 for one that is as good as any."""
        return max(0.0, self.now - self.best)


@dataclass(frozen=True, slots=True)
class Check:
    """All findings. `impossible` says that not even a new placement would hold all pods."""

    findings: tuple[Finding, ...]
    pods: int
    nodes: int
    unplaced: int
    impossible: bool
    unjudged: tuple[str, ...]


def check(
    problem: Problem,
    aim: Aim,
    limits: Limits | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Check:
    """Ask the solver everything that belongs to `aim`; `tell` hears each question before it is worked on."""
    limits = limits or Limits()
    findings: list[Finding] = []
    feasible = True
    for question, ask in _questions(problem, aim, limits):
        tell(question)
        finding, best = ask()
        feasible = feasible and best.feasible
        if best.feasible:
            findings.append(finding)
    unjudged = tuple(sorted({f"{group.name}: {rule}" for group in problem.groups for rule in group.unjudged}))
    return Check(
        findings=tuple(findings),
        pods=sum(group.count for group in problem.groups),
        nodes=len(problem.nodes),
        unplaced=sum(group.unplaced for group in problem.groups),
        impossible=not feasible,
        unjudged=unjudged,
    )


_Ask = Callable[[], tuple[Finding, Best]]


def _questions(problem: Problem, aim: Aim, limits: Limits) -> Iterator[tuple[str, _Ask]]:
    if aim == "pack":
        yield "nodes in use", lambda: _packed(problem, limits)
    else:
        for resource in problem.resources:
            if resource != "pods":
                yield f"fullest node, {resource}", lambda resource=resource: _even(problem, resource, limits)  # type: ignore[misc]  # bound here
    for group in problem.groups:
        for spread in group.spreads:
            if group.count > 1:
                yield (
                    f"{group.name} over {spread.key}",
                    lambda group=group, spread=spread: _skewed(problem, group, spread, limits),  # type: ignore[misc]  # bound here
                )


def _even(problem: Problem, resource: str, limits: Limits) -> tuple[Finding, Best]:
    index = list(problem.resources).index(resource)
    best = even(problem, resource, limits)
    used, capacity = problem.used(problem.now())[:, index], problem.capacity[:, index]
    share = np.where(capacity > 0, used / np.maximum(capacity, 1), 0.0)
    worst = int(np.argmax(share))
    detail = f"{problem.nodes[worst]}; standard deviation over nodes {100 * share.std():.1f} %"
    return Finding(
        f"fullest node, {resource}", "%", 100 * float(share.max()), 100 * best.value, best.exact, detail
    ), best


def _packed(problem: Problem, limits: Limits) -> tuple[Finding, Best]:
    best = pack(problem, limits)
    used = problem.used(problem.now())[:, list(problem.resources).index("pods")]
    now = int(np.count_nonzero(used))
    return Finding("nodes in use", "nodes", now, best.value, best.exact), best


def _skewed(problem: Problem, group: Group, spread: Spread, limits: Limits) -> tuple[Finding, Best]:
    best = skew(problem, group, spread, limits)
    counts = domain_counts(group, spread, group.now)
    now = max(counts.values()) - min(counts.values()) if counts else 0
    shown = ", ".join(f"{name} {count}" for name, count in _extremes(counts))
    return Finding(f"{group.name} over {spread.key}", "pods", now, max(0.0, best.value), best.exact, shown), best


def domain_counts(group: Group, spread: Spread, counts: Ints) -> dict[str, int]:
    """Pods of a group by domain, of those domains in which one may be."""
    nodes = np.flatnonzero(group.eligible & (spread.domain >= 0))
    found: dict[str, int] = {}
    for node in nodes:
        value = spread.values[int(spread.domain[node])]
        found[value] = found.get(value, 0) + int(counts[node])
    return found


def _extremes(counts: dict[str, int]) -> Sequence[tuple[str, int]]:
    """The domains to show: all of a few, else the fullest and the emptiest."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ordered if len(ordered) <= 5 else [ordered[0], ordered[-1]]
