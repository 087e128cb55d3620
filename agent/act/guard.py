"""The agent's side of the watchdog: starts its process, tells it that the loop lives, starts it anew if it dies.

The process is started without fork handlers (vfork and exec), so gRPC threads that may exist by then do no harm.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from agent.act.heartbeat import Heartbeat
from agent.act.watchdog import GOODBYE, REPORT_NAME, Report
from slacktide.observe import get_logger

_LOG: Final = get_logger("agent.watchdog")
_PERIOD_SECONDS: Final = 0.25
_END_SECONDS: Final = 2.0
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0


class Guard:
    """One watchdog process, and the thread that feeds it. `restarts` counts processes that died.

    Make it before there are other threads; `watch` begins when there is a loop. `stop` once.
    """

    def __init__(self, state_dir: str, proc_root: str, limit_seconds: float) -> None:
        self._arguments = (repr(limit_seconds), os.path.abspath(state_dir), proc_root)
        self._state_dir = state_dir
        self._heartbeat = Heartbeat.create(time.monotonic())
        self._last_sign: Callable[[], float] = time.monotonic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
        self._told = 0
        self.restarts = 0
        self._life: int
        self._process = self._spawn()

    @property
    def fired(self) -> int:
        """How often limits were lifted."""
        return self._heartbeat.fired

    @property
    def pid(self) -> int:
        """Process id of the watchdog."""
        return self._process.pid

    def why_not(self) -> str:
        """Why no process watches now; empty when one does."""
        code = self._process.poll()
        return "" if code is None else f"the watchdog died with code {code}"

    @property
    def living(self) -> bool:
        """Whether it was not stopped yet."""
        return not self._stop.is_set()

    def earlier(self) -> Report | None:
        """What the watchdog of an agent that died did, told once; None when it did nothing."""
        path = os.path.join(self._state_dir, REPORT_NAME)
        try:
            with open(path, "rb") as file:
                report = msgspec.json.decode(file.read(), type=Report)
            os.unlink(path)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None
        return report

    def watch(self, last_sign: Callable[[], float]) -> None:
        """Begin to pass on the loop's signs of life."""
        self._last_sign = last_sign
        self._heartbeat.sign = time.monotonic()
        self._thread.start()

    def stop(self, *, lift: bool = False) -> None:
        """End thread and process. With `lift` the process is left to do what it does for an agent that died."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)
        if lift:
            os.close(self._life)
            self._heartbeat.close()
            return
        try:
            os.write(self._life, GOODBYE)
        except BrokenPipeError:
            _LOG.warning("the watchdog had died")
        os.close(self._life)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._heartbeat.close()

    def _spawn(self) -> subprocess.Popen[bytes]:
        reading, self._life = os.pipe2(os.O_CLOEXEC)
        try:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "agent.act.watchdog"),
                    *(str(self._heartbeat.descriptor), str(reading), *self._arguments),
                ],
                pass_fds=(self._heartbeat.descriptor, reading),
                # Whoever waits for the end of the agent's output must not have to wait for this process.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        finally:
            os.close(reading)

    def _run(self) -> None:
        pause, due = _FIRST_PAUSE_SECONDS, 0.0
        while not self._stop.wait(_PERIOD_SECONDS):
            self._heartbeat.sign = max(self._heartbeat.sign, self._last_sign())
            self._tell()
            if self._process.poll() is None or time.monotonic() < due:
                continue
            code = self._process.returncode
            _LOG.error("the watchdog died and is started anew", code=code, pause_seconds=pause)
            due, pause = time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE_SECONDS)
            os.close(self._life)
            self.restarts += 1
            self._restart()

    def _restart(self) -> None:
        try:
            self._process = self._spawn()
        except OSError as error:
            _LOG.error("the watchdog cannot be started; tried again later", error=str(error))

    def _tell(self) -> None:
        fired = self.fired
        if fired == self._told:
            return
        self._told = fired
        report = self.earlier()
        silent = None if report is None else round(report.silent_seconds, 1)
        lifted = None if report is None else report.lifted
        _LOG.error("the control loop was silent: hard limits of BE were lifted", seconds=silent, lifted=lifted)
