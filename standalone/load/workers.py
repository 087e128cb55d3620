"""A group of forked worker processes that ends as one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def workers_until_stopped(count: int, work: Callable[[], None], pid_file: str) -> int:
    """Fork `count` processes that run `work` and wait until SIGTERM or SIGINT; all are gone on return.

    `pid_file`, when not empty, gets the pids of the workers, one a line, in one step. Returns 0 after a signal
    and 1 when a worker ended by itself.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    children: list[int] = []
    try:
        children.extend(_fork(work) for _ in range(count))
        if pid_file:
            _write(pid_file, children)
        os.wait()
        return 1
    except KeyboardInterrupt:
        return 0
    finally:
        for pid in children:
            _end(pid)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            work()
        finally:
            os._exit(1)
    return pid


def _write(path: str, pids: list[int]) -> None:
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="ascii") as file:
        file.write("".join(f"{pid}\n" for pid in pids))
    os.replace(temporary, path)


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
