"""Which CPU each busy BE thread shall have. Pure; knows nothing of masks, time or kernels.

    share(cpu) = (1 - others(cpu)) / (threads there)        what one BE thread gets beside LS and SYSTEM

1. A thread without a CPU gets the allowed one with the fewest busy BE threads; among those the one whose core
   (hyper-threads) has the fewest, then the nearest to where it ran last (same cache, then same NUMA node), then the
   one that others use least.
2. While two CPUs differ by `imbalance` or more, or the cores of two unequal ones do, a thread moves from the fuller
   to the emptier, to the nearest that fits.
3. A thread that starves (the caller has watched it) moves where it would get more than twice what it has, and a
   real part of a CPU.

By 1 and 2, a CPU where a thread would get less than half of what it gets elsewhere is left out, so that 2 never
takes back what 3 did. With even use by others and full masks the numbers of threads differ by at most one, and a
second look at what came out moves nothing. At most `moves` threads that had a CPU are moved. Without a topology each
CPU is a core of its own and all are equally near.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.threads import Mask, ThreadKey
from agent.topology import Cpu, Topology

_LEAST_FREE: Final = 0.01
_HALF: Final = 0.5
_TWICE: Final = 2.0
_WORTH: Final = 0.05
"""Of a CPU: a starving thread does not move for less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A thread to be placed. `cpu` is where it is pinned now, `ran` the share of a CPU that it got of late.

    `busy` threads count on their CPU; the others keep theirs. `allowed` has at least one CPU. `near` is where it ran
    last, None where that is not known or does not matter.
    """

    key: ThreadKey
    allowed: Mask
    cpu: int | None = None
    busy: bool = True
    starving: bool = False
    ran: float = 0.0
    near: int | None = None


class _Board:
    """Threads on CPUs while they are being placed."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        fixed: Mapping[int, int],
        others: Mapping[int, float],
        topology: Topology | None,
    ) -> None:
        self.every = frozenset(others).union(fixed, *{one.allowed for one in candidates})
        self.known: dict[int, Cpu] = {cpu.id: cpu for cpu in topology.cpus} if topology else {}
        self.core = {cpu: self.known[cpu].core if cpu in self.known else cpu for cpu in self.every}
        self.free = {cpu: max(_LEAST_FREE, 1.0 - others.get(cpu, 0.0)) for cpu in self.every}
        self.counts = {cpu: fixed.get(cpu, 0) for cpu in self.every}
        self.cores = dict.fromkeys(self.core.values(), 0)
        for cpu, count in fixed.items():
            self.cores[self.core[cpu]] += count
        self.cpus: dict[ThreadKey, int] = {}
        self.moved: set[ThreadKey] = set()
        for one in candidates:
            if one.cpu is not None and one.cpu in one.allowed:
                self.put(one, one.cpu)

    def put(self, one: Candidate, cpu: int) -> None:
        """Place or move."""
        before = self.cpus.get(one.key)
        if one.busy:
            if before is not None:
                self.counts[before] -= 1
                self.cores[self.core[before]] -= 1
            self.counts[cpu] += 1
            self.cores[self.core[cpu]] += 1
        self.cpus[one.key] = cpu

    def move(self, one: Candidate, cpu: int) -> None:
        """Move, and count it."""
        self.put(one, cpu)
        self.moved.add(one.key)

    def share(self, cpu: int, more: int = 0) -> float:
        """What a thread gets on `cpu`, with `more` threads than there are."""
        return self.free[cpu] / max(1, self.counts[cpu] + more)

    def distance(self, cpu: int, other: int | None) -> int:
        """0 behind the same cache, 1 on the same NUMA node, 2 beyond; 0 where one of them is not known."""
        here, there = self.known.get(cpu), None if other is None else self.known.get(other)
        if here is None or there is None or (here.numa, here.llc) == (there.numa, there.llc):
            return 0
        return 1 if here.numa == there.numa else 2

    def rank(self, cpu: int, near: int | None = None) -> tuple[int, int, int, float, int]:
        """Sort key, best first."""
        return self.counts[cpu], self.cores[self.core[cpu]], self.distance(cpu, near), -self.free[cpu], cpu

    def best(self, one: Candidate) -> int:
        """Where one more thread fits best; only CPUs with the fewest threads need a full rank."""
        counts, free = self.counts, self.free
        shares = {cpu: free[cpu] / (counts[cpu] + 1) for cpu in one.allowed}
        least = _HALF * max(shares.values())
        fewest = min(counts[cpu] for cpu, share in shares.items() if share >= least)
        fit = [cpu for cpu, share in shares.items() if counts[cpu] == fewest and share >= least]
        return min(fit, key=lambda cpu: self.rank(cpu, one.near))

    def uneven(self, full: int, empty: int, imbalance: int) -> bool:
        """Whether a thread should go from one to the other."""
        by_cpu = self.counts[full] - self.counts[empty]
        return by_cpu >= imbalance or (
            by_cpu > 0 and self.cores[self.core[full]] - self.cores[self.core[empty]] >= imbalance
        )

    def may_give(self, cpu: int, imbalance: int, fewest: int, fewest_by_core: int) -> bool:
        """Whether any CPU could be so empty that this one gives a thread; the fewest are of all CPUs."""
        by_cpu = self.counts[cpu] - fewest
        return by_cpu >= imbalance or (by_cpu > 0 and self.cores[self.core[cpu]] - fewest_by_core >= imbalance)


