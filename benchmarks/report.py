"""The common form of a benchmark's result: one JSON object {benchmark, command, machine, results}."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from typing import Any

import msgspec
import psutil

from slacktide.kernel.hierarchy import discover


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
    return made


def emit(name: str, results: dict[str, Any], output: str) -> None:
    """Print the result: one JSON document, or a line a figure for people."""
    arguments = shlex.join(sys.argv[1:])
    command = f"python -m benchmarks.{name} {arguments}".rstrip()
    report = Report(benchmark=name, command=command, machine=machine(), results=results)
    if output == "json":
        print(msgspec.json.encode(report).decode())
        return
    print(f"{report.command}\n{report.machine}\n")
    for key, value in results.items():
        print(f"{key:32} {value:.3f}" if isinstance(value, float) else f"{key:32} {value}")


def _cpu_model() -> str:
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
