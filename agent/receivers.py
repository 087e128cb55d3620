"""Who receives the samples of a spool, and what each has acknowledged.

With several predictors every one of them gets every sample, so that whichever leads next knows the node. A sample
leaves the spool when all of them have it. A predictor that was not heard of for `hold_seconds` is no longer waited
for, so that one that is gone for good does not fill the disk; without any receipt nothing leaves.

What was acknowledged is not written down: after a restart of the agent what is left in the spool is sent again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from agent.spool import Spool


class Receivers:
    """All receivers of one spool. Thread-safe."""

    def __init__(self, spool: Spool, hold_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._spool = spool
        self._hold = hold_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._all: list[Receiver] = []

    def add(self, name: str) -> Receiver:
        """One more receiver: everything that is in the spool waits for it."""
        receiver = Receiver(name, self._spool, self, self._clock())
        with self._lock:
            self._all.append(receiver)
        return receiver

    def remove(self, receiver: Receiver) -> None:
        """It is gone for good."""
        with self._lock:
            self._all.remove(receiver)

    def acknowledge(self, receiver: Receiver, boot_id: str, sequence: int) -> int:
        """Note what a receiver has, and delete what all have; how many samples this receiver has more than before."""
        with self._lock:
            now = self._clock()
            receiver.heard_at = now
            before = receiver.floors.get(boot_id, 0)
            receiver.floors[boot_id] = max(before, sequence)
            waited_for = [one for one in self._all if one is receiver or now - one.heard_at < self._hold]
            lowest = min(one.floors.get(boot_id, 0) for one in waited_for)
            if len(self._all) == 1:
                return self._spool.acknowledge(boot_id, sequence)
            gained = self._spool.count(boot_id, before, sequence)
            self._spool.acknowledge(boot_id, sequence, lowest)
            return gained


class Receiver:
    """The spool as one receiver sees it: without what that one has acknowledged."""

    def __init__(self, name: str, spool: Spool, receivers: Receivers, now: float) -> None:
        self.name = name
        self.floors: dict[str, int] = {}
        self.heard_at = now
        self._spool = spool
        self._receivers = receivers

    def oldest_boot(self) -> str | None:
        """Boot of the oldest sample that waits for it; None when none does."""
        waiting = (boot for boot, highest in self._spool.boots() if highest > self.floors.get(boot, 0))
        return next(waiting, None)

    def batch(self, boot_id: str, after_sequence: int, count: int) -> list[tuple[int, bytes]]:
        """Up to `count` samples of a boot beyond `after_sequence` that wait for it, oldest first."""
        return self._spool.batch(boot_id, max(after_sequence, self.floors.get(boot_id, 0)), count)

    def acknowledge(self, boot_id: str, sequence: int) -> int:
        """It has all samples of a boot up to `sequence`; how many more than before."""
        return self._receivers.acknowledge(self, boot_id, sequence)

    def waiting(self) -> int:
        """How many samples wait in the spool, for it or others."""
        return self._spool.waiting()
