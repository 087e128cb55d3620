"""Makes docs/benchmarks.md from page.md and the results that were kept (`--save`): `python -m benchmarks.page`.

In page.md a line `<!-- NAME -->` stands for the result of a benchmark: no measured figure is typed by hand. `--check`
says whether the page is what this makes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import colocation, forecast, report
from benchmarks.report import Machine, Report

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"

TEXT: Final = Path(__file__).with_name("page.md")

_PLACE: Final = re.compile(r"^<!-- (\w+) -->$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure shall be: at most or at least this."""

    most: float | None = None
    least: float | None = None

    def met(self, value: float) -> bool:
        """Whether it is."""
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    def __str__(self) -> str:
        return f"at most {self.most:g}" if self.most is not None else f"at least {self.least:g}"


GOALS: Final[Mapping[str, Mapping[str, Goal]]] = {
    "reaction": {"throttle_ms_p99": Goal(most=60.0), "surges": Goal(least=200), "missed": Goal(most=0)},
    "agent_cost": {
        "cpu_fraction_150": Goal(most=0.05),
        "rss_mib_150": Goal(most=100.0),
        "beat_cpu_fraction": Goal(most=0.01),
    },
    "crash": {
        "kills": Goal(least=200),
        "ls_limited": Goal(most=0),
        "limits_lost": Goal(most=0),
        "left_over": Goal(most=0),
    },
    "predictor": {
        "ingest_lost": Goal(most=0),
        "cores_10000": Goal(most=1.0),
        "rss_mib_10000": Goal(most=2048.0),
        "forecast_pass_seconds_10000": Goal(most=5.0),
        "restart_seconds_10000": Goal(most=30.0),
        "acknowledged_lost": Goal(most=0),
    },
    "scheduler": {"ratio_5000": Goal(least=1.0), "oversold_nodes_ours": Goal(most=0)},
    "extender": {"filter_prioritize_ms_p99_5000": Goal(most=10.0)},
    "cli": {"help_ms": Goal(most=150.0), "ps_ms": Goal(most=300.0), "top_ms": Goal(most=1000.0)},
    "cluster": {
        "node_writes_per_minute": Goal(most=2.0),
        "scheduler_rss_mib": Goal(most=400.0),
        "predictor_rss_mib": Goal(most=2048.0),
        "oversold_nodes": Goal(most=0),
    },
}
"""What figures shall be, by benchmark; colocation judges its own cells."""


def load(directory: Path) -> dict[str, Report]:
    """Kept results by benchmark. Raises msgspec.DecodeError for a file that is none."""
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=Report) for path in sorted(directory.glob("*.json"))}


def render(text: str, reports: Mapping[str, Report]) -> str:
    """The page. Raises ValueError for a result that `text` has no place for."""
    homeless = reports.keys() - set(_PLACE.findall(text))
    if homeless:
        raise ValueError(f"{TEXT.name} has no place for {', '.join(sorted(homeless))}: add a line <!-- NAME -->")
    return _PLACE.sub(lambda place: _result(place[1], reports.get(place[1])), text)


def _result(name: str, found: Report | None) -> str:
    if found is None:
        return f"Not kept yet: `python -m benchmarks.{name} --save`."
    figures = _FIGURES.get(name, _figures)(name, found.results)
    return f"`{found.command}` on {_machine(found.machine)}:\n\n{figures}"


def _machine(machine: Machine) -> str:
    memory = machine.memory_bytes / (1 << 30)
    return (
        f"{machine.cpus} CPUs ({machine.cpu_model}), {memory:.1f} GiB, Linux {machine.kernel}, cgroup {machine.cgroup},"
        f" Python {machine.python}"
    )


def _figures(name: str, results: Mapping[str, Any]) -> str:
    goals = GOALS.get(name, {})
    rows = [["figure", "value", "goal"]]
    for figure, value in results.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        said = f"{value:.3g}" if isinstance(value, float) else str(value)
        rows.append([f"`{figure}`", said, _judged(goals.get(figure), value)])
    return _markdown(rows)


def _judged(goal: Goal | None, value: float) -> str:
    if goal is None:
        return ""
    return str(goal) if goal.met(value) else f"**missed**: {goal}"


def _colocation(name: str, results: Mapping[str, Any]) -> str:
    """The matrix as a table; a single cell as figures."""
    if "cells" not in results:
        return _figures(name, results)
    missed = "\n".join(f"- {sentence}" for sentence in results["missed"])
    said = f"Missed:\n\n{missed}" if missed else "All goals are met."
    return f"{_markdown(colocation.table(results['cells']))}\n\n{said}"


def _forecast(name: str, results: Mapping[str, Any]) -> str:  # noqa: ARG001 - one signature for all
    return _markdown(forecast.table(results))


_FIGURES: Final[Mapping[str, Callable[[str, Mapping[str, Any]], str]]] = {
    "colocation": _colocation,
    "forecast": _forecast,
}


def _markdown(rows: list[list[str]]) -> str:
    heading, *body = rows
    lines = [heading, ["---"] * len(heading), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: list[str] | None = None) -> int:
    """Write the page, or check it; returns the exit status (1: the page is another)."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    arguments = parser.parse_args(argv)
    text = render(TEXT.read_text(encoding="utf-8"), load(report.RESULTS))
    if not arguments.check:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE.name} is not what python -m benchmarks.page makes: run it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
