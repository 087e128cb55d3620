"""LS latency alone, beside BE without Slacktide, and beside BE with it; and what share of the idle CPU BE got.

One cell is an LS load, a kind of BE work and its number of busy processes; `--matrix` measures them all. Rounds are
interleaved: each measures all settings one after another, so that a machine whose speed drifts changes all of them
alike. Figures are medians over the rounds, ratios are medians of the ratios inside a round; their spread is printed.
In the matrix a round has one load at a time, what LS takes alone is measured before, between and after the others, and
BE without Slacktide in the first round only: it is there to show how far off it is.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import report
from standalone.load.burn import KINDS
from standalone.load.colocation import Measurement, Plan, plan_for, run_managed, run_plain, usable_cpus
from standalone.load.driver import LoadError
from standalone.load.stack import running

ROUNDS: Final = 5
QUICK_ROUNDS: Final = 2
ATTEMPTS: Final = 3
SETTINGS: Final = ("alone", "unmanaged", "managed")
BALLAST: Final = {"SLACKTIDE_AGENT_SPREAD__BALLAST": "true"}
LOADS: Final = (30, 60, 80)
THREADS: Final = (1, 2, 4, 8)
OTHERS_LOAD: Final = 60
BUSY_KINDS: Final = frozenset({"cpu", "membw", "forkstorm"})
"""Kinds that want all CPU they can get, so that a share of the idle CPU says something."""

P99_GOAL: Final = 1.05
P99_GOAL_LIGHT: Final = 1.15
"""At 30 % load, where LS alone is faster and BE runs on both sides of each request."""
P99_GOAL_ONE: Final = 1.2
SHARE_GOAL: Final = 0.88

Say = Callable[[str], None]
Round = Mapping[str, Measurement]


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One experiment. `load` is percent of all CPUs, `threads` busy BE processes."""

    kind: str
    load: int
    threads: int
    ballast: bool = False

    @property
    def key(self) -> str:
        """Name in results: `cpu/60/2`, with `+ballast` where that is on."""
        return f"{self.kind}/{self.load}/{self.threads}{'+ballast' if self.ballast else ''}"

    @property
    def p99_goal(self) -> float:
        """LS p99 beside managed BE per LS p99 alone shall be no more than this."""
        if self.threads == 1:
            return P99_GOAL_ONE
        return P99_GOAL_LIGHT if self.load <= 30 else P99_GOAL

    @property
    def share_goal(self) -> float | None:
        """BE shall get at least this share of what LS leaves; None where BE does not want it all."""
        return SHARE_GOAL if self.threads > 1 and self.kind in BUSY_KINDS else None

    def plan(self, cpus: int, seconds: float) -> Plan:
        """The experiment on a machine with this many CPUs."""
        return plan_for(cpus, self.load / 100.0, seconds, be_processes=self.threads, kind=self.kind)


def matrix() -> tuple[Cell, ...]:
    """All cells: busy loops at each load and number, with ballast for one; the other kinds at one load."""
    loops = [Cell("cpu", load, threads) for load in LOADS for threads in THREADS]
    ballast = [Cell("cpu", load, 1, ballast=True) for load in LOADS]
    others = [Cell(kind, OTHERS_LOAD, 4) for kind in KINDS if kind != "cpu"]
    return (*loops, *ballast, *others)


