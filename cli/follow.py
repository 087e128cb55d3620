"""Follow the output of a pod, over lost connections too, without printing a byte twice."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from slacktide.cluster import PODS
from slacktide.cluster.errors import ApiError, NotFound, ServerError, TooManyRequests, Unreachable
from slacktide.objects import ContainerStatus, Pod, is_terminal

if TYPE_CHECKING:
    from slacktide.cluster import Client
    from slacktide.cluster.wire import Stream

RETRY_SECONDS: Final = 0.5


class Follower:
    """Streams one output of one container to `write`, in a thread of its own.

    After a lost connection the log is read again from its start, and what was written already is skipped by count;
    where the node has thrown the oldest of it away meanwhile, as much is missing. Ends when the container does: one
    that is started again has another log.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        write: Callable[[bytes], None],
        *,
        stream: Literal["All", "Stdout", "Stderr"] = "All",
        container: str | None = None,
        tail_lines: int | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._client = client
        self._target = (namespace, name)
        self._write = write
        self._stream = stream
        self._container = container
        self._tail_lines = tail_lines
        self._retry_seconds = retry_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=f"follow-{stream}", daemon=True)
        self._written = 0
        self._followed: str | None = None
        self.error: Exception | None = None
        """What ended the following early; None when the log came to its end."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Do not connect again; a read that waits is left behind with its (daemon) thread."""
        self._stop.set()

    def join(self, timeout: float | None) -> bool:
        """Wait until the log has come to its end. False when it has not within `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def run(self) -> None:
        """Follow in this thread. Raises ApiError, or OSError of the writer."""
        while not self._stop.is_set():
            try:
                if self._another_began():
                    return
                self._once()
                if self._finished():
                    return
            except NotFound:
                # The pod was removed; there is no more to come.
                return
            except (Unreachable, ServerError, TooManyRequests):
                pass
            self._stop.wait(self._retry_seconds)

    def _finished(self) -> bool:
        """Whether the end of the stream was the end of the log. A server that stops in order ends streams too."""
        pod = self._pod()
        status = self._status(pod)
        return is_terminal(pod) or status is None or status.state.running is None or self._another_began()

    def _another_began(self) -> bool:
        """Whether the container is no more the one whose log was begun."""
        status = self._status(self._pod())
        now = status.container_id if status else ""
        if self._followed is None:
            self._followed = now
        return now != self._followed

    def _pod(self) -> Pod:
        namespace, name = self._target
        return self._client.get(PODS, name, namespace)

    def _status(self, pod: Pod) -> ContainerStatus | None:
        statuses = pod.status.container_statuses
        return next((one for one in statuses if self._container in {None, one.name}), None)

    def _guarded(self) -> None:
        try:
            self.run()
        except (ApiError, OSError) as error:
            self.error = error

    def _once(self) -> None:
        if self._tail_lines is not None:
            self._write_tail(self._tail_lines)
        skip = self._written
        for chunk in self._chunks(follow=True):
            fresh = chunk[skip:]
            skip = max(0, skip - len(chunk))
            if fresh:
                self._write(fresh)
                self._written += len(fresh)

    def _write_tail(self, lines: int) -> None:
        """Write the last lines and count all bytes before: only a count from the start survives a new connection."""
        kept: collections.deque[bytes] = collections.deque(maxlen=lines)
        rest, total = b"", 0
        for chunk in self._chunks(follow=False):
            total += len(chunk)
            *whole, rest = (rest + chunk).split(b"\n")
            kept.extend(line + b"\n" for line in whole)
        if rest:
            kept.append(rest)
        if kept:
            self._write(b"".join(kept))
        self._written, self._tail_lines = total, None

    def _chunks(self, *, follow: bool) -> Stream:
        namespace, name = self._target
        return self._client.logs(namespace, name, container=self._container, follow=follow, stream=self._stream)
