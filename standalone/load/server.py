"""The latency-sensitive server: worker processes that share one request queue.

A request is one record in a named pipe; every worker blocks on that pipe, takes one record, uses an exact amount
of CPU and answers into a second named pipe. A thread-pool server behaves the same, and what the system does to
it (waiting behind BE threads, misplaced wake-ups) shows as latency. The service time is measured in CPU time of
the worker, so a worker that is kept off its CPU does not do less work, it does it later.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from typing import Final

from standalone.load.workers import workers_until_stopped

REQUEST: Final = struct.Struct("<dI")
"""Scheduled arrival (CLOCK_MONOTONIC seconds) and sequence."""

REPLY: Final = struct.Struct("<ddI")
"""Scheduled arrival, completion (both CLOCK_MONOTONIC seconds) and sequence."""


def make_pipes(directory: str) -> tuple[str, str]:
    """Create the request and reply pipes in `directory` and give their paths; existing ones are used."""
    paths = os.path.join(directory, "requests"), os.path.join(directory, "replies")
    for path in paths:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
    return paths


def serve(directory: str, workers: int, service_seconds: float) -> int:
    """Serve until SIGTERM or SIGINT; returns 0. One process a worker, all gone when this returns."""
    requests, replies = make_pipes(directory)
    return workers_until_stopped(
        workers, lambda: _work(requests, replies, service_seconds), os.path.join(directory, "workers.pid")
    )


def _work(requests: str, replies: str, service_seconds: float) -> None:
    # Opened for reading and writing, so that no side sees end of file while the other is not there yet.
    source, sink = os.open(requests, os.O_RDWR), os.open(replies, os.O_RDWR)
    thread_time, now = time.thread_time, time.monotonic
    while True:
        # Taken before the read: handling the request is part of the service time.
        target = thread_time() + service_seconds
        arrival, sequence = REQUEST.unpack(os.read(source, REQUEST.size))
        while thread_time() < target:
            pass
        os.write(sink, REPLY.pack(arrival, now(), sequence))
