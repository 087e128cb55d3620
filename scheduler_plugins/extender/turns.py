"""Turns: one at a time, first come first served. A plain lock lets whoever runs take it again, and others starve."""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """Thread safe. `take` and `give` belong together, in one thread or in several."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()

    def take(self, seconds: float) -> bool:
        """Wait for one's turn, at most so long; false when it did not come."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            mine = threading.Event()
            self._waiting.append(mine)
        if mine.wait(seconds):
            return True
        with self._lock:
            # It may have come between the end of the wait and here.
            if mine.is_set():
                return True
            self._waiting.remove(mine)
            return False

    def give(self) -> None:
        """End one's turn; the one that waits longest has the next."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)
