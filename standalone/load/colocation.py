"""One colocation experiment: an LS server alone, beside BE work without Slacktide, and beside BE work with it.

The same two commands run each time. Alone and unmanaged they are plain processes and no part of Slacktide runs;
managed they are pods on a Slacktide that `Stack` starts and stops. What LS leaves idle is counted from the CPU time
that its workers really used, so Slacktide's own cost shows in BE's share.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from slacktide.cluster import PODS, Client
from slacktide.names import BATCH_MEMORY, HOST_PROCESS_IMAGE, SCHEDULER_NAME, TIER_LABEL
from slacktide.objects import Pod
from standalone.load.burn import COPY_BYTES, FILE_BYTES
from standalone.load.driver import Driver, Latencies, LoadError

MAX_RATE = 1500.0
"""Requests a second that one client process sends without being the bottleneck."""

_TICK = os.sysconf("SC_CLK_TCK")
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""Where `python -m standalone.load` finds this package."""
_MEMORY_BYTES = {
    "cpu": 8 << 20,
    "membw": (8 << 20) + 2 * COPY_BYTES,
    "forkstorm": 64 << 20,
    "pagecache": (8 << 20) + FILE_BYTES,
    "sleepwake": 8 << 20,
}
"""Need of one BE process, page cache included."""
OPEN_SECONDS = 120.0
"""How long BE waits for its node, which may be closed because LS was short in the experiment before."""
SETTLE_SECONDS = 3.0
"""Run before anything is counted: new processes page in, and the agent has seen and placed them by then."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Size of an experiment on this machine."""

    cpus: int
    load: float
    """LS load as a share of all CPUs."""
    service_seconds: float
    """CPU time of one request."""
    workers: int
    be_processes: int
    seconds: float
    """Measured time of one run."""
    seed: int = 7
    kind: str = "cpu"
    """What BE does, of burn.KINDS."""

    @property
    def rate(self) -> float:
        """Requests a second that give `load`."""
        return self.cpus * self.load / self.service_seconds