def measure_cells(
    cells: Sequence[Cell], cpus: int, seconds: float, say: Say, *, unmanaged_too: bool = True
) -> dict[Cell, Round]:
    """One round of cells of one load. Slacktide runs only while the managed ones are measured."""
    plan = cells[0].plan(cpus, seconds)
    alone = [_alone(plan, say)]
    plain = {cell: Cell(cell.kind, cell.load, cell.threads) for cell in cells}
    unmanaged: dict[Cell, Measurement] = {}
    managed: dict[Cell, Measurement] = {}
    for one in dict.fromkeys(plain.values()) if unmanaged_too else ():
        say(f"{one.key} unmanaged")
        unmanaged[one] = run_plain(one.plan(cpus, seconds), with_be=True)
    if len(cells) > 1:
        alone.append(_alone(plan, say))
    for settings, group in _by_settings(cells):
        managed |= _managed(group, settings, cpus, seconds, say)
    if len(cells) > 1:
        alone.append(_alone(plan, say))
    middle = sorted(alone, key=lambda found: found.latencies.p99_millis)[len(alone) // 2]
    both = {cell: {"alone": middle, "managed": managed[cell]} for cell in cells}
    return {
        cell: {**found, "unmanaged": unmanaged[plain[cell]]} if unmanaged_too else found for cell, found in both.items()
    }


def _managed(
    cells: Sequence[Cell], settings: Mapping[str, str], cpus: int, seconds: float, say: Say
) -> dict[Cell, Measurement]:
    """All on one Slacktide; a cell that does not get to run (a node that stays closed, say) gets another one."""
    found: dict[Cell, Measurement] = {}
    left = list(cells)
    for attempt in range(ATTEMPTS):
        try:
            with running(settings=settings) as (_, client):
                while left:
                    say(f"{left[0].key} managed")
                    found[left[0]] = run_managed(client, left[0].plan(cpus, seconds))
                    del left[0]
                return found
        except LoadError as error:
            if attempt == ATTEMPTS - 1:
                raise
            say(f"{left[0].key} again: {error}")
    return found


def _alone(plan: Plan, say: Say) -> Measurement:
    say(f"LS alone at {plan.load:.0%}")
    return run_plain(plan, with_be=False)


def _by_settings(cells: Sequence[Cell]) -> Iterator[tuple[Mapping[str, str], list[Cell]]]:
    for ballast in (False, True):
        group = [cell for cell in cells if cell.ballast is ballast]
        if group:
            yield (BALLAST if ballast else {}), group


def summarise(rounds: Sequence[Round]) -> dict[str, Any]:
    """Medians of all figures over the rounds; latencies in milliseconds, shares and ratios without unit."""
    results: dict[str, Any] = {"rounds": len(rounds)}
    for setting in SETTINGS:
        latencies = [measured[setting].latencies for measured in rounds if setting in measured]
        results[f"ls_p50_millis_{setting}"] = statistics.median(found.p50_millis for found in latencies)
        results[f"ls_p99_millis_{setting}"] = statistics.median(found.p99_millis for found in latencies)
        results[f"ls_p999_millis_{setting}"] = statistics.median(found.p999_millis for found in latencies)
        results[f"ls_lost_{setting}"] = sum(found.lost for found in latencies)
    for setting in SETTINGS[1:]:
        for name in ("p50", "p99", "p999"):
            ratios = [
                _latency(measured[setting], name) / _latency(measured["alone"], name)
                for measured in rounds
                if setting in measured
            ]
            results[f"ls_{name}_ratio_{setting}"] = statistics.median(ratios)
            results[f"ls_{name}_ratio_{setting}_rounds"] = [round(ratio, 3) for ratio in ratios]
    results["be_idle_share"] = _share(rounds, "managed")
    results["be_idle_share_unmanaged"] = _share(rounds, "unmanaged")
    return results


def judge(cell: Cell, results: Mapping[str, Any]) -> list[str]:
    """Goals that this cell missed, as sentences."""
    missed = []
    ratio, share = results["ls_p99_ratio_managed"], results["be_idle_share"]
    if ratio > cell.p99_goal:
        missed.append(f"LS p99 is {ratio:.2f} times alone, the goal is {cell.p99_goal:g}")
    if cell.share_goal is not None and share < cell.share_goal:
        missed.append(f"BE gets {share:.2f} of the idle CPU, the goal is {cell.share_goal:g}")
    return missed


def table(cells: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Rows for people, the first being the heading."""
    rows = [
        ["BE work / LS load % / BE threads", "alone p99 ms", "unmanaged", "managed", "rounds", "BE", "BE unmanaged"]
    ]
    for key, found in cells.items():
        ratios = found["ls_p99_ratio_managed_rounds"]
        rows.append(
            [
                f"{key}{' *' if found['missed'] else ''}",
                f"{found['ls_p99_millis_alone']:.2f}",
                f"{found['ls_p99_ratio_unmanaged']:.2f}x",
                f"{found['ls_p99_ratio_managed']:.2f}x",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{found['be_idle_share']:.2f}",
                f"{found['be_idle_share_unmanaged']:.2f}",
            ]
        )
    return rows


def _say(prefix: str, text: str) -> None:
    print(f"{prefix}: {text}", file=sys.stderr, flush=True)


def _latency(measured: Measurement, name: str) -> float:
    return float(getattr(measured.latencies, f"{name}_millis"))


def _share(rounds: Sequence[Round], setting: str) -> float:
    return statistics.median(measured[setting].be_idle_share or 0.0 for measured in rounds if setting in measured)


def _run(cells: Sequence[Cell], rounds: int, seconds: float) -> dict[str, Any]:
    """All rounds of all cells: a result a cell, by key."""
    cpus = usable_cpus()
    measured: dict[Cell, list[Round]] = {cell: [] for cell in cells}
    for number in range(1, rounds + 1):
        for load in dict.fromkeys(cell.load for cell in cells):
            group = [cell for cell in cells if cell.load == load]
            say = functools.partial(_say, f"round {number} of {rounds}")
            first = number == 1 or len(cells) == 1
            for cell, found in measure_cells(group, cpus, seconds, say, unmanaged_too=first).items():
                measured[cell].append(found)
    results = {}
    for cell in cells:
        found = summarise(measured[cell])
        results[cell.key] = {**found, "missed": judge(cell, found)}
    return results


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = report.parser("colocation", __doc__)
    parser.add_argument("--load", type=float, default=0.6, help="LS load as a share of all CPUs (default 0.6)")
    parser.add_argument("--threads", type=int, help="busy BE processes (default two a CPU)")
    parser.add_argument("--kind", choices=KINDS, default="cpu", help="what BE does (default cpu)")
    parser.add_argument("--ballast", action="store_true", help="the agent runs with ballast")
    parser.add_argument("--matrix", action="store_true", help="all loads, kinds and numbers; an hour")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--seconds", type=float, help="measured time of a run; default 6, with --quick 2")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its result."""
    arguments = _arguments(argv)
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    seconds = arguments.seconds or (2.0 if arguments.quick else 6.0)
    threads = arguments.threads or 2 * usable_cpus()
    one = Cell(arguments.kind, round(arguments.load * 100), threads, arguments.ballast)
    cells = matrix() if arguments.matrix else (one,)
    found = _run(cells, rounds, seconds)
    if arguments.matrix:
        missed = [f"{key}: {what}" for key, cell in found.items() for what in cell["missed"]]
        results = {"rounds": rounds, "seconds": seconds, "missed": missed, "cells": found}
        report.emit("colocation", results, arguments.output, rows=table(found), save=arguments.save)
    else:
        results = {"load": arguments.load, "kind": one.kind, "be_processes": threads, "ballast": one.ballast}
        report.emit("colocation", {**results, **found[one.key]}, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
