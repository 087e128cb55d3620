"""The newest forecast of every node, for readers of the gRPC service. Thread-safe."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from slacktide.forecast import Amount, Forecast


class Entry(NamedTuple):
    """What was computed for a node, and what stands in its status (None: nothing, or not ours to say)."""

    node: str
    forecast: Forecast
    published: Amount | None
    horizon_seconds: float


Listener = Callable[[Sequence[Entry], bool], None]
"""Called with entries and whether their nodes are gone; on the thread that changed the board, so it must not block."""


class Board:
    """Forecasts by node name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._at = -math.inf
        self._listeners: list[Listener] = []

    def get(self, node: str) -> Entry | None:
        """The newest forecast of `node`."""
        with self._lock:
            entry, at = self._entries.get(node), self._at
        return None if entry is None else _of(entry, at)

    def put(self, *entries: Entry, at: float = -math.inf) -> None:
        """Replace the forecasts of some nodes. All others were found to be the same at `at`, seconds since the epoch:
        they are of that time now."""
        with self._lock:
            self._entries.update({entry.node: entry for entry in entries})
            self._at = max(self._at, at)
            listeners = list(self._listeners)
            told = entries if at == -math.inf or not listeners else self._all()
        for listener in listeners:
            listener(told, False)

    def remove(self, node: str) -> None:
        """The node is gone."""
        with self._lock:
            entry = self._entries.pop(node, None)
            listeners = list(self._listeners)
        if entry is not None:
            for listener in listeners:
                listener((entry,), True)

    def subscribe(self, listener: Listener) -> tuple[Entry, ...]:
        """Call `listener` for every change from now on; returns what stands at this moment."""
        with self._lock:
            self._listeners.append(listener)
            return self._all()

    def unsubscribe(self, listener: Listener) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners.remove(listener)

    def _all(self) -> tuple[Entry, ...]:
        return tuple(_of(entry, self._at) for entry in self._entries.values())


def _of(entry: Entry, at: float) -> Entry:
    """`entry` as found anew at `at`; one that is of a later time stays."""
    if entry.forecast.at >= at:
        return entry
    return entry._replace(forecast=msgspec.structs.replace(entry.forecast, at=at))
