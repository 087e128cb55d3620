"""What ends the loop's wait: a FIFO that shims of this and of earlier runners write to, and threads of this one."""

from __future__ import annotations

import contextlib
import os
import select


class Wake:
    """Reads the FIFO at `path`. `poke` may be called from any thread and from none of ours: it is one write."""

    def __init__(self, path: str) -> None:
        # Opened for both directions: with a writer of our own the FIFO never reports end of file.
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def poke(self) -> None:
        """End the current wait, or the next one."""
        with contextlib.suppress(BlockingIOError, OSError):
            os.write(self._descriptor, b".")

    def wait(self, seconds: float) -> None:
        """Wait until somebody pokes, at most `seconds`; all pokes so far count as one."""
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, seconds))
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._descriptor, 1 << 16)

    def close(self) -> None:
        """Close the FIFO."""
        os.close(self._descriptor)