def plan_for(
    cpus: int, load: float, seconds: float, seed: int = 7, *, be_processes: int | None = None, kind: str = "cpu"
) -> Plan:
    """Two LS workers and two busy BE processes (or `be_processes`) a CPU, and requests long enough for one client to
    keep up.
    """
    service_seconds = max(0.001, cpus * load / MAX_RATE)
    return Plan(cpus, load, service_seconds, 2 * cpus, be_processes or 2 * cpus, seconds, seed, kind)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of one run."""

    latencies: Latencies
    be_idle_share: float | None
    """CPU time of BE per CPU time that LS left idle; None without BE."""
    ls_cpus: float
    """CPUs that the LS workers used on average."""


Progress = Callable[[float, list[float]], None]
"""Called while a run lasts with its elapsed seconds and the latencies (seconds) so far."""


def usable_cpus() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def ls_command(plan: Plan, directory: str) -> list[str]:
    """Command of the LS server with its pipes in `directory`."""
    millis = f"{plan.service_seconds * 1000.0:g}"
    tail = ["--directory", directory, "--workers", str(plan.workers), "--service-millis", millis]
    return [sys.executable, "-m", "standalone.load", "serve", *tail]


def be_command(plan: Plan, directory: str) -> list[str]:
    """Command of the BE work; its pids go to `burn.pid` in `directory`."""
    tail = ["--processes", str(plan.be_processes), "--pid-file", os.path.join(directory, "burn.pid")]
    kind = ["--kind", plan.kind, "--directory", directory]
    return [sys.executable, "-m", "standalone.load", "burn", *tail, *kind]


def measure(plan: Plan, directory: str, with_be: bool, progress: Progress | None = None) -> Measurement:
    """Drive the LS server in `directory` and measure it and the BE work beside it, both already started."""
    driver = Driver(directory, random.Random(plan.seed))
    try:
        driver.wait_ready(30.0)
        ls_pids = _pids(os.path.join(directory, "workers.pid"))
        be_pids = _pids(os.path.join(directory, "burn.pid")) if with_be else []
        driver.run(plan.rate, SETTLE_SECONDS)
        ls_before, be_before, start = cpu_seconds(ls_pids), cpu_seconds(be_pids), time.monotonic()
        report = (lambda values: progress(time.monotonic() - start, values)) if progress else None
        latencies = driver.run(plan.rate, plan.seconds, report)
        elapsed = time.monotonic() - start
        ls_used, be_used = cpu_seconds(ls_pids) - ls_before, cpu_seconds(be_pids) - be_before
    finally:
        driver.close()
    idle = plan.cpus * elapsed - ls_used
    return Measurement(latencies, be_used / idle if with_be and idle > 0 else None, ls_used / elapsed)


def run_plain(plan: Plan, with_be: bool, progress: Progress | None = None) -> Measurement:
    """LS as a plain process, alone or beside plain BE processes; nothing of Slacktide runs."""
    with scratch() as directory, contextlib.ExitStack() as stack:
        stack.enter_context(_process(ls_command(plan, directory)))
        if with_be:
            stack.enter_context(_process(be_command(plan, directory)))
        return measure(plan, directory, with_be, progress)


def ls_pod(plan: Plan, name: str, directory: str) -> dict[str, object]:
    """Pod of the LS server: it asks for the CPU that its load needs."""
    cpu_millis = int(plan.cpus * plan.load * 1000)
    requests = {"cpu": f"{cpu_millis}m", "memory": "64Mi"}
    return _pod(name, "ls", ls_command(plan, directory), requests)


def be_pod(plan: Plan, name: str, directory: str) -> dict[str, object]:
    """Pod of the BE work. It asks for no CPU, so that the experiment also runs where other work keeps CPUs busy."""
    requests = {BATCH_MEMORY: str((64 << 20) + plan.be_processes * _MEMORY_BYTES[plan.kind])}
    return _pod(name, "be", be_command(plan, directory), requests)


def run_managed(
    client: Client, plan: Plan, progress: Progress | None = None, after: Callable[[], None] = lambda: None
) -> Measurement:
    """LS and BE as pods of a running Slacktide; both are gone again on return.

    `after` is called while both still run, when all is measured.
    """
    names = [f"{kind}-{os.getpid()}-{time.monotonic_ns() % 1_000_000}" for kind in ("ls", "be")]
    with scratch() as directory, _pods(client, names):
        client.create(PODS, ls_pod(plan, names[0], directory), "default")
        wait_running(client, names[0], 30.0)
        client.create(PODS, be_pod(plan, names[1], directory), "default")
        wait_running(client, names[1], OPEN_SECONDS)
        measured = measure(plan, directory, with_be=True, progress=progress)
        after()
        return measured


def wait_running(client: Client, name: str, seconds: float) -> Pod:
    """Wait until a pod of namespace default runs; LoadError with what it waits for when it does not."""
    deadline = time.monotonic() + seconds
    while True:
        pod = client.get(PODS, name, "default")
        if pod.status.phase == "Running":
            return pod
        if pod.status.phase in {"Failed", "Succeeded"} or time.monotonic() > deadline:
            raise LoadError(f"pod {name} is {pod.status.phase}: {_why(pod)}")
        time.sleep(0.05)


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A short-lived directory for pipes and pid files."""
    directory = tempfile.mkdtemp(prefix="slacktide-load-")
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def cpu_seconds(pids: list[int]) -> float:
    """User and system CPU time of processes and of their children that ended; a process that ended is left out."""
    total = 0
    for pid in pids:
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/{pid}/stat", encoding="ascii") as file,
        ):
            fields = file.read().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total / _TICK


def _pod(name: str, tier: str, command: list[str], requests: dict[str, str]) -> dict[str, object]:
    container = {
        "name": "main",
        "image": HOST_PROCESS_IMAGE,
        "command": command,
        "workingDir": _ROOT,
        "resources": {"requests": requests},
    }
    spec = {
        "schedulerName": SCHEDULER_NAME,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2,
        "containers": [container],
    }
    metadata = {"name": name, "labels": {TIER_LABEL: tier}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@contextlib.contextmanager
def _pods(client: Client, names: list[str]) -> Iterator[None]:
    try:
        yield
    finally:
        for name in names:
            with contextlib.suppress(Exception):
                client.delete(PODS, name, "default", grace_period_seconds=1)
        _wait_gone(client, names, 20.0)


def _wait_gone(client: Client, names: list[str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not {pod.metadata.name for pod in client.list(PODS, "default").items} & set(names):
            return
        time.sleep(0.05)


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pids(path: str) -> list[int]:
    deadline = time.monotonic() + 30.0
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise LoadError(f"{path} did not appear: the command behind it did not start")
        time.sleep(0.01)
    with open(path, encoding="ascii") as file:
        return [int(line) for line in file]


def _why(pod: Pod) -> str:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status != "True":
            return condition.message or condition.reason
    for status in pod.status.container_statuses:
        state = status.state.terminated or status.state.waiting
        if state is not None:
            return f"{state.reason} {state.message}"
    return pod.status.message or pod.status.reason or "no reason given"
