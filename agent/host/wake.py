"""Lets the control thread sleep until its next beat, and be woken before by a watched directory or another thread."""

from __future__ import annotations

import os
import select
import threading


class Waker:
    """One eventfd and, where there is one, the descriptor of a watch. `wait` is for one thread, `wake` for any."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._watched: int | None = None

    def wake(self) -> None:
        """End the wait under way, or the next one; nothing after `close`."""
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def wait(self, seconds: float, watched: int | None = None) -> bool:
        """Wait at most `seconds`, or until woken or until `watched` is readable; whether one of the two happened."""
        if watched != self._watched:
            self._follow(watched)
        ready = self._poll.poll(max(0.0, seconds) * 1000)
        if any(fd == self._fd for fd, _ in ready):
            os.eventfd_read(self._fd)
        return bool(ready)

    def _follow(self, watched: int | None) -> None:
        if self._watched is not None:
            self._poll.unregister(self._watched)
        if watched is not None:
            self._poll.register(watched, select.POLLIN)
        self._watched = watched

    def close(self) -> None:
        """Give the descriptor back; nobody may wait any more."""
        with self._lock:
            os.close(self._fd)
            self._fd = -1
