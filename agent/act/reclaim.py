"""Takes memory back from BE pods, on a thread of its own: the kernel may be at it for seconds.

`want` puts the newest asks into a mailbox of one. An ask is an act and not a state: one that was taken is not taken
again, however often it stands in a plan. It is done in pieces of `PIECE_BYTES`, so that newer asks and the end need
not wait for it; what is left of an older one is then dropped. A group where the kernel finds less than a piece is
done for this time. What became of all that stands in `view()`, which the next snapshot carries.

A write that hangs holds this thread and nothing else: the view says since when, and the policy asks for nothing more.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from agent.host.cgroup import PodGroup
from agent.policy.base import Reclaim
from agent.reclaim import Reclaimed, ReclaimView, Result
from slacktide.errors import Gone, KernelError
from slacktide.observe import get_logger

_LOG: Final = get_logger("agent.reclaim")

PIECE_BYTES: Final = 16 << 20
"""One write: some milliseconds of clean page cache."""

_REMEMBERED: Final = 512
"""Groups whose last ask is remembered; the oldest are forgotten first."""

Write = Callable[[str, int, int], None]
"""(group, inode, bytes): `agent.host.reclaim.ReclaimFile.reclaim` in real life."""


class Reclaimer:
    """`start` and `stop` once each; `want` and `view` from any thread, without waiting."""

    def __init__(self, write: Write, clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._changed = threading.Condition()
        self._mail: tuple[tuple[Reclaim, int], ...] = ()
        self._letter = 0
        self._taken: dict[str, float] = {}
        self._stopping = False
        self._view = ReclaimView()
        self._thread = threading.Thread(target=self._run, name="reclaim", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline_seconds: float) -> bool:
        """Begin nothing more; whether the thread ended in time (a write in the kernel cannot be called back)."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(deadline_seconds)
        return not self._thread.is_alive()

    def want(self, reclaims: Sequence[Reclaim], pods: Sequence[PodGroup]) -> None:
        """The newest asks. `pods` are the BE pods' groups as listed; one that is not among them is left alone."""
        if not reclaims:
            return
        inodes = {pod.group: pod.inode for pod in pods}
        with self._changed:
            fresh = tuple(
                (ask, inodes[ask.group])
                for ask in reclaims
                if ask.group in inodes and ask.bytes > 0 and ask.at > self._taken.get(ask.group, -1.0)
            )
            if not fresh:
                return
            for ask, _ in fresh:
                self._taken.pop(ask.group, None)
                self._taken[ask.group] = ask.at
            while len(self._taken) > _REMEMBERED:
                self._taken.pop(next(iter(self._taken)))
            self._mail = fresh
            self._letter += 1
            self._changed.notify()

    def view(self) -> ReclaimView:
        """What was done so far; a value that never changes."""
        return self._view

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._mail or self._stopping)
                if self._stopping:
                    return
                mail, self._mail = self._mail, ()
                letter = self._letter
            for ask, inode in mail:
                self._do(ask, inode, letter)

    def _do(self, ask: Reclaim, inode: int, letter: int) -> None:
        """One ask, piece by piece. The broad handler keeps the thread: the next ask is another cgroup."""
        self._view = replace(self._view, busy_since=self._clock(), asks=self._view.asks + 1)
        done, result, detail = 0, Result.DONE, ""
        try:
            while done < ask.bytes:
                if self._stopping or self._letter != letter:
                    result = Result.DROPPED
                    break
                piece = min(PIECE_BYTES, ask.bytes - done)
                self._write(ask.group, inode, piece)
                done += piece
        except KernelError as error:
            result, detail = _result_of(error), str(error)
        except Exception as error:  # noqa: BLE001 - see above; logged with its trace
            _LOG.exception("reclaim failed", group=ask.group)
            result, detail = Result.REFUSED, repr(error)
        self._tell(ask, done, result, detail)

    def _tell(self, ask: Reclaim, done: int, result: Result, detail: str) -> None:
        view, now = self._view, self._clock()
        last = {group: entry for group, entry in view.last.items() if group != ask.group}
        last[ask.group] = Reclaimed(
            asked_at=ask.at, done_at=now, asked_bytes=ask.bytes, done_bytes=done, result=result, detail=detail
        )
        while len(last) > _REMEMBERED:
            last.pop(next(iter(last)))
        self._view = replace(
            view,
            last=last,
            busy_since=None,
            done_bytes=view.done_bytes + done,
            short=view.short + (result is Result.SHORT),
            failed=view.failed + (result is Result.REFUSED),
        )
        if result is Result.REFUSED:
            _LOG.warning("memory cannot be reclaimed", group=ask.group, why=detail)


def _result_of(error: KernelError) -> Result:
    if isinstance(error, Gone):
        return Result.GONE
    return Result.SHORT if error.errno == errno.EAGAIN else Result.REFUSED
