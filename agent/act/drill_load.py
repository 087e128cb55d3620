"""Real load for drills: a helper process that burns CPU when told, and never outlives the agent.

The helper is started with the agent, before there are threads or channels, and waits on its standard input for
`start MILLIS SECONDS` and `stop`. It forks one burner a started core of the asked millicores, each with a duty cycle in
slices of 10 ms. It ends with the agent (end of input, or the parent-death signal after a kill -9); burners end with
it, or after SECONDS by their own clock, whatever happens to everybody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import signal
import subprocess
import sys
import time
from typing import Final

_SLICE_SECONDS: Final = 0.01
_PR_SET_PDEATHSIG: Final = 1
_WAIT_SECONDS: Final = 3.0


class DrillLoad:
    """Handle on the helper. `start` and `stop` never block and never raise for a helper that died."""

    def __init__(self) -> None:
        self._helper = subprocess.Popen(
            [sys.executable, "-S", "-E", "-s", os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            close_fds=True,
        )
        assert self._helper.stdin is not None
        os.set_blocking(self._helper.stdin.fileno(), False)

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


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def _burn(duty: float, seconds: float) -> None:
    end = time.monotonic() + seconds
    while (begin := time.monotonic()) < end:
        while time.monotonic() - begin < duty * _SLICE_SECONDS:
            pass
        if duty < 1.0:
            time.sleep(max(0.0, _SLICE_SECONDS * (1.0 - duty)))


def _fork_burners(millis: int, seconds: float) -> list[int]:
    count = math.ceil(millis / 1000)
    helper = os.getpid()
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os.close(0)
            _die_with_parent(helper)
            _burn(millis / 1000 / count, seconds)
            os._exit(0)
        pids.append(pid)
    return pids


def _end(pids: list[int]) -> list[int]:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return []


def _serve() -> int:
    """Follow the commands until the input ends."""
    burners: list[int] = []
    deadline = 0.0
    buffer = b""
    while True:
        wait = max(0.0, deadline - time.monotonic()) if burners else None
        ready, _, _ = select.select([0], [], [], wait)
        if not ready:
            burners = _end(burners)
            continue
        chunk = os.read(0, 4096)
        if not chunk:
            _end(burners)
            return 0
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            burners = _end(burners)
            word, *numbers = line.split()
            if word == b"start":
                seconds = float(numbers[1])
                burners, deadline = _fork_burners(int(numbers[0]), seconds), time.monotonic() + seconds


if __name__ == "__main__":
    _die_with_parent(os.getppid())
    sys.exit(_serve())
