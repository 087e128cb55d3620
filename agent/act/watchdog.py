"""The watchdog: a small process beside the agent that lifts BE's hard limits when nobody watches LS any more.

It acts when the control loop was silent for a while, whether the agent hangs, is stopped (SIGSTOP) or dead. Of a dead
agent it waits the same while, since the next one may come soon and adopt the limits; it lifts them only if none did,
and ends. What it lifts and what it keeps says `agent.act.relax`. It reads the journal file and writes to none but the
kernel's and its own report, which the next agent tells.

It ends when the agent says so (a byte on the pipe) and ignores signals meant for the agent: a service manager that ends
all processes of a unit would otherwise end the guard first.

Started by `agent.act.guard` as `python -m agent.act.watchdog HEARTBEAT_FD PIPE_FD SECONDS STATE_DIR PROC_ROOT`. Few
imports, as this is memory on every node: no gRPC, no Kubernetes, no log library.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.act.heartbeat import Heartbeat
from agent.act.journal import Journal
from agent.act.relax import relax
from slacktide.disk import try_lock, write_atomically
from slacktide.kernel.files import read_text
from slacktide.kernel.hierarchy import discover

REPORT_NAME: Final = "watchdog.json"
LOCK_NAME: Final = "lock"
GOODBYE: Final = b"q"
"""What the agent writes before it ends."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was lifted, for the next agent to tell. `wall` is seconds since the epoch."""

    wall: float
    silent_seconds: float
    lifted: int
    problem: str = ""


class Watchdog:
    """Calls `relax` (returns how many limits it lifted) once for each silence of `limit_seconds`.

    `last_sign` tells the monotonic time of the loop's last sign of life. Time in which the watchdog itself did not run
    (a suspended or overloaded machine) does not count against the loop.
    """

    def __init__(
        self,
        last_sign: Callable[[], float],
        relax: Callable[[], int],
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._last_sign = last_sign
        self._relax = relax
        self._limit = limit_seconds
        self._clock = clock
        self._looked = clock()
        self._since = self._looked
        self._fired_for: float | None = None
        self.fired = 0

    @property
    def period_seconds(self) -> float:
        """How often to look."""
        return self._limit / 10

    def silence(self) -> float:
        """Seconds for which nothing was heard."""
        now = self._clock()
        if now - self._looked > self._limit / 2:
            self._since = now
        self._looked = now
        return now - max(self._last_sign(), self._since)

    def check(self) -> bool:
        """Relax if the loop is silent and this silence was not acted on yet; whether it did."""
        silence, sign = self.silence(), self._last_sign()
        if silence < self._limit or sign == self._fired_for:
            return False
        self._relax()
        self._fired_for = sign
        self.fired += 1
        return True

    @property
    def acted(self) -> bool:
        """Whether the present silence was acted on."""
        return self._fired_for == self._last_sign()


class Process:
    """The watchdog as a process of its own."""

    def __init__(self, heartbeat: Heartbeat, pipe: int, limit_seconds: float, state_dir: str, proc_root: str) -> None:
        self._heartbeat = heartbeat
        self._pipe = pipe
        self._state_dir = state_dir
        self._hierarchy = discover(proc_root)
        self._boot_id = read_text(os.path.join(proc_root, "sys/kernel/random/boot_id")).strip()
        self._watchdog = Watchdog(lambda: heartbeat.sign, self._relax, limit_seconds)

    def run(self) -> None:
        """Watch until the agent has ended."""
        while True:
            ready, _, _ = select.select([self._pipe], [], [], self._watchdog.period_seconds)
            if not ready:
                self._watchdog.check()
            elif os.read(self._pipe, 1):
                return
            else:
                self._bury()
                return

    def _bury(self) -> None:
        """The agent died: lift its limits if no other agent takes over in time."""
        while not self._watchdog.acted:
            time.sleep(self._watchdog.period_seconds)
            try:
                lock = try_lock(os.path.join(self._state_dir, LOCK_NAME), create=False)
            except OSError:
                # The directory went away with its agent, and with it what was known.
                return
            if lock is None:
                return
            try:
                # Nobody else may start while this goes on.
                self._watchdog.check()
            finally:
                os.close(lock)

    def _relax(self) -> int:
        journal = Journal(self._state_dir, self._boot_id, read_only=True)
        lifted = relax(self._hierarchy, journal.load())
        self._heartbeat.count()
        report = Report(
            wall=time.time(), silent_seconds=self._watchdog.silence(), lifted=lifted, problem=journal.problem
        )
        try:
            write_atomically(os.path.join(self._state_dir, REPORT_NAME), msgspec.json.encode(report), durable=False)
        except OSError:
            # A full disk must not keep limits in force; the agent counts what this process did.
            return lifted
        return lifted


def main(arguments: list[str]) -> int:
    """Run the watchdog of one agent; see the module for the arguments."""
    heartbeat, pipe, seconds, state_dir, proc_root = arguments
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Process(Heartbeat(int(heartbeat)), int(pipe), float(seconds), state_dir, proc_root).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
