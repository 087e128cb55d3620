"""Open-loop client: Poisson arrivals at a given rate, latency counted from the scheduled arrival.

Open loop matters: a client that waits for answers slows down with the server and hides what users would feel
("coordinated omission"). A request that is sent late because the client was delayed counts from its schedule.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from slacktide.errors import SlacktideError
from standalone.load.server import REPLY, REQUEST, make_pipes

DRAIN_SECONDS = 10.0
"""How long answers are awaited after the last request."""

_BATCH_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of one run in milliseconds. `lost` requests got no answer within the drain time."""

    p50_millis: float
    p99_millis: float
    p999_millis: float
    count: int
    lost: int


class LoadError(SlacktideError):
    """The server did not answer at all."""


def percentile(ordered: list[float], share: float) -> float:
    """Value below which `share` of the ordered list lies (nearest rank); ValueError when it is empty."""
    if not ordered:
        raise ValueError("no values")
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def summary(seconds: list[float], lost: int) -> Latencies:
    """Percentiles of latencies given in seconds; a lost request counts as slower than all others."""
    ordered = [value * 1000.0 for value in sorted(seconds)]
    ordered += [max(ordered[-1], DRAIN_SECONDS * 1000.0)] * lost
    return Latencies(
        percentile(ordered, 0.5), percentile(ordered, 0.99), percentile(ordered, 0.999), len(ordered), lost
    )


class Driver:
    """Client of one server, by the pipes in `directory`."""

    def __init__(self, directory: str, rng: random.Random) -> None:
        requests, replies = make_pipes(directory)
        self._sink = os.open(requests, os.O_RDWR)
        self._source = os.open(replies, os.O_RDWR | os.O_NONBLOCK)
        self._rng = rng
        self._latencies: list[float] = []

    def close(self) -> None:
        """Close the pipes; the server keeps its own ends."""
        os.close(self._sink)
        os.close(self._source)

    def wait_ready(self, seconds: float) -> None:
        """Send one request and wait for its answer; LoadError when none comes in time."""
        self._latencies.clear()
        os.write(self._sink, REQUEST.pack(time.monotonic(), 0))
        deadline = time.monotonic() + seconds
        while not self._drain():
            if time.monotonic() > deadline:
                raise LoadError(f"the server gave no answer within {seconds:.0f} s")
            time.sleep(0.01)

    def run(self, rate: float, seconds: float, progress: Callable[[list[float]], None] | None = None) -> Latencies:
        """Send at `rate` requests a second for `seconds`; `progress` gets the latencies (seconds) so far."""
        self._latencies.clear()
        start = time.monotonic()
        arrival, sequence, next_drain = start, 0, start + _BATCH_SECONDS
        while (arrival := arrival + self._rng.expovariate(rate)) < start + seconds:
            delay = arrival - time.monotonic()
            if delay > 0:
                time.sleep(delay)
            os.write(self._sink, REQUEST.pack(arrival, sequence))
            sequence += 1
            if arrival > next_drain:
                next_drain = arrival + _BATCH_SECONDS
                self._drain()
                if progress:
                    progress(self._latencies)
        deadline = time.monotonic() + DRAIN_SECONDS
        while len(self._latencies) < sequence and time.monotonic() < deadline:
            self._drain()
            time.sleep(0.005)
        if not self._latencies:
            raise LoadError(f"the server answered none of {sequence} requests")
        return summary(self._latencies, sequence - len(self._latencies))

    def _drain(self) -> int:
        """Take all answers that are there; returns how many."""
        taken = 0
        while True:
            try:
                data = os.read(self._source, REPLY.size * 256)
            except BlockingIOError:
                return taken
            for arrival, done, _ in REPLY.iter_unpack(data):
                self._latencies.append(done - arrival)
                taken += 1
