"""The newest forecast of every node, for readers of the gRPC service. Thread-safe."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

from slacktide.forecast import Amount, Forecast


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What was computed for a node, and what stands in its status (None: nothing, or not ours to say)."""

    node: str
    forecast: Forecast
    published: Amount | None
    horizon_seconds: float


Listener = Callable[[Entry, bool], None]
"""Called with an entry and whether the node is gone; on the thread that changed the board, so it must not block."""


class Board:
    """Forecasts by node name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._listeners: list[Listener] = []

    def get(self, node: str) -> Entry | None:
        """The newest forecast of `node`."""
        with self._lock:
            return self._entries.get(node)

    def put(self, entry: Entry) -> None:
        """Replace the forecast of a node."""
        with self._lock:
            self._entries[entry.node] = entry
            listeners = list(self._listeners)
        for listener in listeners:
            listener(entry, False)

    def remove(self, node: str) -> None:
        """The node is gone."""
        with self._lock:
            entry = self._entries.pop(node, None)
            listeners = list(self._listeners)
        if entry is not None:
            for listener in listeners:
                listener(entry, True)

    def subscribe(self, listener: Listener) -> tuple[Entry, ...]:
        """Call `listener` for every change from now on; returns what stands at this moment."""
        with self._lock:
            self._listeners.append(listener)
            return tuple(self._entries.values())

    def unsubscribe(self, listener: Listener) -> None:
        """Call it no more."""
        with self._lock:
            self._listeners.remove(listener)
