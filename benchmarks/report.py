"""The common form of a benchmark's result: one JSON object {benchmark, command, machine, results}.

Kept results (`--save`) are what `docs/benchmarks.md` is made from, see `benchmarks.page`.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from slacktide.kernel.hierarchy import discover

RESULTS: Final = Path(__file__).parent / "results"
"""Results that were kept, one file a benchmark."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where the figures were measured."""

    cpus: int
    cpu_model: str
    memory_bytes: int
    kernel: str
    cgroup: str
    python: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a benchmark prints."""

    benchmark: str
    command: str
    machine: Machine
    results: dict[str, Any]


def machine() -> Machine:
    """Describe this machine without naming it."""
    return Machine(
        cpus=len(os.sched_getaffinity(0)),
        cpu_model=_cpu_model(),
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        cgroup=discover().mode,
        python=platform.python_version(),
    )


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Arguments that every benchmark takes."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    made.add_argument("--quick", action="store_true", help="under one minute, for a first look")
    made.add_argument("--output", choices=("table", "json"), default="table")
    made.add_argument("--save", action="store_true", help="keep the result in benchmarks/results for the page")
    return made


def emit(
    name: str, results: dict[str, Any], output: str, *, rows: list[list[str]] | None = None, save: bool = False
) -> None:
    """Print the result: one JSON document, or for people a line a figure, or `rows` (the first is the heading).

    `save` keeps it as `benchmarks/results/NAME.json`.
    """
    arguments = shlex.join(argument for argument in sys.argv[1:] if argument != "--save")
    command = f"python -m benchmarks.{name} {arguments}".rstrip()
    report = Report(benchmark=name, command=command, machine=machine(), results=results)
    if save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if output == "json":
        print(msgspec.json.encode(report).decode())
        return
    print(f"{report.command}\n{report.machine}\n")
    if rows is not None:
        print(aligned(rows))
        return
    for key, value in results.items():
        print(f"{key:32} {value:.3f}" if isinstance(value, float) else f"{key:32} {value}")


def aligned(rows: list[list[str]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
