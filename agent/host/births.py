"""Whether a thread was made anywhere on this machine since the last look: one cheap reading in place of many.

The last field of /proc/loadavg is the last id that was given to a process or thread in our pid namespace. A thread
that joins a cgroup was made before, by then perhaps already asked for, and one that is made by a starved BE process
appears in its cgroup long after it got its id: looks after a birth are due as well, and one now and then in any case.
Source: proc(5).
"""

from __future__ import annotations

import os
from typing import Final

AFTERMATH: Final = 5
"""Looks that are due after the one that saw a birth: a runtime moves what it made into its cgroup a moment later."""

ANYWAY: Final = 20
"""The last of so many looks is due in any case."""

_BYTES: Final = 256


class Births:
    """Asked once a look. `proc_root` is where loadavg is read; without it something is always said to be born."""

    def __init__(self, proc_root: str, aftermath: int = AFTERMATH) -> None:
        self._path = os.path.join(proc_root, "loadavg")
        self._aftermath = aftermath
        self._held: int | None = None
        self._last: bytes | None = None
        self._due = 0
        self._passed = 0

    def looked(self) -> bool:
        """Whether a look is due: something was born since this was last asked, or shortly before."""
        last = self._last_id()
        if last is None or last != self._last:
            self._last = last
            self._due = self._aftermath
        elif self._due:
            self._due -= 1
        elif self._passed < ANYWAY:
            self._passed += 1
            return False
        self._passed = 0
        return True

    def close(self) -> None:
        """Close the file."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _last_id(self) -> bytes | None:
        try:
            if self._held is None:
                self._held = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            fields = os.pread(self._held, _BYTES, 0).split()
        except OSError:
            return None
        return fields[-1] if len(fields) >= 5 and fields[-1].isdigit() else None
