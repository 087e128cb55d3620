"""What the history needs between two commits: folding, pruning, pods, states, and the figures about it.

The work comes in steps that are short each, so that samples on their way never wait long for their commit. Only
giving back space after the limit was lowered takes longer; it is said.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable
from typing import Final, Protocol

from predictor.clock import Instant
from predictor.metrics import Metrics
from predictor.storage import HistoryError
from predictor.store.columns import PodReport, no_hours
from predictor.store.combine import joined_hours
from predictor.store.size import Dropped, Sizes, slot_text
from slacktide.observe import get_logger

log = get_logger("predictor.upkeep")

FOLD_LAG_SECONDS: Final = 60
"""A slot is folded this long after its end, so that samples on their way still count in one piece."""
NODES_AT_ONCE: Final = 2500
"""So many nodes are folded in one step."""

_MAINTAIN_SECONDS: Final = 30.0
_PODS_SECONDS: Final = 300.0
_PRUNE_SECONDS: Final = 3600.0
_DAY_SECONDS: Final = 86400


class Kept(Protocol):
    """The history as its upkeep uses it."""

    def fold(self, before_millis: int, part: int, parts: int, /) -> int:
        """Fold past slots of some of the nodes."""
        ...

    def prune(self, before_millis: int, /) -> None:
        """Remove what is too old."""
        ...

    def forget_unused(self) -> None:
        """Remove nodes and pods of which nothing is left."""
        ...

    def limit(self, max_bytes: int, /) -> Dropped | None:
        """Remove the oldest day if there is more than that."""
        ...

    def save_pods(self, report: PodReport, /) -> None:
        """Store pods."""
        ...

    def save_state(self, key: str, value: bytes, /) -> None:
        """Store what stands under a key."""
        ...

    def retire(self, name: str, /) -> None:
        """Begin anew under a node's name."""
        ...

    def nodes(self) -> int:
        """How many nodes there are."""
        ...

    def sizes(self) -> Sizes:
        """Rows and bytes."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class UpkeepRules:
    """How long history is kept, and how many bytes it may take."""

    retention_days: float
    max_bytes: int


class Upkeep:
    """Work that waits for the writer's thread. `save_state` and `retire` may be called from any thread."""

    def __init__(self, rules: UpkeepRules, metrics: Metrics, take_pods: Callable[[], PodReport] | None) -> None:
        self._rules = rules
        self._metrics = metrics
        self._take_pods = take_pods
        self._steps: collections.deque[Callable[[Kept], None]] = collections.deque()
        self._lock = threading.Lock()
        self._states: dict[str, bytes] = {}
        self._unsaved: set[str] = set()
        self._retired: list[str] = []
        self._closed = no_hours()
        self._too_large = False
        self._maintain_at = 0.0
        self._pods_at: float | None = None
        self._prune_at = 0.0
        self._forget_at: float | None = None

    def save_state(self, key: str, value: bytes) -> None:
        """Keep `value` under `key`: the newest one is written in the next step."""
        with self._lock:
            self._states[key] = value
            self._unsaved.add(key)

    def load_state(self, key: str) -> bytes | None:
        """What was saved or adopted last under `key`."""
        with self._lock:
            return self._states.get(key)

    def adopt_states(self, states: dict[str, bytes]) -> None:
        """Take over what an opened history holds. What is known already is newer, and goes into a new file too."""
        with self._lock:
            self._states = {**states, **self._states}
            self._unsaved |= {key for key, value in self._states.items() if states.get(key) != value}

    def retire(self, name: str) -> None:
        """Begin anew under the name of a node, in the next step."""
        with self._lock:
            self._retired.append(name)

    def waits(self) -> bool:
        """Whether `step` has something to do at once."""
        return bool(self._steps or self._unsaved or self._retired)

    def step(self, store: Kept, now: Instant) -> None:
        """Do one piece of what is due. Raises HistoryError: the rest is planned anew."""
        self._write_words(store)
        if not self._steps and now.monotonic >= self._maintain_at:
            self._maintain_at = now.monotonic + _MAINTAIN_SECONDS
            self._plan(store, now)
        if self._steps:
            step = self._steps.popleft()
            try:
                step(store)
            except HistoryError:
                self._steps.clear()
                raise

    def finish(self, store: Kept) -> None:
        """What must not wait for the next start. Raises HistoryError."""
        self._write_words(store)
        self._save_pods(store)

    def _plan(self, store: Kept, now: Instant) -> None:
        parts = 1 + store.nodes() // NODES_AT_ONCE
        before = int((now.wall - FOLD_LAG_SECONDS) * 1000)
        self._steps.extend(_fold_step(before, part, parts) for part in range(parts))
        if self._pods_at is None or now.monotonic >= self._pods_at:
            if self._pods_at is not None:
                self._steps.append(self._save_pods)
            self._pods_at = now.monotonic + _PODS_SECONDS
        if now.monotonic >= self._prune_at:
            self._prune_at = now.monotonic + _PRUNE_SECONDS
            oldest = int((now.wall - self._rules.retention_days * _DAY_SECONDS) * 1000)
            self._steps.append(lambda kept: kept.prune(oldest))
        if self._forget_at is None:
            # Not in the first minutes, when agents that waited send all at once.
            self._forget_at = now.monotonic + _PRUNE_SECONDS
        elif now.monotonic >= self._forget_at:
            self._forget_at = now.monotonic + _DAY_SECONDS
            self._steps.append(lambda kept: kept.forget_unused())
        self._steps.append(self._limit)
        self._steps.append(self._measure)

    def _write_words(self, store: Kept) -> None:
        with self._lock:
            states = {key: self._states[key] for key in self._unsaved}
            retired = list(self._retired)
        for key, value in states.items():
            store.save_state(key, value)
        for name in retired:
            store.retire(name)
        with self._lock:
            self._unsaved -= {key for key, value in states.items() if self._states[key] is value}
            del self._retired[: len(retired)]

    def _save_pods(self, store: Kept) -> None:
        if self._take_pods is None:
            return
        taken = self._take_pods()
        # Hours that are over are handed out once: they wait here until a write succeeds.
        self._closed = joined_hours(self._closed, taken.closed)
        store.save_pods(PodReport(self._closed, taken.open))
        self._closed = no_hours()

    def _limit(self, store: Kept) -> None:
        dropped = store.limit(self._rules.max_bytes)
        if dropped is None:
            return
        self._metrics.history_days_dropped.inc()
        log.warning(
            "history is larger than history_max_bytes: its oldest part was removed",
            until=slot_text(dropped.until_slot),
            bytes_before=dropped.bytes_before,
            max_bytes=self._rules.max_bytes,
        )
        self._steps.appendleft(self._limit)

    def _measure(self, store: Kept) -> None:
        sizes = store.sizes()
        self._metrics.history_rows.labels("samples").set(sizes.samples)
        self._metrics.history_rows.labels("slots").set(sizes.slots)
        self._metrics.history_rows.labels("pod_hours").set(sizes.pod_hours)
        self._metrics.history_bytes.set(sizes.file_bytes)
        too_large = sizes.file_bytes > self._rules.max_bytes
        if too_large and not self._too_large:
            log.warning(
                "history is larger than history_max_bytes; a restart makes the file smaller if much of it is free, "
                "otherwise a day of all nodes needs more: raise the limit",
                file_bytes=sizes.file_bytes,
                max_bytes=self._rules.max_bytes,
            )
        self._too_large = too_large


def _fold_step(before: int, part: int, parts: int) -> Callable[[Kept], None]:
    def fold(store: Kept) -> None:
        store.fold(before, part, parts)

    return fold
