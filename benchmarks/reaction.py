"""From the first request of an LS surge until the kernel holds a cut of BE, over many surges.

BE saturates all CPUs with the same weight as LS, and neither the idle class nor pinning helps: the agent runs with
policy *contention* alone, since with *weight* and *spread* a surge leaves LS nothing to wait for, and nothing is cut.
LS is idle, then gets requests for `--load` of all CPUs from a random moment on. BE's quota file is read each
millisecond from outside. After a cut LS is idle again, and the next surge begins a random time after BE has got its
CPU back. Releasing takes seconds as shipped; here it takes one step, so that many surges fit. The way to a cut is as
shipped.

`missed` surges saw no cut within three seconds; they count as that long.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from benchmarks import report
from benchmarks.stage import BE, LS, AgentProcess, Stage
from slacktide.errors import SlacktideError
from slacktide.kernel.files import read_text
from slacktide.kernel.hierarchy import Version, discover
from standalone.load.colocation import usable_cpus
from standalone.load.driver import percentile
from standalone.load.server import REPLY, REQUEST, make_pipes

SURGES: Final = 200
QUICK_SURGES: Final = 15
SERVICE_SECONDS: Final = 0.002
TIMEOUT_SECONDS: Final = 3.0
SETTLE_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = (0.3, 1.0)
"""Least and most between BE's release and the next surge: no beat or turn can be in step with surges."""

SETTINGS: Final = {
    "policies": "contention",
    "turn-seconds": "0.5",
    "contention.step-percent": "100",
    "contention.quiet-seconds": "0.1",
    "contention.min-dwell-seconds": "0.1",
}


class Quota:
    """The CPU quota file of BE's pod."""

    def __init__(self, group: str) -> None:
        mount = discover().controllers["cpu"]
        v1 = mount.version is Version.V1
        self._path = os.path.join(mount.path, group, "cpu.cfs_quota_us" if v1 else "cpu.max")
        self._open = "-1" if v1 else "max"

    def cut(self) -> bool:
        """Whether the kernel holds a limit now. Raises KernelError."""
        return read_text(self._path).split()[0] != self._open

    def wait_open(self, seconds: float) -> None:
        """Until there is no limit. Raises SlacktideError when that takes too long."""
        deadline = time.monotonic() + seconds
        while self.cut():
            if time.monotonic() > deadline:
                raise SlacktideError(f"BE was not released within {seconds:g} s: LS was not calm")
            time.sleep(0.005)


@dataclass(frozen=True, slots=True)
class Pipes:
    """The client's ends of the LS server's pipes."""

    sink: int
    source: int

    def send(self, at: float, number: int) -> None:
        """One request."""
        os.write(self.sink, REQUEST.pack(at, number))

    def drain(self) -> int:
        """Take the answers that are there; how many."""
        taken = 0
        while True:
            try:
                taken += len(os.read(self.source, REPLY.size * 256)) // REPLY.size
            except BlockingIOError:
                return taken

    def settle(self, wanted: int, seconds: float) -> None:
        """Take answers until `wanted` have come. Raises SlacktideError when they do not."""
        deadline = time.monotonic() + seconds
        while (wanted := wanted - self.drain()) > 0:
            if time.monotonic() > deadline:
                raise SlacktideError(f"LS did not answer {wanted} requests within {seconds:g} s")
            time.sleep(0.002)


@contextlib.contextmanager
def pipes(directory: str) -> Iterator[Pipes]:
    """Open them; the server makes them, too, whoever is first."""
    requests, replies = make_pipes(directory)
    sink, source = os.open(requests, os.O_RDWR), os.open(replies, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield Pipes(sink, source)
    finally:
        os.close(sink)
        os.close(source)


def surge(client: Pipes, quota: Quota, rate: float, rng: random.Random) -> float | None:
    """Seconds from the first request until a cut is seen; None when there was none in time. LS is idle afterwards."""
    begin = due = time.monotonic()
    sent, answered, seen = 0, 0, None
    while seen is None and time.monotonic() - begin < TIMEOUT_SECONDS:
        now = time.monotonic()
        while due <= now:
            client.send(due, sent)
            sent, due = sent + 1, due + rng.expovariate(rate)
        answered += client.drain()
        if quota.cut():
            seen = time.monotonic() - begin
        time.sleep(0.001)
    client.settle(sent - answered, SETTLE_SECONDS)
    return seen


def summarise(seen: list[float | None], settings: Mapping[str, str]) -> dict[str, Any]:
    """The distribution in milliseconds."""
    ordered = sorted((TIMEOUT_SECONDS if value is None else value) * 1000.0 for value in seen)
    return {
        "surges": len(ordered),
        "missed": sum(value is None for value in seen),
        "throttle_ms_p50": percentile(ordered, 0.5),
        "throttle_ms_p90": percentile(ordered, 0.9),
        "throttle_ms_p99": percentile(ordered, 0.99),
        "throttle_ms_max": ordered[-1],
        "settings": dict(settings),
    }


def play(surges: int, load: float, settings: Mapping[str, str], seed: int) -> list[float | None]:
    """All surges on a stage of their own."""
    cpus, rng = usable_cpus(), random.Random(seed)
    service = f"{SERVICE_SECONDS * 1000:g}"
    with Stage() as stage, contextlib.ExitStack() as stack:
        serve = ("-m", "standalone.load", "serve", "--directory", stage.directory, "--service-millis", service)
        stack.enter_context(stage.run(LS, *serve, "--workers", str(2 * cpus)))
        client, quota = stack.enter_context(pipes(stage.directory)), Quota(stage.group(BE))
        client.send(time.monotonic(), 0)
        client.settle(1, SETTLE_SECONDS)
        stage.groups.set_class_shares("BestEffort", 1024 * cpus)
        stack.enter_context(stage.run(BE, "-m", "standalone.load", "burn", "--processes", str(4 * cpus)))
        agent = AgentProcess(stage, settings)
        stack.callback(agent.end, signal.SIGTERM)
        agent.wait_for_turns(3)
        os.nice(-20)
        stack.callback(os.nice, 20)
        seen = []
        for number in range(1, surges + 1):
            quota.wait_open(SETTLE_SECONDS)
            time.sleep(rng.uniform(*PAUSE_SECONDS))
            quota.wait_open(SETTLE_SECONDS)
            seen.append(surge(client, quota, load * cpus / SERVICE_SECONDS, rng))
            if number % 20 == 0:
                print(f"{number} of {surges} surges", file=sys.stderr, flush=True)
        return seen


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its result."""
    parser = report.parser("reaction", __doc__)
    parser.add_argument("--surges", type=int, help=f"default {SURGES}, with --quick {QUICK_SURGES}")
    parser.add_argument("--load", type=float, default=0.8, help="LS load of a surge as a share of all CPUs")
    parser.add_argument("--beat-seconds", type=float, help="period of the agent's beat (default: as shipped)")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args(argv)
    surges = arguments.surges or (QUICK_SURGES if arguments.quick else SURGES)
    settings = dict(SETTINGS)
    if arguments.beat_seconds:
        settings["beat-seconds"] = str(arguments.beat_seconds)
    seen = play(surges, arguments.load, settings, arguments.seed)
    report.emit("reaction", summarise(seen, settings), arguments.output, save=arguments.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())
