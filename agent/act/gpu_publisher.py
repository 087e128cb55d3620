"""Writes what the GPUs of this node do into its annotation `slacktide.io/gpus`, for scheduler plugins to read.

A thread of its own, for which nobody waits. While GPUs or API do not answer, the last note ages until no reader
believes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from agent.gpu import Gpu
from agent.gpu_note import note_of, worth_writing
from slacktide.cluster import NODES
from slacktide.cluster.errors import ClusterError
from slacktide.gpus import Gpus, encode
from slacktide.names import GPUS_ANNOTATION
from slacktide.observe import get_logger

_LOG: Final = get_logger("agent.gpus")
_FIRST_SECONDS: Final = 5.0

COUNTED: Final = {
    "gpu_notes": "Writes of the GPU annotation that the API took.",
    "gpu_notes_failed": "Writes of the GPU annotation that failed.",
}
"""Counters and what they count."""


class NodeClient(Protocol):
    """The part of `slacktide.cluster.Client` that is needed."""

    def patch(self, kind: Any, name: str, namespace: str | None, body: dict[str, Any]) -> object:
        """Merge patch. Raises ClusterError."""
        ...


class GpuPublisher:
    """`gpus` gives the newest reading, None without one. `start` and `stop` once each."""

    def __init__(
        self,
        client: NodeClient,
        node: str,
        gpus: Callable[[], tuple[Gpu, ...] | None],
        period_seconds: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._node = node
        self._gpus = gpus
        self._period = period_seconds
        self._wall = wall
        self._written: Gpus | None = None
        self._problem = ""
        self.counters = dict.fromkeys(COUNTED, 0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-notes", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline_seconds: float) -> bool:
        """Write no more; whether the thread ended in time."""
        self._stopping.set()
        if self._thread.ident is None:
            return True
        self._thread.join(deadline_seconds)
        return not self._thread.is_alive()

    def look(self) -> None:
        """Write a note if there is one that is worth it. Never raises for what API or cards do."""
        cards = self._gpus()
        if not cards:
            return
        note = note_of(cards, self._wall(), self._period)
        if not worth_writing(self._written, note):
            return
        body = {"metadata": {"annotations": {GPUS_ANNOTATION: encode(note)}}}
        try:
            self._client.patch(NODES, self._node, None, body)
        except ClusterError as error:
            self.counters["gpu_notes_failed"] += 1
            self._say(str(error))
        else:
            self.counters["gpu_notes"] += 1
            self._written = note
            self._say("")

    def _say(self, problem: str) -> None:
        """Told when it begins or changes and when it ends, not with every try."""
        if problem and problem != self._problem:
            _LOG.warning("GPUs are not published", node=self._node, reason=problem)
        elif not problem and self._problem:
            _LOG.info("GPUs are published again", node=self._node)
        self._problem = problem

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception:  # noqa: BLE001 - the next look may go well; a bug is logged with its trace
                _LOG.exception("a look at the GPUs failed")
            # Sooner while there is nothing yet: the first reading takes a moment.
            if self._stopping.wait(self._period if self._written else min(self._period, _FIRST_SECONDS)):
                return