def place(
    candidates: Sequence[Candidate],
    fixed: Mapping[int, int],
    others: Mapping[int, float],
    *,
    imbalance: int,
    moves: int,
    topology: Topology | None = None,
) -> dict[ThreadKey, int]:
    """A CPU for every candidate. `fixed` are busy BE threads a CPU that cannot be moved, `others` the use by LS and
    SYSTEM as a share of each CPU (missing: none).
    """
    board = _Board(candidates, fixed, others, topology)
    for one in sorted(candidates, key=lambda one: (len(one.allowed), one.key)):
        if one.key not in board.cpus:
            board.put(one, board.best(one))
    _feed(board, candidates, moves)
    _level(board, candidates, imbalance, moves)
    return board.cpus


def _feed(board: _Board, candidates: Sequence[Candidate], moves: int) -> None:
    """Move those that starve, the hungriest first."""
    for one in sorted((one for one in candidates if one.starving and one.busy), key=lambda one: one.ran):
        if len(board.moved) >= moves:
            return
        here = board.cpus[one.key]
        there = max(one.allowed, key=lambda cpu: (board.share(cpu, 1), -board.distance(cpu, here), -cpu))
        has, gets = max(one.ran, board.share(here)), board.share(there, 1)
        if there != here and gets > _TWICE * has and gets - has > _WORTH:
            board.move(one, there)


def _level(board: _Board, candidates: Sequence[Candidate], imbalance: int, moves: int) -> None:
    """Move from full to empty until nothing is `imbalance` apart."""
    by_cpu: dict[int, list[Candidate]] = {}
    for one in sorted(candidates, key=lambda one: one.ran, reverse=True):
        if one.busy:
            by_cpu.setdefault(board.cpus[one.key], []).append(one)
    while by_cpu and len(board.moved) < moves:
        step = _next_step(board, by_cpu, imbalance)
        if step is None:
            return
        one, here, there = step
        by_cpu[here].remove(one)
        by_cpu.setdefault(there, []).insert(0, one)
        board.move(one, there)


def _next_step(
    board: _Board, by_cpu: Mapping[int, Sequence[Candidate]], imbalance: int
) -> tuple[Candidate, int, int] | None:
    """The most useful move: from the fullest CPU that can give, the thread that ran least."""
    fewest, by_core = min(board.counts.values()), min(board.cores.values())
    full = [cpu for cpu, there in by_cpu.items() if there and board.may_give(cpu, imbalance, fewest, by_core)]
    for here in sorted(full, key=board.rank, reverse=True):
        for one in reversed(by_cpu[here]):
            fit = [cpu for cpu in one.allowed if board.uneven(here, cpu, imbalance)]
            fit = [cpu for cpu in fit if board.share(cpu, 1) >= _HALF * board.share(here)]
            if fit:
                return one, here, min(fit, key=lambda cpu: (board.distance(cpu, here), board.rank(cpu)))
    return None
