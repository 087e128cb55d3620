"""A few daemon threads that run bindings: unlike the standard pool they never hold up the end of the process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from slacktide.observe import get_logger

_log = get_logger("scheduler.workers")


class Workers:
    """Runs tasks on `count` threads, in the order of submission."""

    def __init__(self, count: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._busy = [False] * count
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"{name}-{i}", daemon=True) for i in range(count)
        ]

    def start(self) -> None:
        """Start the threads; they live as long as the process."""
        for thread in self._threads:
            thread.start()

    def submit(self, task: Callable[[], None]) -> None:
        """Queue a task; returns at once."""
        self._tasks.put(task)

    def under_way(self) -> int:
        """Tasks that run or wait for a thread."""
        return self._tasks.qsize() + sum(self._busy)

    def _run(self, number: int) -> None:
        while True:
            task = self._tasks.get()
            self._busy[number] = True
            try:
                task()
            except Exception:  # noqa: BLE001  # a task that fails must not take its thread along
                _log.exception("task failed")
            self._busy[number] = False
