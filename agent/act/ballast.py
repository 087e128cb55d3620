"""Ballast: a busy idle-class thread pinned to each CPU that BE leaves without one, only where it was asked for.

The kernel's load balancer misplaces LS threads while CPUs differ in its eyes: some carry a BE thread, some do not.
Measured with one BE thread on two CPUs at 60 % LS load, LS p99 was 1.6 to 3 times alone, and with ballast 1.0 to
1.15 times. The price is true idleness: what nobody uses is burnt (`cpu_seconds`), so CPUs do not sleep.

The threads live in a cgroup of their own, `slacktide-ballast` below the agent's root, with cpu.idle 1: whatever is
outside of it, BE included, goes first. Without cpu.idle there is no ballast. They belong to a helper process that ends
with the agent, however that ends, and removes the cgroup. It is started before the agent has threads: nothing forks
later. What ballast used must be taken off what the node used, or it would be sold as SYSTEM's need.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.host import cpu
from agent.host.cgroup import CgroupLister
from agent.threads import Mask, format_cpus
from slacktide.errors import KernelError
from slacktide.kernel.files import read_text, translate, write_value
from slacktide.kernel.hierarchy import Hierarchy

GROUP: Final = "slacktide-ballast"
NO_CPUS: Final[Mask] = frozenset()
_HELPER: Final = Path(__file__).with_name("ballast_helper.py")
_START_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 5.0
_ENDING_SECONDS: Final = 2.0
_TASKS_FILE: Final = "cgroup.procs"


@dataclass(frozen=True, slots=True, kw_only=True)
class BallastView:
    """`running` are the CPUs that carry one now. `cpu_seconds` is what all burnt since start, `resident_bytes` what the
    helper and its children hold (their shared pages counted once), both None where not known. `why_not` is why there
    is none, empty when there is.
    """

    running: Mask = NO_CPUS
    cpu_seconds: float | None = None
    resident_bytes: int | None = None
    why_not: str = ""


class Ballast:
    """One helper process. `start` once, from the main thread and before any other; then `want` from one thread.

    `root` and mounts come from `hierarchy` and `lister`; `proc_root` is where children are looked at. `clock` is
    monotonic seconds.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        lister: CgroupLister,
        proc_root: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._hierarchy = hierarchy
        self._lister = lister
        self._proc = proc_root
        self._process: subprocess.Popen[bytes] | None = None
        self._pids: dict[int, int] = {}
        self._running: Mask = NO_CPUS
        self._ending: dict[int, float] = {}
        self._used: dict[int, float] = {}
        self._resident: int | None = None
        self.why_not = "ballast was not started"

    def start(self, cpus: Iterable[int]) -> bool:
        """Make the cgroup and the stopped children for `cpus`; whether there are any, else `why_not` says why."""
        try:
            tasks = self._make_group()
        except KernelError as error:
            self.why_not = f"no ballast: {error}"
            return False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_HELPER), tasks, *map(str, sorted(set(cpus)))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.why_not = self._hear()
        if self.why_not:
            self.stop()
            return False
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._resident = self._measure_memory()
        return True

    def want(self, cpus: Mask) -> None:
        """Run ballast on these CPUs and stop it on all others. Never blocks; a helper that is gone is said once."""
        wanted = cpus & self._pids.keys()
        if wanted == self._running or self._process is None:
            return
        assert self._process.stdin is not None
        line = ",".join(map(str, sorted(wanted))) + "\n"
        try:
            os.write(self._process.stdin.fileno(), line.encode())
        except BlockingIOError:
            return
        except OSError as error:
            self.why_not = f"the ballast process ended: {error.strerror}"
            self._pids, self._running, self._ending = {}, NO_CPUS, {}
            return
        until = self._clock() + _ENDING_SECONDS
        self._ending |= dict.fromkeys(self._running, until)
        self._ending = {cpu_id: until for cpu_id, until in self._ending.items() if cpu_id not in wanted}
        self._running = wanted

    def used(self) -> dict[int, float]:
        """CPU seconds that each child burnt since start, by CPU; the last known figure of one that is gone.

        Reads one file for each child that runs or was stopped a moment ago: a stop takes until the helper gets a CPU.
        """
        now = self._clock()
        self._ending = {cpu_id: until for cpu_id, until in self._ending.items() if now < until}
        for cpu_id in (*self._running, *self._ending):
            with contextlib.suppress(KernelError, ValueError, IndexError):
                text = read_text(f"{self._proc}/{self._pids[cpu_id]}/schedstat")
                self._used[cpu_id] = int(text.split()[0]) / 1e9
        return dict(self._used)

    def view(self) -> BallastView:
        """What runs now, and its price."""
        used = self.used()
        return BallastView(
            running=self._running,
            cpu_seconds=sum(used.values()) if used else None,
            resident_bytes=self._resident,
            why_not=self.why_not,
        )

    def stop(self) -> None:
        """End helper and children, and wait for it; the cgroup goes with them."""
        process, self._process = self._process, None
        self._pids, self._running, self._ending = {}, NO_CPUS, {}
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        remove_stale(self._hierarchy, self._lister)

    def _make_group(self) -> str:
        """The cgroup, in the idle class; returns the file that takes its processes. Raises KernelError."""
        directory = _directory(self._hierarchy, self._lister)
        remove_stale(self._hierarchy, self._lister)
        try:
            os.mkdir(directory)
        except FileExistsError:
            # It still has processes of a helper that is about to end; ours go beside them.
            pass
        except OSError as error:
            raise translate(directory, error) from error
        idle = os.path.join(directory, cpu.IDLE_FILE)
        try:
            write_value(idle, 1)
        except KernelError:
            remove_stale(self._hierarchy, self._lister)
            raise
        return os.path.join(directory, _TASKS_FILE)

    def _hear(self) -> str:
        """Take the helper's lines; the reason when it has no child, else empty."""
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor, text = self._process.stdout.fileno(), ""
        deadline = time.monotonic() + _START_SECONDS
        while not text.endswith("\n\n") and text != "\n":
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                return f"the ballast process said nothing for {_START_SECONDS:g} s"
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return f"the ballast process ended early: {text.strip() or 'without a word'}"
            text += chunk.decode("utf-8", "replace")
        words = [line.split(" ", 2) for line in text.splitlines() if line]
        self._pids = {int(line[0]): int(line[1]) for line in words if line[1] != "-"}
        failed = frozenset(int(line[0]) for line in words if line[1] == "-")
        return "" if self._pids else f"no ballast thread could be made for CPUs {format_cpus(failed) or 'none'}"

    def _measure_memory(self) -> int | None:
        """Proportional share of helper and children, which share most of their pages."""
        assert self._process is not None
        total = 0
        try:
            for pid in (self._process.pid, *self._pids.values()):
                for line in read_text(f"{self._proc}/{pid}/smaps_rollup").splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) << 10
        except (KernelError, ValueError, IndexError):
            return None
        return total


def remove_stale(hierarchy: Hierarchy, lister: CgroupLister) -> bool:
    """Remove the cgroup that a killed helper left, if it is empty; whether it is gone. Part of `restore`, too."""
    if "cpu" not in hierarchy.controllers:
        return True
    directory = _directory(hierarchy, lister)
    with contextlib.suppress(OSError):
        os.rmdir(directory)
    return not os.path.isdir(directory)


def _directory(hierarchy: Hierarchy, lister: CgroupLister) -> str:
    """Below the agent's root. Raises KernelError without a cpu controller."""
    mount = hierarchy.controllers.get("cpu")
    if mount is None:
        raise KernelError("cpu", None, "no cpu controller is mounted")
    base = os.path.join(mount.path, lister.root) if lister.root else mount.path
    return os.path.join(base, GROUP)
