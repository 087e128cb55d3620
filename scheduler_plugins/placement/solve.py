"""The best placement by mixed-integer programming (HiGHS, through scipy).

Variables are whole numbers of pods of each group on each node, under capacity, eligibility, apartness and hard
spreads. Where the numbers are too many, or time runs out, the answer is the solver's bound: no placement can be
better, and whether one is as good is not known.
Source: Q. Huangfu, J. A. J. Hall, "Parallelizing the dual revised simplex method", 2018 (HiGHS).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from scheduler_plugins.framework.snapshot import Floats, Ints
from scheduler_plugins.placement.problem import Group, Problem, Spread

MOST_VARIABLES: Final = 60_000
"""Above, whole numbers are not asked for: the answer is a bound."""

_INFEASIBLE: Final = 2


@dataclass(frozen=True, slots=True)
class Limits:
    """How much effort may be spent on one question."""

    seconds: float = 20.0
    variables: int = MOST_VARIABLES


@dataclass(frozen=True, slots=True)
class Best:
    """`value` is the best that a placement can reach; `exact` says that one reaches it, else it is a bound.

    `counts` is such a placement, one array (nodes,) a group; None for a bound. `feasible` False: the pods do not all
    fit, whatever is moved.
    """

    value: float
    exact: bool
    counts: tuple[Ints, ...] | None = None
    feasible: bool = True


class _Program:
    """Rows and columns as they are gathered. The first columns are pods by group and node."""

    def __init__(self, problem: Problem, extra: int) -> None:
        self.problem = problem
        self.nodes, self.groups = len(problem.nodes), len(problem.groups)
        self.pods = self.nodes * self.groups
        self.skews = [(g, s) for g, group in enumerate(problem.groups) for s in group.spreads if s.max_skew is not None]
        self.extra = self.pods + len(self.skews)
        self.columns = self.extra + extra
        self._rows: list[sparse.csr_array] = []
        self._low: list[Floats] = []
        self._high: list[Floats] = []
        self.low = np.zeros(self.columns)
        self.high = np.full(self.columns, np.inf)
        for g, group in enumerate(problem.groups):
            most = np.where(group.eligible, 1 if group.apart else group.count, 0)
            self.high[g * self.nodes : (g + 1) * self.nodes] = most

    def add(self, rows: NDArray[Any], columns: NDArray[Any], values: NDArray[Any], low: Floats, high: Floats) -> None:
        """Constraints `low <= A x <= high` from coordinates."""
        self._rows.append(sparse.csr_array((values, (rows, columns)), shape=(len(low), self.columns)))
        self._low.append(low)
        self._high.append(high)

    def base(self) -> None:
        """Every pod is somewhere, no node is overfull, hard spreads hold."""
        counts = np.array([group.count for group in self.problem.groups], dtype=float)
        every = np.arange(self.pods)
        self.add(every // max(1, self.nodes), every, np.ones(self.pods), counts, counts)
        for index in range(len(self.problem.resources)):
            free = (self.problem.capacity[:, index] - self.problem.fixed[:, index]).astype(float)
            # A node that is overfull by what stays cannot be cured; it takes nothing more.
            self.add(*self.load(index), np.full(self.nodes, -np.inf), np.maximum(free, 0.0))
        for position, (g, spread) in enumerate(self.skews):
            self._skew(g, spread, self.pods + position)

    def load(self, resource: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Coordinates of what the pods that may move ask of each node."""
        needs = np.array([self.problem.need(group)[resource] for group in self.problem.groups], dtype=float)
        every = np.arange(self.pods)
        values = needs[every // max(1, self.nodes)]
        kept = values != 0
        return (every % max(1, self.nodes))[kept], every[kept], values[kept]

    def domains(self, g: int, spread: Spread) -> tuple[NDArray[Any], NDArray[Any], int]:
        """(rows, columns, domains): the pods of a group by domain; domains without an eligible node are left out."""
        group = self.problem.groups[g]
        nodes = np.flatnonzero(group.eligible & (spread.domain >= 0))
        known, rows = np.unique(spread.domain[nodes], return_inverse=True)
        return rows, g * self.nodes + nodes, len(known)

    def _skew(self, g: int, spread: Spread, least: int) -> None:
        rows, columns, count = self.domains(g, spread)
        assert spread.max_skew is not None
        extra = np.arange(count)
        rows, columns = np.concatenate([rows, extra]), np.concatenate([columns, np.full(count, least)])
        values = np.concatenate([np.ones(len(rows) - count), -np.ones(count)])
        self.add(rows, columns, values, np.zeros(count), np.full(count, float(spread.max_skew)))

    def solve(self, objective: Floats, whole: NDArray[Any], limits: Limits) -> Best:
        """Minimise. `whole` (columns,) 1 where only whole numbers are meant."""
        large = self.columns > limits.variables
        answer = milp(
            objective,
            integrality=np.zeros(self.columns) if large else whole,
            bounds=Bounds(self.low, self.high),
            constraints=LinearConstraint(
                sparse.vstack(self._rows), np.concatenate(self._low), np.concatenate(self._high)
            ),
            options={"time_limit": limits.seconds, "mip_rel_gap": 1e-6},
        )
        if answer.status == _INFEASIBLE:
            return Best(float("inf"), exact=True, feasible=False)
        solved = answer.x is not None and answer.status == 0 and not large
        if not solved:
            bound = answer.fun if large and answer.x is not None else answer.mip_dual_bound
            return Best(float("nan") if bound is None else float(bound), exact=False)
        pods = np.rint(answer.x[: self.pods]).astype(np.int64).reshape(self.groups, self.nodes)
        return Best(float(answer.fun), exact=True, counts=tuple(pods))


def even(problem: Problem, resource: str, limits: Limits = Limits()) -> Best:
    """The least that the fullest node can be used of `resource`, as a share of its capacity (spreading)."""
    index = list(problem.resources).index(resource)
    program = _Program(problem, extra=1)
    program.base()
    top = program.extra
    capacity = problem.capacity[:, index].astype(float)
    there = np.flatnonzero(capacity > 0)
    rows, columns, values = program.load(index)
    nodes = np.concatenate([rows, there])
    of = np.concatenate([columns, np.full(len(there), top)])
    amounts = np.concatenate([values, -capacity[there]])
    program.add(nodes, of, amounts, np.full(program.nodes, -np.inf), -problem.fixed[:, index].astype(float))
    # Without capacity nothing of the resource can be used, which the base has said.
    program.high[top] = np.inf
    objective = np.zeros(program.columns)
    objective[top] = 1.0
    whole = np.ones(program.columns)
    whole[top] = 0
    return _judged(problem.groups, program.solve(objective, whole, limits))


def pack(problem: Problem, limits: Limits = Limits()) -> Best:
    """The least number of nodes that have to hold any pod of those that may move, or that stay."""
    program = _Program(problem, extra=len(problem.nodes))
    program.base()
    used = program.extra + np.arange(program.nodes)
    counts = np.array([group.count for group in problem.groups], dtype=float)
    most = np.minimum(counts.sum(), problem.capacity[:, list(problem.resources).index("pods")]).astype(float)
    every = np.arange(program.pods)
    rows = np.concatenate([every % max(1, program.nodes), np.arange(program.nodes)])
    columns = np.concatenate([every, used])
    values = np.concatenate([np.ones(program.pods), -np.maximum(most, 1.0)])
    program.add(rows, columns, values, np.full(program.nodes, -np.inf), np.zeros(program.nodes))
    program.high[used] = 1.0
    stays = problem.fixed[:, list(problem.resources).index("pods")] > 0
    program.low[used[stays]] = 1.0
    objective = np.zeros(program.columns)
    objective[used] = 1.0
    best = _judged(problem.groups, program.solve(objective, np.ones(program.columns), limits))
    return best if best.exact else Best(float(np.ceil(best.value - 1e-6)), exact=False, feasible=best.feasible)


def skew(problem: Problem, group: Group, spread: Spread, limits: Limits = Limits()) -> Best:
    """The least difference between the fullest and the emptiest domain of one group, all others placed too."""
    program = _Program(problem, extra=2)
    program.base()
    g = next(index for index, one in enumerate(problem.groups) if one is group)
    rows, columns, count = program.domains(g, spread)
    low, high = program.extra, program.extra + 1
    domains = np.arange(count)
    ones = np.ones(len(rows))
    nothing, endless = np.zeros(count), np.full(count, np.inf)
    for bound, sign in ((low, 1.0), (high, -1.0)):
        program.add(
            np.concatenate([rows, domains]),
            np.concatenate([columns, np.full(count, bound)]),
            np.concatenate([sign * ones, np.full(count, -sign)]),
            nothing,
            endless,
        )
    objective = np.zeros(program.columns)
    objective[high], objective[low] = 1.0, -1.0
    return _judged(problem.groups, program.solve(objective, np.ones(program.columns), limits))


def _judged(groups: Sequence[Group], best: Best) -> Best:
    if not any(group.unjudged for group in groups):
        return best
    return Best(best.value, exact=False, counts=best.counts, feasible=best.feasible)
