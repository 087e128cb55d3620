"""How far long work is: one line that is redrawn on a terminal, a line each ten seconds elsewhere."""

from __future__ import annotations

import math
import sys
import time
from typing import Final

_LINE_SECONDS: Final = 10.0
_LEAST_SHARE: Final = 0.02
"""Too early to say how long it will take."""


class Progress:
    """Tells on standard error, which is never part of the result. `clear` when the work has ended."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._told_at = self._began if not self._terminal else -math.inf
        self._width = 0

    def tell(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        now = time.monotonic()
        if now - self._told_at < (0.1 if self._terminal else _LINE_SECONDS):
            return
        self._told_at = now
        share = done / max(total, 1)
        text = f"slacktide: {self._what}: {done} of {total} ({100 * share:.0f} %)"
        if share > _LEAST_SHARE:
            text += f", about {_duration((now - self._began) * (1 - share) / share)} left"
        if self._terminal:
            sys.stderr.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Leave an empty line."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
