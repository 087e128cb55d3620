"""What the agent costs: CPU and memory with 10 to 500 containers, half of them BE, in real cgroups.

The agent runs as on a node (`python -m agent`, every policy, limits written); its CPU time and resident size, and
those of processes it started, are read from /proc. The beat alone is the difference to an agent that only does turns.
The floor is the plainest loop that reads the same files once a second: open, read, close, nothing judged.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psutil

from benchmarks import report
from benchmarks.crowd import NODE, Crowd
from slacktide.errors import SlacktideError
from slacktide.kernel.hierarchy import discover
from standalone.probe import get

SIZES: Final = (10, 50, 150, 500)
JUDGED: Final = 150
MIB: Final = 1 << 20
SETTLE_TURNS: Final = 8
"""Turns before anything is measured: caches are filled, threads placed, limits written."""

READY_SECONDS: Final = 120.0

FILES: Final = {
    "cpu": (
        *("cpu.stat", "cpu.shares", "cpu.idle", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.cfs_burst_us"),
        *("cpu.weight", "cpu.max", "cpu.max.burst", "cpu.pressure", "io.pressure", "memory.pressure"),
    ),
    "cpuacct": ("cpuacct.usage",),
    "memory": (
        *("memory.usage_in_bytes", "memory.stat", "memory.limit_in_bytes", "memory.oom_control", "memory.failcnt"),
        *("memory.current", "memory.max", "memory.high", "memory.events", "memory.events.local"),
    ),
    "pids": ("pids.current", "pids.max"),
    "cpuset": ("cpuset.effective_cpus", "cpuset.cpus.effective"),
    "freezer": ("freezer.state", "cgroup.events"),
    "io": ("io.stat",),
    "blkio": ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive"),
}
"""What the agent reads of a pod, by controller; those of the other cgroup version are not there."""

FLOOR: Final = r"""
import sys, time
files = sys.stdin.read().split("\n")
print("ready", flush=True)
due = time.monotonic()
while True:
    for path in files:
        with open(path, "rb") as file:
            file.read()
    due += 1.0
    time.sleep(max(0.0, due - time.monotonic()))
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Over one measurement: share of one CPU, resident bytes, both with all processes of the agent."""

    cpu_fraction: float
    resident_bytes: int


def measured(pid: int, seconds: float) -> Cost:
    """CPU time and resident size of a process and of those it started."""
    before, begin = _cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    used, passed = _cpu_seconds(pid) - before, time.monotonic() - begin
    return Cost(used / passed, sum(process.memory_info().rss for process in _family(pid)))


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _cpu_seconds(pid: int) -> float:
    return sum(times.user + times.system for times in (one.cpu_times() for one in _family(pid)))


@contextlib.contextmanager
def agent(crowd: Crowd, *flags: str) -> Iterator[int]:
    """The agent on this crowd, settled; its process id. Raises SlacktideError when it does not get ready."""
    observe = f"{crowd.directory}/agent.sock"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(observe)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "agent", "--node", NODE, "--cluster.server", f"unix:{crowd.socket}"),
            *("--state-dir", f"{crowd.directory}/state", "--cgroup-root", crowd.root),
            *("--observe.listen", f"unix:{observe}", *flags),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_settled(process, observe, len(crowd.pods))
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(READY_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_settled(process: subprocess.Popen[bytes], observe: str, pods: int) -> None:
    """Until all pods are known and no newcomer was judged for some turns: the start is not what is measured."""
    deadline, since, arrivals = time.monotonic() + READY_SECONDS, 0, -1
    while True:
        status: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            status = json.loads(get(observe, "/status")[1])
        if len(status.get("pods", ())) == pods:
            now = status["counters"].get("arrivals", 0)
            if now != arrivals:
                since, arrivals = status["turn"], now
            if status["turn"] - since >= SETTLE_TURNS:
                return
        if process.poll() is not None:
            raise SlacktideError(f"the agent ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise SlacktideError(
                f"the agent did not settle in {READY_SECONDS:.0f} s: {status.get('line', 'no status')}"
            )
        time.sleep(0.1)


def files_of(crowd: Crowd) -> list[str]:
    """All files of pods and containers that the agent reads, as paths."""
    found = []
    for name, mount in discover().controllers.items():
        for pod in glob.glob(f"{mount.path}/{crowd.root}/kubepods/*/pod*"):
            wanted = [f"{pod}/{file}" for file in FILES.get(name, ())]
            found += [path for path in wanted if os.path.exists(path)]
            found += glob.glob(f"{pod}/*/tasks") if name == "cpu" else []
    return [*found, "/proc/stat", "/proc/meminfo"]


def floor(crowd: Crowd, seconds: float) -> float:
    """Share of one CPU of the plainest loop that reads the same files."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", FLOOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n".join(files_of(crowd)))
            process.stdin.close()
            process.stdout.readline()
            return measured(process.pid, seconds).cpu_fraction
        finally:
            process.kill()


def run(seconds: float, sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    """All figures. Shares are of one CPU."""
    results: dict[str, Any] = {"seconds": seconds}
    costs: dict[int, Cost] = {}
    with Crowd() as crowd:
        for size in sizes:
            _say(f"{size} containers")
            crowd.grow(size)
            with agent(crowd) as pid:
                costs[size] = measured(pid, seconds)
            if size == JUDGED:
                _say(f"{size} containers, turns only")
                with agent(crowd, "--beat-seconds", "1", "--busy-beat-seconds", "1") as pid:
                    turns = measured(pid, seconds)
                results["beat_cpu_fraction"] = costs[size].cpu_fraction - turns.cpu_fraction
                _say(f"{size} containers, floor")
                results[f"floor_cpu_fraction_{size}"] = floor(crowd, seconds)
    for size, cost in costs.items():
        results[f"cpu_fraction_{size}"] = cost.cpu_fraction
        results[f"rss_mib_{size}"] = cost.resident_bytes / MIB
    results["cpu_fraction_per_100_containers"] = growth(costs)
    return results


def growth(costs: dict[int, Cost]) -> dict[str, float]:
    """How much CPU 100 more containers cost, between each size and the next: alike where growth is linear."""
    sizes = sorted(costs)
    return {
        f"{small}-{large}": round(100 * (costs[large].cpu_fraction - costs[small].cpu_fraction) / (large - small), 4)
        for small, large in itertools.pairwise(sizes)
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its result."""
    parser = report.parser("agent_cost", __doc__)
    parser.add_argument("--seconds", type=float, help="measured time of one run; default 30, with --quick 4")
    arguments = parser.parse_args(argv)
    seconds = arguments.seconds or (4.0 if arguments.quick else 30.0)
    report.emit("agent_cost", run(seconds), arguments.output, save=arguments.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
