"""Busy best-effort work of several kinds, as build and batch jobs are: each process uses all that it gets."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Final

from standalone.load.workers import workers_until_stopped

COPY_BYTES: Final = 32 << 20
"""Larger than the caches of most machines, so that copying it runs at the speed of memory."""

FILE_BYTES: Final = 128 << 20
"""Of one page cache hog: bounded, so that it never fills a disk."""

_CHUNK_BYTES: Final = 1 << 20
_STORM_ALIVE: Final = 8
_STORM_SECONDS: Final = 0.005
_WAKE_SECONDS: Final = 0.02


def burn(processes: int, pid_file: str, kind: str = "cpu", directory: str = "") -> int:
    """Keep `processes` processes busy until SIGTERM or SIGINT; their pids go to `pid_file`, one a line.

    `directory` is where a page cache hog has its file (empty: the system's for temporary files). KeyError for a kind
    that is not in KINDS.
    """
    work = KINDS[kind]
    return workers_until_stopped(processes, lambda: work(directory), pid_file)


def _spin(_directory: str) -> None:
    value = 1
    while True:
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF


def _copy(_directory: str) -> None:
    """Memory bandwidth: copy one large block over another."""
    source, target = bytearray(COPY_BYTES), bytearray(COPY_BYTES)
    view = memoryview(source)
    while True:
        target[:] = view


def _storm(_directory: str) -> None:
    """Short-lived processes, a few alive at a time."""
    alive = 0
    while True:
        if alive < _STORM_ALIVE:
            if os.fork() == 0:
                _work_for(_STORM_SECONDS)
                os._exit(0)
            alive += 1
            continue
        os.wait()
        alive -= 1


def _cache(directory: str) -> None:
    """Page cache: write a large file and read it back, over and over; it has no name and ends with the process."""
    chunk, chunks = bytearray(os.urandom(_CHUNK_BYTES)), range(FILE_BYTES // _CHUNK_BYTES)
    with tempfile.TemporaryFile(dir=directory or None, buffering=0) as file:
        while True:
            file.seek(0)
            for _ in chunks:
                file.write(chunk)
            file.seek(0)
            for _ in chunks:
                file.readinto(chunk)


def _wake(_directory: str) -> None:
    """Work and sleep in turn, for 20 ms each on average, never in step with others."""
    rng = random.Random(os.getpid())
    while True:
        _work_for(_WAKE_SECONDS)
        time.sleep(rng.uniform(0.0, 2 * _WAKE_SECONDS))


def _work_for(seconds: float) -> None:
    """Use this much CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


KINDS: Final[Mapping[str, Callable[[str], None]]] = {
    "cpu": _spin,
    "membw": _copy,
    "forkstorm": _storm,
    "pagecache": _cache,
    "sleepwake": _wake,
}
"""Work by the name that `burn --kind` takes."""
