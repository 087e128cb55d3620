"""One way to stop: SIGTERM or SIGINT sets an event; a second one later, or a body that does not end, exits hard.

Signals arrive through a wakeup descriptor (signal.set_wakeup_fd), written in C the moment they come, and are handled
by an ordinary thread. So nothing runs inside a signal handler, where setting an Event can deadlock with the main
thread that waits on it, and the deadline holds even when the main thread is stuck in C.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from slacktide.observe.logger import get_logger

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

DEADLINE_SECONDS: Final = 8.0
"""From the first stop to a hard exit; below the ten seconds that supervisors and Kubernetes commonly give."""

SECOND_AFTER_SECONDS: Final = 1.0
"""A further signal counts as a second one from here on: Ctrl-C reaches a whole process group, and its parent then
often sends SIGTERM as well, which is one wish and not two."""

EXIT_STUCK: Final = 70
"""Exit code of a daemon that did not end in time (EX_SOFTWARE of sysexits.h)."""

_log = get_logger("observe.signals")
_QUIT: Final = b"\0"


class StopSignals:
    """Turns signals into an event and a reload into a call on the waiting thread. Use as a context manager.

    It has the methods of a threading.Event that loops need (`is_set`, `wait`, `set`); `event` is that event itself,
    for other threads to wait on and never to set.
    """

    def __init__(
        self,
        deadline_seconds: float = DEADLINE_SECONDS,
        hard_exit: Callable[[int], None] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.event = threading.Event()
        self.reason = ""
        self._deadline_seconds = deadline_seconds
        self._hard_exit = hard_exit
        self._clock = clock
        self._stopped_at = 0.0
        self._lock = threading.Lock()
        self._wake = threading.Condition()
        self._reload_asked = False
        self._on_reload: Callable[[], None] | None = None
        self._on_stop: list[Callable[[], None]] = []
        self._watchdog: threading.Timer | None = None
        self._old: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._old_wakeup = -1
        self._pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StopSignals:
        """Take over SIGTERM, SIGINT and SIGHUP. Only the main thread may (ValueError otherwise)."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        self._pipe = (read, write)
        for number in (*STOP_SIGNALS, signal.SIGHUP):
            self._old[number] = signal.signal(number, _noted)
        self._old_wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, args=(read,), name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back and call off the deadline."""
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        with self._lock:
            if self._watchdog is not None:
                self._watchdog.cancel()
        if self._pipe is not None and self._thread is not None:
            os.write(self._pipe[1], _QUIT)
            self._thread.join()
            for descriptor in self._pipe:
                os.close(descriptor)
        self._pipe = self._thread = None

    def is_set(self) -> bool:
        """Whether the daemon is to stop."""
        return self.event.is_set()

    def set(self, reason: str = "asked to stop") -> None:
        """Stop, from any thread; the deadline runs from now. A second call changes nothing."""
        with self._lock:
            if self.event.is_set():
                return
            self.reason = reason
            self._stopped_at = self._clock()
            self.event.set()
            callbacks = list(self._on_stop)
            self._watchdog = threading.Timer(self._deadline_seconds, self._stuck)
            self._watchdog.daemon = True
            self._watchdog.start()
        _log.info("stopping", reason=reason)
        with self._wake:
            self._wake.notify_all()
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - the thread that hears signals must outlive whoever listens to it
                _log.exception("a callback on stop failed")

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, on the stopping thread, when the daemon is to stop; at once if it already is.

        For what cannot wait on an event, such as an asyncio loop: `stop.on_stop(lambda:
        loop.call_soon_threadsafe(task.cancel))`. It must return at once.
        """
        with self._lock:
            if not self.event.is_set():
                self._on_stop.append(callback)
                return
        callback()

    def on_reload(self, callback: Callable[[], None]) -> None:
        """Call `callback` after a SIGHUP, on the thread that is in `wait` or calls `run_pending`."""
        self._on_reload = callback

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the daemon is to stop, or for `timeout` seconds; reloads run meanwhile. Returns `is_set()`.

        For the main loop. Other threads wait on `event`. Without a timeout it returns only when the daemon is to
        stop: a reload never ends it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with self._wake:
                self._wake.wait_for(lambda: self.event.is_set() or self._reload_asked, left)
            self.run_pending()
            if self.event.is_set() or (deadline is not None and time.monotonic() >= deadline):
                return self.event.is_set()

    def run_pending(self) -> None:
        """Run the reload callback if a SIGHUP came since the last time; for loops that do not use `wait`.

        A callback that fails is logged: a daemon must not end because somebody edits its settings.
        """
        with self._wake:
            asked, self._reload_asked = self._reload_asked, False
        if not asked or self._on_reload is None or self.event.is_set():
            return
        try:
            self._on_reload()
        except Exception:  # noqa: BLE001 - see above; logged with its trace and counted
            _log.exception("the reload failed")

    def _listen(self, descriptor: int) -> None:
        while True:
            for number in os.read(descriptor, 64):
                if number == 0:
                    return
                self._came(number)

    def _came(self, number: int) -> None:
        if number == signal.SIGHUP:
            with self._wake:
                self._reload_asked = True
                self._wake.notify_all()
        elif number in STOP_SIGNALS:
            name = signal.Signals(number).name
            if not self.event.is_set():
                self.set(f"signal {name}")
            elif self._clock() - self._stopped_at >= SECOND_AFTER_SECONDS:
                _log.warning("a second signal: leaving at once", signal=name)
                self._hard_exit(128 + number)

    def _stuck(self) -> None:
        _log.error("not ended in time after the stop: leaving at once", seconds=self._deadline_seconds)
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        self._hard_exit(EXIT_STUCK)


def _noted(_number: int, _frame: FrameType | None) -> None:
    """A Python handler must be there for the wakeup descriptor to be written; it has nothing to do."""
