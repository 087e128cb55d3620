"""Health of a daemon as named checks: live (worth keeping) and ready (worth asking)."""

from __future__ import annotations

import threading
from collections.abc import Callable

Check = Callable[[], str | None]
"""None is well; text says what is wrong. It must not block: it runs on the thread of the observe server."""


class Health:
    """Named checks, added by the parts of a daemon as they start. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}
        self._started = False

    def add_live(self, name: str, check: Check) -> None:
        """A check whose failure means that only a restart helps. Replaces one of the same name."""
        with self._lock:
            self._live[name] = check

    def add_ready(self, name: str, check: Check, *, part: bool = True) -> None:
        """A check whose failure means: not now, such as a server that cannot be reached. Replaces its namesake.

        `part`: it comes from a part of the daemon, so that there is something that can be ready.
        """
        with self._lock:
            self._ready[name] = check
            self._started = self._started or part

    def not_live(self) -> dict[str, str]:
        """Failing live checks: name -> what is wrong. Empty is live."""
        return self._failing(self._live)

    def not_ready(self) -> dict[str, str]:
        """Failing ready checks: name -> what is wrong. Empty is ready.

        A daemon answers before its parts exist; as long as none of them has added a check it is not ready.
        """
        if not self._started:
            return {"start": "still starting"}
        return self._failing(self._ready)

    def _failing(self, checks: dict[str, Check]) -> dict[str, str]:
        with self._lock:
            current = list(checks.items())
        problems = ((name, _verdict(check)) for name, check in current)
        return {name: problem for name, problem in problems if problem is not None}


def _verdict(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that breaks is a check that fails, and the others still count
        return f"the check itself failed: {type(error).__name__}: {error}"
