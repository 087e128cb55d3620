"""The one thread that writes history: samples of all streams become durable together (group commit).

A batch waits `commit_seconds` for others, then one transaction stores all of them and each is told. A transaction costs
much the same for one sample as for many: where it takes long the wait is longer, so that writing is a small part of the
time. When the disk says no, nothing is acknowledged, the reason stands in readiness and log, and the file is opened
again after a growing pause; forecasting goes on with what is in memory.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from predictor.clock import Clock, Instant
from predictor.history import Appended, Batch, PodHours, PodReport, Window
from predictor.metrics import Metrics
from predictor.slots import SLOT_SECONDS
from predictor.storage import HistoryCorrupt, HistoryError
from predictor.upkeep import Kept, Upkeep, UpkeepRules
from slacktide.errors import StateError
from slacktide.observe import get_logger

log = get_logger("predictor.writer")

MAX_COMMIT_SAMPLES: Final = 10_000

_GATHER_SHARE: Final = 9.0
"""Samples gather for so many times what the last durable write took ..."""

_LONGEST_GATHER_SECONDS: Final = 0.5
"""... but never longer than this, or than `commit_seconds`."""

_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_DAY_SECONDS: Final = 86400


class Store(Kept, Protocol):
    """The history as the writer uses it."""

    def append(self, batches: list[Batch], /) -> Appended:
        """Store durably."""
        ...

    def windows(self, since_millis: int, /) -> Iterator[Window]:
        """Recent use of all nodes."""
        ...

    def pod_hours(self, since_millis: int, /) -> Iterator[PodHours]:
        """Recent use of all pods."""
        ...

    def states(self) -> dict[str, bytes]:
        """What is kept under keys."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where the history is: how to open it, and how to set a damaged one, or only its log, aside (returns its new
    path)."""

    open: Callable[[], Store]
    set_aside: Callable[[], str]
    set_log_aside: Callable[[], str] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class WriterRules:
    """How long samples gather, how many may wait, how long history and model window are, how large the history,
    and how many days of pods are handed on."""

    commit_seconds: float
    queue_samples: int
    retention_days: float
    window_days: float
    max_bytes: int = 16 << 30
    pod_days: float = 7.0


@dataclasses.dataclass(slots=True)
class _Waiting:
    batch: Batch
    done: Callable[[bool], None]


class Writer:
    """Owns the history. `start` opens it, `submit` may be called from any thread, `stop` writes what waits."""

    def __init__(
        self,
        place: Place,
        rules: WriterRules,
        clock: Clock,
        metrics: Metrics,
        on_window: Callable[[Window], None],
        on_pods: Callable[[PodHours], None] | None = None,
        take_pods: Callable[[], PodReport] | None = None,
    ) -> None:
        """`on_window` and `on_pods` get what the history remembers, part by part, when it is opened first; a part may
        come again after a failure. `take_pods` is asked for pods every few minutes, on the writer's thread: each
        closed hour it hands out is kept until it is stored."""
        self._place = place
        self._rules = rules
        self._clock = clock
        self._metrics = metrics
        self._on_window: Callable[[Window], None] | None = on_window
        self._on_pods = on_pods
        self._upkeep = Upkeep(UpkeepRules(rules.retention_days, rules.max_bytes), metrics, take_pods)
        self._store: Store | None = None
        self._problem: str | None = "history is not open yet"
        self._pause = _FIRST_PAUSE_SECONDS
        self._retry_at = 0.0
        self._wake = threading.Condition()
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._samples = 0
        self._took = 0.0
        metrics.waiting.set_function(lambda: self._samples)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="history-writer", daemon=True)

    def start(self) -> None:
        """Open the history, hand its window on, and begin.

        Raises StateError when the directory must not be used. A disk that says no is only noted: it is tried again.
        """
        self._open(self._clock.now())
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """Write what waits, close the file; False when that took longer than `timeout_seconds`."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def submit(self, batch: Batch, done: Callable[[bool], None]) -> bool:
        """Queue `batch`; False when the queue is full or closed.

        `done` is called once, on the writer's thread: True when the batch is durable, False when it is not.
        A batch larger than the whole queue is taken when the queue is empty.
        """
        with self._wake:
            full = self._samples + len(batch.samples) > self._rules.queue_samples
            if self._stopping or (full and self._queue):
                return False
            self._queue.append(_Waiting(batch, done))
            self._samples += len(batch.samples)
            # The first of a commit begins its time, and a full one ends it: for the others nobody needs to wake.
            if len(self._queue) == 1 or self._enough():
                self._wake.notify()
        return True

    def save_state(self, key: str, value: bytes) -> None:
        """Keep `value` under `key` in the history, in place of what was there; from any thread, written soon."""
        self._upkeep.save_state(key, value)
        with self._wake:
            self._wake.notify()

    def load_state(self, key: str) -> bytes | None:
        """What was saved last under `key`, by this process or one before; None until the history could be opened."""
        return self._upkeep.load_state(key)

    def retire(self, name: str) -> None:
        """Another machine has the name of this node now: a restart no longer hands on what was measured before."""
        self._upkeep.retire(name)

    def problem(self) -> str | None:
        """Why samples do not become durable; None when they do."""
        return self._problem

    def ended(self) -> str | None:
        """Why only a restart helps; None while the thread lives."""
        return None if self._thread.is_alive() or self._thread.ident is None else "the history writer has ended"

    def _run(self) -> None:
        while True:
            waiting = self._gather()
            if waiting:
                self._commit(waiting)
            # The one broad handler of upkeep: samples must go on becoming durable.
            try:
                self._maintain()
            except Exception as error:
                log.exception("upkeep of the history failed")
                self._close()
                self._note(f"history: {type(error).__name__}: {error}", self._clock.now())
            with self._wake:
                if self._stopping and not self._queue:
                    break
        self._finish()

    def _finish(self) -> None:
        if self._store is None:
            return
        try:
            self._upkeep.finish(self._store)
        except HistoryError as error:
            log.warning("pods and states of the last minutes could not be stored", error=str(error))
        self._close()

    def _gather(self) -> list[_Waiting]:
        with self._wake:
            busy = self._store is not None and self._upkeep.waits()
            self._wake.wait_for(lambda: self._queue or self._stopping, timeout=0.0 if busy else 1.0)
            if self._queue and not self._stopping:
                self._wake.wait_for(self._enough, timeout=gather_seconds(self._rules.commit_seconds, self._took))
            taken: list[_Waiting] = []
            count = 0
            while self._queue and count < MAX_COMMIT_SAMPLES:
                taken.append(self._queue.popleft())
                count += len(taken[-1].batch.samples)
            self._samples -= count
            return taken

    def _enough(self) -> bool:
        return self._stopping or self._samples >= min(MAX_COMMIT_SAMPLES, self._rules.queue_samples)

    def _commit(self, waiting: list[_Waiting]) -> None:
        durable = False
        # The one broad handler: the writer must outlive any one batch.
        try:
            durable = self._append([item.batch for item in waiting])
        except Exception as error:
            log.exception("writing samples failed")
            self._close()
            self._note(f"samples are not durable: {type(error).__name__}: {error}", self._clock.now())
        for item in waiting:
            item.done(durable)

    def _append(self, batches: list[Batch]) -> bool:
        now = self._clock.now()
        if self._store is None and now.monotonic >= self._retry_at:
            self._reopen(now)
        if self._store is None:
            return False
        try:
            began = self._clock.now().monotonic
            with self._metrics.commit_seconds.time():
                appended = self._store.append(batches)
            self._took = self._clock.now().monotonic - began
        except HistoryError as error:
            self._fail(error, now)
            return False
        self._metrics.samples.inc(appended.stored)
        self._metrics.duplicates.inc(appended.duplicates)
        self._healthy()
        return True

    def _maintain(self) -> None:
        if self._store is None:
            return
        now = self._clock.now()
        try:
            self._upkeep.step(self._store, now)
        except HistoryError as error:
            self._fail(error, now)

    def _reopen(self, now: Instant) -> None:
        try:
            self._open(now)
        except StateError as error:
            self._note(str(error), now)

    def _open(self, now: Instant) -> None:
        try:
            self._load(now)
        except HistoryCorrupt as error:
            self._set_aside(error, now)
        except HistoryError as error:
            self._fail(error, now)

    def _load(self, now: Instant) -> None:
        self._store = self._place.open()
        self._upkeep.adopt_states(self._store.states())
        if self._on_window is not None:
            for window in self._store.windows(_days_ago(now, self._rules.window_days)):
                self._on_window(window)
            if self._on_pods is not None:
                for hours in self._store.pod_hours(_days_ago(now, self._rules.pod_days)):
                    self._on_pods(hours)
            self._on_window = None
        if self._problem == "history is not open yet":
            self._healthy()

    def _set_aside(self, error: HistoryCorrupt, now: Instant) -> None:
        self._close()
        try:
            if error.in_log and self._place.set_log_aside is not None:
                path = self._place.set_log_aside()
                log.error("the newest minutes of the history are damaged, set aside", error=str(error), kept_as=path)
            else:
                path = self._place.set_aside()
                log.error("history damaged, set aside; forecasting goes on without it", error=str(error), kept_as=path)
            self._load(now)
        except HistoryCorrupt as second:
            self._set_aside_again(second, now, after_log=error.in_log)
        except (HistoryError, StateError) as second:
            self._close()
            self._note(f"samples are not durable: {second}", now)

    def _set_aside_again(self, error: HistoryCorrupt, now: Instant, *, after_log: bool) -> None:
        """Without its log the file may turn out to be damaged too; a new file that is damaged is a failing disk."""
        if after_log:
            self._set_aside(HistoryCorrupt(str(error)), now)
            return
        self._close()
        self._note(f"samples are not durable: {error}", now)

    def _fail(self, error: HistoryError, now: Instant) -> None:
        self._metrics.commit_failures.inc()
        if isinstance(error, HistoryCorrupt) and self._store is not None:
            self._set_aside(error, now)
            return
        self._close()
        self._note(f"samples are not durable: {error}", now)

    def _note(self, problem: str, now: Instant) -> None:
        if problem != self._problem:
            log.error("history unusable", problem=problem)
        self._problem = problem
        self._metrics.history_usable.set(0)
        self._retry_at = now.monotonic + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)

    def _healthy(self) -> None:
        if self._problem is not None:
            log.info("history usable")
        self._problem = None
        self._pause = _FIRST_PAUSE_SECONDS
        self._metrics.history_usable.set(1)

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is None:
            return
        try:
            store.close()
        except HistoryError as error:
            log.warning("closing the history failed", error=str(error))


def gather_seconds(commit_seconds: float, took_seconds: float) -> float:
    """How long to wait for more after the first sample, when the last durable write took `took_seconds`."""
    return max(commit_seconds, min(_GATHER_SHARE * took_seconds, _LONGEST_GATHER_SECONDS))


def _days_ago(now: Instant, days: float) -> int:
    """One slot more than asked, so that the oldest one is whole."""
    return int((now.wall - days * _DAY_SECONDS - SLOT_SECONDS) * 1000)
