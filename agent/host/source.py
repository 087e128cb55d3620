"""A slow collector: reads on a thread of its own, at its own period, and keeps the newest value.

For everything that may take long or hang (perf counters, GPUs, a driver in D state): the control loop asks for
`latest` and never waits. One thread for good: a read that hangs holds it, is said once and counted once, and the loop
goes on with None. Failures in a row are tried ever less often, up to `longest_seconds`.
Source: reference/kernel.md section 5, "slow collector" (koordinator#1173: start-up must not wait for one).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from slacktide.errors import SlacktideError
from slacktide.observe import get_logger

_LOG: Final = get_logger("agent.source")

T = TypeVar("T")


class _Kept(NamedTuple, Generic[T]):
    """A value, and when its read began: it is as old as that."""

    value: T
    at: float


class Source(Generic[T]):
    """`start` and `stop` once each; the rest from any thread, without waiting.

    `read` gives a value or raises: a SlacktideError is why there is none now, anything else a bug, logged with its
    trace; both once per change of text. None is no value either, and `absent` says why. A read that takes longer than
    `timeout_seconds` hangs. `stopping` is set when the thread shall end, so that a `read` that waits for something may
    wait on it.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], T | None],
        period_seconds: float,
        *,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        longest_seconds: float | None = None,
        stopping: threading.Event | None = None,
        absent: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.name = name
        self._read = read
        self._period = period_seconds
        self._timeout = timeout_seconds
        self._longest = max(period_seconds, longest_seconds or period_seconds)
        self._clock = clock
        self._absent = absent
        self._stopping = stopping or threading.Event()
        self._lock = threading.Lock()
        self._kept: _Kept[T] | None = None
        self._busy_since: float | None = None
        self._hangs = False
        self._failure = ""
        self._in_a_row = 0
        self._counts = {"reads": 0, "failures": 0, "hangs": 0}
        self._thread = threading.Thread(target=self._run, name=f"source-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread; the first read begins at once, and nobody waits for it."""
        self._thread.start()

    def stop(self, deadline_seconds: float) -> bool:
        """Begin no more reads; whether the thread ended in time (a call that hangs cannot be called back)."""
        self._stopping.set()
        if self._thread.ident is None:
            return True
        self._thread.join(deadline_seconds)
        return not self._thread.is_alive()

    def latest(self, max_age_seconds: float | None = None) -> T | None:
        """The newest value; None without one or when its read began longer ago (default: three periods, a timeout)."""
        most = 3 * self._period + self._timeout if max_age_seconds is None else max_age_seconds
        with self._lock:
            self._watch()
            kept = self._kept
            return kept.value if kept is not None and self._clock() - kept.at <= most else None

    @property
    def why_not(self) -> str:
        """What is wrong now, in words: not started, hangs, failed, stopped; empty after a read that went well."""
        with self._lock:
            self._watch()
            if self._hangs and self._busy_since is not None:
                return f"{self.name}: hangs since {self._clock() - self._busy_since:.0f} s"
            if self._thread.ident is None:
                return f"{self.name}: not started"
            if self._stopping.is_set():
                return f"{self.name}: stopped"
            if self._failure:
                return f"{self.name}: failed with {self._failure}"
            return "" if self._kept is not None else f"{self.name}: the first read is under way"

    @property
    def counters(self) -> Mapping[str, int]:
        """Totals since start: `reads` that ended well, `failures`, `hangs`."""
        with self._lock:
            self._watch()
            return dict(self._counts)

    def _watch(self) -> None:
        """Under the lock: notice a read that hangs."""
        if self._hangs or self._busy_since is None or self._clock() - self._busy_since <= self._timeout:
            return
        self._hangs = True
        self._counts["hangs"] += 1
        _LOG.warning("a source hangs; its part is unknown until it answers", source=self.name, seconds=self._timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            begun = self._clock()
            with self._lock:
                self._busy_since = begun
            self._once(begun)
            pause = min(self._longest, self._period * 2 ** min(max(0, self._in_a_row - 1), 16))
            self._stopping.wait(max(0.0, begun + pause - self._clock()))

    def _once(self, begun: float) -> None:
        """One read. The broad handler keeps the thread: the next read may go well."""
        try:
            value = self._read()
        except SlacktideError as error:
            self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - see above; logged with its trace
            self._failed(repr(error), unexpected=True)
        else:
            if value is None:
                self._failed(self._absent() or "no value")
            else:
                self._ended(_Kept(value, begun))

    def _ended(self, kept: _Kept[T]) -> None:
        with self._lock:
            self._answered()
            self._kept = kept
            self._counts["reads"] += 1
            recovered, self._failure, self._in_a_row = self._failure, "", 0
        if recovered:
            _LOG.info("a source reads again", source=self.name)

    def _failed(self, text: str, *, unexpected: bool = False) -> None:
        with self._lock:
            self._answered()
            self._counts["failures"] += 1
            self._in_a_row += 1
            known, self._failure = self._failure == text, text
        if known:
            return
        _LOG.warning("a source cannot be read", source=self.name, reason=text, exc_info=unexpected)

    def _answered(self) -> None:
        """Under the lock: the read came back, late or not."""
        self._watch()
        if self._hangs:
            _LOG.info("a source that hung answers again", source=self.name)
        self._busy_since, self._hangs = None, False
