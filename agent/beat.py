"""The beat: what is read 20 times a second to see whether LS is short of CPU, and nothing else.

Readings go into a short ring; pressure is judged between the newest and the oldest of the window, so that one noisy
beat does not cut BE and a real shortage still shows after a beat or two. Per-cgroup PSI is preferred; where a node, or
one cgroup of it, has none, the run delay of its LS threads stands in; with no LS pod there is nobody to be short.

On a node whose CPUs are far from busy nobody is short (`agent.policy.shortage`): pressure is then read in every fourth
beat or so, and what it was last is said in between.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from agent.capabilities import Capabilities
from agent.counters import PsiTotals, RunDelay
from agent.host.cgroup import PodGroup
from agent.pressure import Pressure, Waited, pressure_of, psi_pressure, psi_share, sum_deltas, worst

LEAN_SECONDS: Final = 0.18
"""So old may pressure be while the CPUs are not busy."""

LEAN_BELOW: Final = 0.7
"""CPUs are far from busy below this part of what counts as busy: a surge passes it a beat before it is judged."""


class Signals(Protocol):
    """What the beat reads from: the host in real life."""

    def cpu_psi(self, group: PodGroup) -> PsiTotals | None:
        """CPU pressure totals of one LS pod."""

    def run_delay(self) -> RunDelay:
        """Times of the LS threads that are followed."""

    def follow(self, groups: Sequence[PodGroup]) -> None:
        """Follow the threads of these pods from now on."""

    def node_beat(self) -> tuple[float, float | None, int | None]:
        """(time, busy CPU seconds, available memory bytes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One beat: pressure over the window, busy share of the node over the window, available memory."""

    at: float
    pressure: Pressure | None
    node_busy_ratio: float | None
    memory_available_bytes: int | None


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float
    busy_seconds: float | None
    delays: RunDelay | None
    waited: Waited | None
    psi: Mapping[tuple[str, int], PsiTotals]


class Beat:
    """Keeps the window. `cpus` is the number of CPUs of the node until `follow` says another, `burnt` CPU seconds that
    are nobody's need (ballast), `busy_ratio` the share of busy CPUs from which LS can be short.

    One thread uses it.
    """

    def __init__(
        self,
        signals: Signals,
        capabilities: Capabilities,
        window_seconds: float,
        cpus: int,
        burnt: Callable[[], float] = lambda: 0.0,
        busy_ratio: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._signals = signals
        self._capabilities = capabilities
        self._window = window_seconds
        self._cpus = cpus
        self._burnt = burnt
        self._busy_ratio = busy_ratio
        self._last: Reading | None = None
        self._marks: deque[_Mark] = deque()
        self._ls: tuple[PodGroup, ...] = ()
        self._ls_load: float | None = None
        self._by_delay: tuple[PodGroup, ...] = ()
        self._lacking: frozenset[tuple[str, int]] = frozenset()

    def follow(self, ls: Sequence[PodGroup], ls_load: float | None, cpus: int | None = None) -> None:
        """After each turn: the LS pods there are now, their load as a share of the node, and how many CPUs it has.

        What is None is not known. CPUs come and go: with those of the start a machine that lost half would never be
        busy, and its LS never short.
        """
        self._ls = tuple(ls)
        self._ls_load = ls_load
        self._cpus = cpus or self._cpus
        if not self._capabilities.run_delay:
            return
        before = self._by_delay
        without = (group for group in self._ls if (group.group, group.inode) in self._lacking)
        self._by_delay = tuple(without) if self._capabilities.psi else self._ls
        if self._by_delay or before:
            self._signals.follow(self._by_delay)

    def take(self, *, whole: bool = True) -> Reading:
        """Read once and judge the window. Not `whole`: pressure may be that of a moment ago on a calm node."""
        at, busy, memory = self._signals.node_beat()
        busy = None if busy is None else busy - self._burnt()
        if not whole and (lean := self._lean(at, busy, memory)) is not None:
            return lean
        delays = self._delays()
        mark = _Mark(at, busy, delays, self._waited(delays), self._psi())
        while len(self._marks) > 1 and at - self._marks[1].at >= self._window:
            self._marks.popleft()
        oldest = self._marks[0] if self._marks else None
        self._marks.append(mark)
        self._last = Reading(
            at=at,
            pressure=self._pressure(oldest, mark),
            node_busy_ratio=self._busy(oldest, at, busy),
            memory_available_bytes=memory,
        )
        return self._last

    def _lean(self, at: float, busy: float | None, memory: int | None) -> Reading | None:
        """The reading without a look at LS; None when that is due."""
        if self._last is None or self._last.pressure is None or at - self._marks[-1].at >= LEAN_SECONDS:
            return None
        over, lately = self._busy(self._marks[0], at, busy), self._busy(self._marks[-1], at, busy)
        if over is None or lately is None or max(over, lately) >= LEAN_BELOW * self._busy_ratio():
            return None
        return Reading(at=at, pressure=self._last.pressure, node_busy_ratio=over, memory_available_bytes=memory)

    def _delays(self) -> RunDelay | None:
        return self._signals.run_delay() if self._by_delay else None

    def _psi(self) -> Mapping[tuple[str, int], PsiTotals]:
        if not self._capabilities.psi:
            return {}
        totals = {(group.group, group.inode): self._signals.cpu_psi(group) for group in self._ls}
        self._lacking = frozenset(key for key, value in totals.items() if value is None)
        return {key: value for key, value in totals.items() if value is not None}

    def _pressure(self, oldest: _Mark | None, mark: _Mark) -> Pressure | None:
        if not self._ls:
            return Pressure(kind="no-ls", value=0.0, window_seconds=self._window)
        if oldest is None:
            return None
        return worst(self._psi_pressure(oldest, mark), self._delay_pressure())

    def _psi_pressure(self, oldest: _Mark, mark: _Mark) -> Pressure | None:
        window = mark.at - oldest.at
        pairs = [(oldest.psi[key], now) for key, now in mark.psi.items() if key in oldest.psi]
        shares = [share for before, now in pairs if (share := psi_share(before, now, window)) is not None]
        return psi_pressure(shares, self._ls_load, self._cpus, window)

    def _delay_pressure(self) -> Pressure | None:
        """Of all LS, or of the pods without PSI: those wait for the others, too, so the load is that of all."""
        waited, covered = self._window_sum()
        return pressure_of(waited, covered, self._cpus, self._ls_load if self._capabilities.psi else None)

    def _waited(self, now: RunDelay | None) -> Waited | None:
        """What the threads waited since the last beat; an LS without threads waits for nothing."""
        before = self._marks[-1].delays if self._marks else None
        if now is None or before is None:
            return None
        return Waited(0.0, 0.0) if now.threads == 0 else sum_deltas(before, now)

    def _window_sum(self) -> tuple[Waited | None, float]:
        """Sum of the beats in the window, and the seconds that they cover; None when the last beat is not known.

        Summed beat by beat, so that a thread counts for the part of the window in which it was followed.
        """
        run = delay = covered = 0.0
        for before, mark in itertools.pairwise(self._marks):
            if mark.waited is not None:
                run, delay, covered = (
                    run + mark.waited.run_ns,
                    delay + mark.waited.delay_ns,
                    covered + mark.at - before.at,
                )
        return (Waited(run, delay) if self._marks[-1].waited is not None else None), covered

    def _busy(self, oldest: _Mark | None, at: float, busy_seconds: float | None) -> float | None:
        if oldest is None or oldest.busy_seconds is None or busy_seconds is None or at <= oldest.at:
            return None
        busy = (busy_seconds - oldest.busy_seconds) / (at - oldest.at) / self._cpus
        return min(1.0, busy) if busy >= 0 else None
