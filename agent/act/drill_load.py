"""Real load for drills: a helper process that burns CPU when told, and never outlives the agent.

The helper is started with the agent, before there are threads or channels, and waits on its standard input. It forks
one burner a started core of the asked millicores. It ends with the agent (end of input, or the parent-death signal
after a kill -9); burners end with it, or after their time by their own clock, whatever happens to everybody else.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil

_HELPER: Final = Path(__file__).with_name("drill_load_helper.py")
_WAIT_SECONDS: Final = 3.0


class DrillLoad:
    """Handle on the helper. `start` and `stop` never block and never raise for a helper that died."""

    def __init__(self) -> None:
        self._helper = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_HELPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            close_fds=True,
        )
        assert self._helper.stdin is not None
        os.set_blocking(self._helper.stdin.fileno(), False)
        self._used = 0.0

    @property
    def pid(self) -> int:
        """Process id of the helper."""
        return self._helper.pid

    def why_not(self) -> str:
        """Why no load can be made; empty when it can."""
        return "" if self._helper.poll() is None else f"the load helper ended with status {self._helper.returncode}"

    def start(self, millis: int, seconds: float) -> None:
        """Burn `millis` of CPU for at most `seconds`."""
        self._tell(f"start {millis} {seconds}\n")

    def stop(self) -> None:
        """Burn nothing."""
        self._tell("stop\n")

    def used_seconds(self) -> float:
        """CPU seconds that the helper and its burners used since start, those that ended included."""
        try:
            helper = psutil.Process(self.pid)
            own = helper.cpu_times()
            total = own.user + own.system + own.children_user + own.children_system
            for child in helper.children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    used = child.cpu_times()
                    total += used.user + used.system
        except psutil.NoSuchProcess:
            return self._used
        self._used = max(self._used, total)
        return self._used

    def _tell(self, line: str) -> None:
        assert self._helper.stdin is not None
        with contextlib.suppress(OSError):
            os.write(self._helper.stdin.fileno(), line.encode())

    def close(self) -> None:
        """End the helper and what it started."""
        assert self._helper.stdin is not None
        self._helper.stdin.close()
        try:
            self._helper.wait(_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._helper.kill()
            self._helper.wait(_WAIT_SECONDS)
