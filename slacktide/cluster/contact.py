"""How we stand with the API server, said once: a line when trouble begins, one when it is over.

A daemon has many informers, a lease and writers. When the server is away each of them fails again and again; without
this each would say so at every try. Each names itself and tells what happened; the first failure of a class of errors
is logged, the others are only counted, until all that failed have been answered again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from slacktide.cluster.errors import ClusterError, Forbidden
from slacktide.observe import get_logger

_LOG: Final = get_logger("cluster.contact")


@dataclass(slots=True)
class _Trouble:
    said: str
    since: float
    who: set[str]
    failures: int = 0


class Contact:
    """Troubles under way, by class of error. Safe to use from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._troubles: dict[str, _Trouble] = {}

    def failed(self, who: str, error: ClusterError) -> None:
        """`who` got `error`, and will try again."""
        kind = _kind(error)
        with self._lock:
            ended = self._leave(who, kind)
            trouble = self._troubles.get(kind)
            fresh = trouble is None
            if trouble is None:
                trouble = self._troubles[kind] = _Trouble(str(error), self._clock(), set())
            trouble.who.add(who)
            trouble.failures += 1
        self._say(ended)
        if fresh:
            _LOG.warning("no service from the API server", who=who, reason=type(error).__name__, detail=str(error))

    def well(self, who: str) -> None:
        """`who` was answered."""
        if not self._troubles:
            return
        with self._lock:
            ended = self._leave(who, None)
        self._say(ended)

    def problem(self) -> str | None:
        """What is wrong now, for people; None when everybody was answered."""
        with self._lock:
            said = [trouble.said for trouble in self._troubles.values()]
        return "; ".join(said) or None

    def _leave(self, who: str, kept: str | None) -> list[_Trouble]:
        """Take `who` out of all troubles but `kept`; those that are over with it."""
        ended = []
        for kind, trouble in list(self._troubles.items()):
            if kind == kept or who not in trouble.who:
                continue
            trouble.who.discard(who)
            if not trouble.who:
                ended.append(self._troubles.pop(kind))
        return ended

    def _say(self, ended: list[_Trouble]) -> None:
        for trouble in ended:
            seconds = round(self._clock() - trouble.since, 1)
            _LOG.info("the API server serves again", after_seconds=seconds, failures=trouble.failures, was=trouble.said)


def _kind(error: ClusterError) -> str:
    """What counts as the same trouble. Each missing right is one of its own, because each must be granted."""
    name = type(error).__name__
    return f"{name}: {error.message}" if isinstance(error, Forbidden) else name
