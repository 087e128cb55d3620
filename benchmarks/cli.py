"""How long the command takes to answer: help, a list of pods, and a picture of 5,000 nodes.

Whole processes, from start to end, the median of several; `kubectl version --client` in the same run where kubectl is
on PATH. The list of pods is asked of a Slacktide that runs on this machine with 20 pods that wait. The picture of a
fleet is worked out and drawn once with all its nodes and pods in memory, as `top` does for each look.

    help_ms     `slacktide --help`
    ps_ms       `slacktide ps` of 20 pods
    kubectl_ms  `kubectl version --client`
    top_ms      one look at 5,000 nodes and 25,000 pods, drawn for a terminal of 50 lines
"""

from __future__ import annotations

import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import emit, parser
from cli.fleet import COLUMNS, Trends, cells, chosen, fleet
from cli.grid import Grid
from slacktide import forecast as wire
from slacktide.forecast import Amount, Forecast, Terms
from slacktide.names import BATCH_CPU, FORECAST_ANNOTATION
from slacktide.objects import Container, Node, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements

PODS = 20
LINES = 50


def median_ms(runs: int, run: Callable[[], object]) -> float:
    """Median wall time of `run`, in milliseconds, after one that does not count."""
    run()
    took = []
    for _ in range(runs):
        begin = time.perf_counter()
        run()
        took.append((time.perf_counter() - begin) * 1000)
    return statistics.median(took)


def called(*command: str) -> Callable[[], object]:
    """A process that must succeed. It may keep its byte code, as every installation does after the first call."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return lambda: subprocess.run(command, check=True, capture_output=True, timeout=60, env=environ)


def command_path() -> str:
    """The console script beside this interpreter."""
    return str(Path(sys.executable).with_name("slacktide"))


def listed(runs: int) -> float:
    """`slacktide ps` of pods that wait, on an instance of its own."""
    slacktide = command_path()
    with tempfile.TemporaryDirectory(prefix="stb") as state:
        here = (slacktide, "--state", state)
        called(*here, "up", "--detach", "--node", "bench", "--timeout", "90")()
        try:
            for index in range(PODS):
                # More than there is: they wait, and the machine stays quiet.
                called(*here, "run", "--tier", "be", "--cpu", "900", "--detach", "--name", f"p{index}", "--", "true")()
            return median_ms(runs, called(*here, "ps"))
        finally:
            called(*here, "down", "--now")()


def drawn(nodes: int, runs: int) -> float:
    """One look of `top` at a fleet, and its picture."""
    now = time.time()
    amount = Amount(cpu_millis=4000, memory_bytes=1 << 34)
    text = wire.encode(
        Forecast(
            at=now,
            ttl_seconds=600,
            peak=amount,
            reclaimable=amount,
            terms=Terms(capacity=amount, reserve=amount, peak=amount, now=amount, sold=amount),
        )
    )
    fleet_nodes = [
        Node(metadata=ObjectMeta(name=f"node-{index:05}", annotations={FORECAST_ANNOTATION: text}))
        for index in range(nodes)
    ]
    container = Container(name="main", resources=ResourceRequirements(requests={BATCH_CPU: "100"}))
    pods = [
        Pod(
            metadata=ObjectMeta(name=f"p{index}", namespace="team"),
            spec=PodSpec(node_name=f"node-{index % nodes:05}", containers=[container]),
            status=PodStatus(phase="Running"),
        )
        for index in range(5 * nodes)
    ]
    trends = Trends()

    def look() -> None:
        found = fleet(fleet_nodes, pods, now)
        trends.add(found.nodes)
        shown = chosen(found.nodes, "now", "", "all")[:LINES]
        rows = [cells(one, found.pods[one.node], trends.line(one.node)) for one in shown]
        Console(file=io.StringIO(), width=160).print(Grid(COLUMNS, rows))

    return median_ms(runs, look)


def table(results: dict[str, Any]) -> list[list[str]]:
    """Rows for people."""
    return [["figure", "ms"], *([name, f"{value:.0f}"] for name, value in results.items() if value is not None)]


def main() -> int:
    """Run the benchmark."""
    arguments = parser("cli", __doc__)
    arguments.add_argument("--nodes", type=int, default=5000)
    chosen_arguments = arguments.parse_args()
    runs = 3 if chosen_arguments.quick else 15
    kubectl = shutil.which("kubectl")
    results: dict[str, Any] = {
        "help_ms": median_ms(runs, called(command_path(), "--help")),
        "ps_ms": listed(runs),
        "kubectl_ms": None if kubectl is None else median_ms(runs, called(kubectl, "version", "--client")),
        "top_ms": drawn(chosen_arguments.nodes, 3),
    }
    emit("cli", results, chosen_arguments.output, rows=table(results), save=chosen_arguments.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
