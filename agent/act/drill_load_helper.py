"""The process that burns CPU for drills; started by `agent.act.drill_load` and run without site packages.

Commands come on standard input: `start MILLIS SECONDS` and `stop`. Burners are its children, each with a duty cycle in
slices of 10 ms. It ends with its input, or by the parent-death signal after a kill -9 of the agent.
"""

from __future__ import annotations

import ctypes
import math
import os
import select
import signal
import sys
import time

_SLICE_SECONDS = 0.01
_PR_SET_PDEATHSIG = 1


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
