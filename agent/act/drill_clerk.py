"""Beside a drill: keeps its record, tells of it, and looks beyond the node while a drill keeps samples back.

A thread of its own, so that neither disk nor API is ever waited for by the control loop. Events go to the node when a
drill begins and ends, and to each pod that it evicts.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal, Protocol

from agent.act.drill_records import DrillRecords
from agent.act.eviction_log import pod_of
from agent.drill import KEEPS_SAMPLES, Drill, ForecastLook, Outside, Phase
from agent.drill_wire import record_of
from slacktide import forecast
from slacktide.cluster import NODES
from slacktide.cluster.errors import ClusterError
from slacktide.forecast import ForecastError, Freshness
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node, ObjectMeta, Pod
from slacktide.observe import get_logger
from slacktide.v1 import drill_pb2 as pb

_LOG: Final = get_logger("agent.drill")
_TIMEOUT_SECONDS: Final = 3.0
_REASON: Final = "SlacktideDrill"

Streams = Callable[[], tuple[bool, int]]
"""Whether a predictor answers, and how many samples wait for one."""


class Recorder(Protocol):
    """Takes events; `slacktide.cluster.EventRecorder`."""

    def record(self, involved: Node | Pod, type_: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Queue one event; returns at once."""


class NodeReader(Protocol):
    """The part of `slacktide.cluster.Client` that is needed."""

    def get_dict(
        self, kind: Any, name: str, namespace: str | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """One object. Raises ClusterError."""
        ...


class DrillClerk:
    """`news` takes what `DrillBoard` says; `outside` is the last look beyond the node, each `period_seconds` while a
    drill needs it. `start` and `stop` once each.
    """

    def __init__(
        self,
        node: str,
        client: NodeReader,
        recorder: Recorder,
        records: DrillRecords,
        streams: Streams,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        period_seconds: float = 0.5,
    ) -> None:
        self._period = period_seconds
        self._node = node
        self._client = client
        self._recorder = recorder
        self._records = records
        self._streams = streams
        self._clock = clock
        self._wall = wall
        self._news: queue.SimpleQueue[tuple[Drill | None, Drill] | None] = queue.SimpleQueue()
        self._drill: Drill | None = None
        self._outside: Outside | None = None
        self._thread = threading.Thread(target=self._run, name="drill-clerk", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline_seconds: float) -> bool:
        """Write what is left and end; whether that was done in time."""
        if self._thread.ident is None:
            return True
        self._news.put(None)
        self._thread.join(deadline_seconds)
        return not self._thread.is_alive()

    def news(self, before: Drill | None, after: Drill) -> None:
        """A drill began (on a caller's thread, which waits for the disk) or went on (never waits)."""
        if before is None:
            self._keep(after)
        self._news.put((before, after))

    def outside(self) -> Outside | None:
        """The last look while a drill keeps samples back; None while there was none."""
        return self._outside

    def look(self) -> Outside:
        """What is beyond the node now; asks the API, for some seconds at most, and is `outside` from then on."""
        self._outside = found = self._looked()
        return found

    def _looked(self) -> Outside:
        connected, waiting = self._streams()
        try:
            found, problem = self._forecast(), ""
        except ClusterError as error:
            found, problem = None, str(error)
        return Outside(at=self._clock(), connected=connected, waiting=waiting, forecast=found, problem=problem)

    def _forecast(self) -> ForecastLook | None:
        node = self._client.get_dict(NODES, self._node, timeout_seconds=_TIMEOUT_SECONDS)
        annotations = (node.get("metadata") or {}).get("annotations") or {}
        text = annotations.get(FORECAST_ANNOTATION)
        if not isinstance(text, str) or not text:
            return None
        try:
            return look_at(forecast.decode(text), self._wall())
        except ForecastError:
            return None

    def _run(self) -> None:
        while True:
            looks = self._drill is not None and self._drill.order.kind in KEEPS_SAMPLES
            try:
                item = self._news.get(timeout=self._period if looks else None)
            except queue.Empty:
                self._guarded(self.look)
                continue
            if item is None:
                return
            before, after = item
            self._guarded(partial(self._changed, before, after))

    def _guarded(self, part: Callable[[], object]) -> None:
        try:
            part()
        except Exception:  # noqa: BLE001 - a drill that cannot be written down must still be ended; logged
            _LOG.exception("a part of the work beside a drill failed")

    def _changed(self, before: Drill | None, after: Drill) -> None:
        self._drill = None if after.phase.ended else after
        if before is None:
            self._began(after)
        else:
            self._evicted(before, after)
            if after.phase is not before.phase:
                self._keep(after)
        if after.phase.ended:
            self._ended(after)

    def _keep(self, drill: Drill) -> None:
        self._records.put(record_of(drill, self._node))

    def _began(self, drill: Drill) -> None:
        order = drill.order
        _LOG.warning("drill begins", id=order.id, kind=order.kind.value, caller=order.caller, reason=order.reason)
        dry = ", a dry run" if order.dry_run else ""
        said = f"{_who(drill)} begins: {order.kind.value} for {order.duration_seconds:g} s{dry}"
        self._tell(f"{said}; at most {order.victims_max} pods may be evicted", good=True)

    def _ended(self, drill: Drill) -> None:
        _LOG.warning("drill ended", id=drill.order.id, phase=drill.phase.value, message=drill.message)
        self._tell(said_of(drill), good=drill.passed)

    def _evicted(self, before: Drill, after: Drill) -> None:
        """An event on each pod that this change evicted."""
        earlier = {one.victim.uid for one in before.victims if one.evicted}
        for one in after.victims:
            if one.evicted and one.victim.uid not in earlier:
                self._recorder.record(pod_of(one.victim), "Warning", _REASON, f"Evicted by {_who(after)}")

    def _tell(self, message: str, *, good: bool) -> None:
        node = Node(metadata=ObjectMeta(name=self._node, uid=self._node))
        self._recorder.record(node, "Normal" if good else "Warning", _REASON, message)

    def records(self, current: Drill | None) -> list[pb.DrillRecord]:
        """The last drills, newest first; `current` as it is now."""
        kept = self._records.all()
        if current is None:
            return kept
        return [record_of(current, self._node) if one.drill_id == current.order.id else one for one in kept]


def look_at(found: forecast.Forecast, wall: float) -> ForecastLook:
    """A forecast as a drill sees it at `wall` (seconds since the epoch)."""
    state = forecast.freshness(found, wall)
    share = 0.0 if found.closed else forecast.trust(found, wall)
    offered = found.reclaimable.cpu_millis
    said = f"{state.value}, {max(0.0, wall - found.at):.0f} s old"
    if found.terms.fading is not None:
        said += f", the node is silent and keeps {100 * found.terms.fading:.0f} % of its room"
    if found.closed:
        said += f", {forecast.closed_words(found.closed)}"
    return ForecastLook(
        at=found.at,
        silent=found.terms.fading is not None,
        shut=bool(found.closed) or state is Freshness.EXPIRED,
        fresh=state is Freshness.FRESH,
        offered_millis=None if offered is None else int(offered * share),
        said=said,
    )


def _who(drill: Drill) -> str:
    order = drill.order
    return f"drill {order.id} by {order.caller} ({order.reason or 'no reason given'})"


def said_of(drill: Drill) -> str:
    """What became of a drill, in one line."""
    moments: Mapping[Phase, float | None] = {
        Phase.DETECTED: drill.detected_at,
        Phase.THROTTLED: drill.throttled_at,
        Phase.EVICTED: drill.evicted_at,
        Phase.RECOVERED: drill.recovered_at,
    }
    times = [
        f"{phase.value} after {took:.2f} s"
        for phase, at in moments.items()
        if (took := drill.since_raised(at)) is not None
    ]
    said = ", ".join([drill.phase.value, *times])
    evicted = sum(seen.evicted for seen in drill.victims)
    missed = f"; missed: {'; '.join(drill.misses)}" if drill.misses else ""
    return f"{_who(drill)}: {said}; {evicted} pods evicted; {drill.message}{missed}"
