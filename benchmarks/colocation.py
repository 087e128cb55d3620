"""LS latency alone, beside BE without Slacktide, and beside BE with it; and what share of the idle CPU BE got.

Rounds are interleaved: each measures all three settings one after another, so that a machine whose speed drifts
changes all of them alike. Figures are medians over the rounds, ratios are medians of the ratios inside a round.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import report
from standalone.load.colocation import Measurement, Plan, plan_for, run_managed, run_plain, usable_cpus
from standalone.load.stack import running

ROUNDS = 5
QUICK_ROUNDS = 2
SETTINGS = ("alone", "unmanaged", "managed")


def one_round(plan: Plan, say: Callable[[str], None]) -> dict[str, Measurement]:
    """Measure the three settings once; Slacktide runs only while the managed one is measured."""
    measured: dict[str, Measurement] = {}
    say("alone")
    measured["alone"] = run_plain(plan, with_be=False)
    say("beside BE, unmanaged")
    measured["unmanaged"] = run_plain(plan, with_be=True)
    say("beside BE, managed")
    with running() as (_, client):
        measured["managed"] = run_managed(client, plan)
    return measured


def summarise(rounds: Sequence[dict[str, Measurement]]) -> dict[str, Any]:
    """Medians of all figures over the rounds; latencies in milliseconds, shares and ratios without unit."""
    results: dict[str, Any] = {"rounds": len(rounds)}
    for setting in SETTINGS:
        latencies = [measured[setting].latencies for measured in rounds]
        results[f"ls_p50_millis_{setting}"] = statistics.median(found.p50_millis for found in latencies)
        results[f"ls_p99_millis_{setting}"] = statistics.median(found.p99_millis for found in latencies)
        results[f"ls_p999_millis_{setting}"] = statistics.median(found.p999_millis for found in latencies)
        results[f"ls_lost_{setting}"] = sum(found.lost for found in latencies)
    for setting in SETTINGS[1:]:
        for name in ("p50", "p99", "p999"):
            ratios = [_latency(measured[setting], name) / _latency(measured["alone"], name) for measured in rounds]
            results[f"ls_{name}_ratio_{setting}"] = statistics.median(ratios)
            results[f"ls_{name}_ratio_{setting}_rounds"] = [round(ratio, 3) for ratio in ratios]
    results["be_idle_share"] = _share(rounds, "managed")
    results["be_idle_share_unmanaged"] = _share(rounds, "unmanaged")
    return results


def _say(prefix: str, text: str) -> None:
    print(f"{prefix}: {text}", file=sys.stderr)


def _latency(measured: Measurement, name: str) -> float:
    return float(getattr(measured.latencies, f"{name}_millis"))


def _share(rounds: Sequence[dict[str, Measurement]], setting: str) -> float:
    return statistics.median(measured[setting].be_idle_share or 0.0 for measured in rounds)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its result."""
    parser = report.parser("colocation", __doc__)
    parser.add_argument("--load", type=float, default=0.6, help="LS load as a share of all CPUs (default 0.6)")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--seconds", type=float, help="measured time of a run; default 6, with --quick 2")
    arguments = parser.parse_args(argv)
    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    seconds = arguments.seconds or (2.0 if arguments.quick else 6.0)
    plan = plan_for(usable_cpus(), arguments.load, seconds)
    measured = [one_round(plan, functools.partial(_say, f"round {n} of {rounds}")) for n in range(1, rounds + 1)]
    results = {"load": arguments.load, "be_processes": plan.be_processes, **summarise(measured)}
    report.emit("colocation", results, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
