"""What the runner tells the API about pods: status patches and confirmations of deletion, in a thread of their own.

The loop that starts and kills must not wait for a slow server. For each pod only the newest status waits; it goes
out before the pod's deletion is confirmed. What fails because the server is away is tried again with back-off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from slacktide.cluster.errors import ApiError, ClusterError, Conflict, NotFound, TooManyRequests
from slacktide.cluster.kinds import PODS
from slacktide.objects import Pod, pod_key
from slacktide.observe import get_logger
from standalone.runner.api import Api
from standalone.runner.attempts import PodUid

_FIRST_RETRY_SECONDS: Final = 0.2
_MAX_RETRY_SECONDS: Final = 5.0
_REPEAT_DELETE_SECONDS: Final = 5.0

log = get_logger("runner.outbox")


@dataclass(slots=True)
class _Letter:
    pod: Pod
    status: dict[str, Any] | None = None
    delete: bool = False
    not_before: float = 0.0
    failures: int = 0


class Outbox:
    """Sends the newest status of each pod, then its deletion. `done` is called (from the thread) after each success."""

    def __init__(
        self, api: Api, done: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._done = done
        self._clock = clock
        self._letters: dict[PodUid, _Letter] = {}
        self._deleted: dict[PodUid, float] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._loop, name="outbox", daemon=True)

    def start(self) -> None:
        """Begin sending."""
        self._thread.start()

    def stop(self, flush_seconds: float) -> None:
        """Send what waits, for at most `flush_seconds`, and end."""
        end = self._clock() + flush_seconds
        with self._changed:
            while self._letters and self._thread.is_alive() and self._clock() < end:
                self._changed.wait(0.05)
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def status(self, pod: Pod, status: dict[str, Any]) -> None:
        """The newest status of a pod; replaces one that still waits."""
        with self._changed:
            letter = self._letters.setdefault(PodUid(pod.metadata.uid), _Letter(pod))
            letter.pod, letter.status = pod, status
            self._changed.notify_all()

    def delete(self, pod: Pod) -> None:
        """Confirm the deletion of a pod. Repeated calls are one call every few seconds: finalizers may hold it."""
        uid = PodUid(pod.metadata.uid)
        with self._changed:
            if self._clock() - self._deleted.get(uid, -_REPEAT_DELETE_SECONDS) < _REPEAT_DELETE_SECONDS:
                return
            self._deleted[uid] = self._clock()
            letter = self._letters.setdefault(uid, _Letter(pod))
            letter.pod, letter.delete = pod, True
            self._changed.notify_all()

    def forget(self, uid: PodUid) -> None:
        """The pod is gone: nothing more is said about it."""
        with self._changed:
            self._letters.pop(uid, None)
            self._deleted.pop(uid, None)

    def _loop(self) -> None:
        while True:
            with self._changed:
                letter = self._next()
                while letter is None and not self._stopping:
                    self._changed.wait(self._pause())
                    letter = self._next()
                if self._stopping or letter is None:
                    return
                uid = PodUid(letter.pod.metadata.uid)
                pod, status, delete = letter.pod, letter.status, letter.delete
                letter.status = None
            self._send(uid, pod, status, delete)

    def _next(self) -> _Letter | None:
        due = [letter for letter in self._letters.values() if letter.not_before <= self._clock()]
        return min(due, key=lambda letter: letter.not_before, default=None)

    def _pause(self) -> float | None:
        waits = [letter.not_before - self._clock() for letter in self._letters.values()]
        return max(0.01, min(waits)) if waits else None

    def _send(self, uid: PodUid, pod: Pod, status: dict[str, Any] | None, delete: bool) -> None:
        meta, again, wait = pod.metadata, False, 0.0
        try:
            if status is not None:
                body = {"metadata": {"uid": meta.uid}, "status": status}
                self._api.patch(PODS, meta.name, meta.namespace, body, subresource="status", patch_type="strategic")
                status = None
            if delete:
                self._api.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_period_seconds=0)
        except (NotFound, Conflict):
            pass
        except ClusterError as error:
            again = isinstance(error, TooManyRequests) or not isinstance(error, ApiError) or error.status >= 500
            wait = getattr(error, "retry_after", None) or 0.0
            log.warning("pod not reported", pod=pod_key(pod), error=str(error), again=again)
        with self._changed:
            self._settle(uid, status, delete, again, wait)
            self._changed.notify_all()
        if not again:
            self._done()

    def _settle(self, uid: PodUid, status: dict[str, Any] | None, delete: bool, again: bool, wait: float) -> None:
        letter = self._letters.get(uid)
        if letter is None:
            return
        if again:
            letter.status = letter.status or status
            letter.failures += 1
            pause = min(_MAX_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2.0 ** min(letter.failures, 10))
            letter.not_before = self._clock() + max(wait, pause)
            return
        letter.failures = 0
        letter.delete = letter.delete and not delete
        if letter.status is None and not letter.delete:
            del self._letters[uid]
