"""Log lines leave the caller at once: a thread writes them, and a stream that takes none costs lines and no time.

Standard error is a pipe to the container runtime. When that hangs, or the disk behind it is full, a plain handler would
hold whoever logs, and with its lock everybody else: in the agent that is the thread that protects LS.
Source: reference/kernel.md section 5, "disk full".
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

MOST: Final = 10_000
"""Lines that may wait: some MiB at most, minutes of a daemon in trouble."""

FLUSH_SECONDS: Final = 1.0


class QueuedHandler(logging.Handler):
    """Formats on the caller's thread, writes on its own. `on_drop` is called for each line that finds the queue full.

    `flush` waits for what was logged before it, for a second at most; `close` does so too and ends the thread.
    """

    def __init__(self, stream: TextIO, on_drop: Callable[[], object], most: int = MOST) -> None:
        super().__init__()
        self._stream = stream
        self._descriptor = _descriptor_of(stream)
        self._on_drop = on_drop
        self._most = most
        self._lines: deque[str] = deque()
        self._news = threading.Condition()
        self._busy = False
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one line; never waits for the stream."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - as every handler: a record that cannot be shown must not end its caller
            self.handleError(record)
            return
        with self._news:
            if len(self._lines) < self._most and not self._ending:
                self._lines.append(f"{line}\n")
                self._news.notify_all()
                return
        self._on_drop()

    def flush(self) -> None:
        """Wait until all lines are written, for a second at most."""
        end = time.monotonic() + FLUSH_SECONDS
        with self._news:
            self._news.wait_for(lambda: not self._lines and not self._busy, max(0.0, end - time.monotonic()))

    def close(self) -> None:
        """Write what waits, for a second at most, and end."""
        self.flush()
        with self._news:
            self._ending = True
            self._news.notify_all()
        super().close()

    def _run(self) -> None:
        while True:
            with self._news:
                self._busy = False
                self._news.notify_all()
                self._news.wait_for(lambda: self._lines or self._ending)
                if not self._lines:
                    return
                lines, self._busy = "".join(self._lines), True
                count = len(self._lines)
                self._lines.clear()
            try:
                self._write(lines)
            except (OSError, ValueError):
                # Nobody reads any more, or the stream was closed under us: the lines are lost, and counted.
                for _ in range(count):
                    self._on_drop()

    def _write(self, lines: str) -> None:
        if self._descriptor is None:
            self._stream.write(lines)
            self._stream.flush()
            return
        # Past the stream's buffer, whose lock the interpreter wants at its end: a write that hangs must not hold it.
        data = lines.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]


def _descriptor_of(stream: TextIO) -> int | None:
    """None for a stream in memory."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None
