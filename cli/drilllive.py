"""Follows a drill that runs to its end: news as they come, Ctrl-C, a lost connection, too long a wait.

One thread reads the stream of the agent; the caller's thread decides. While somebody follows, the agent's dead-man
timer does not run: whoever leaves, or is killed, leaves the end to that timer.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import grpc

from cli.drillorder import phase_name
from cli.drillreport import ENDS, UNKNOWN, Moment, moment_of
from cli.drills import CALL_SECONDS
from slacktide.v1 import drill_pb2 as pb
from slacktide.v1 import drill_pb2_grpc

if TYPE_CHECKING:
    from cli.session import StopSignals
    from slacktide.transport import Connection

POLL_SECONDS: Final = 0.1
AGAIN_SECONDS: Final = 0.5
AWAY_SECONDS: Final = 30.0
"""An agent that is away for longer than this is given up; by then its dead-man timer has ended the drill."""
LEAVE: Final = "; once more leaves at once, and the agent's dead-man timer ends the drill"


@dataclass(slots=True)
class Course:
    """How far a drill is known to have come. `left` says why nobody follows it any more; empty: to its end."""

    phase: str = "waiting"
    message: str = ""
    result: pb.DrillResult | None = None
    moments: list[Moment] = field(default_factory=list)
    restored: str = ""
    left: str = ""

    @property
    def ended(self) -> bool:
        """Whether the drill is known to be over."""
        return self.phase in ENDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a follower needs of its surroundings. `broken` says why the drill must not go on; empty: it may."""

    stop: StopSignals
    say: Callable[[str], None]
    tell: Callable[[Moment, float | None], None]
    broken: Callable[[], str] = lambda: ""
    clock: Callable[[], float] = time.monotonic


class Follower:
    """Follows one drill over `connection`; ends it after `patience_seconds`."""

    def __init__(self, connection: Connection, drill_id: str, patience_seconds: float, hooks: Hooks) -> None:
        self._stub = drill_pb2_grpc.DrillServiceStub(connection.channel)
        self._carried = connection.metadata
        self._id = drill_id
        self._hooks = hooks
        self._deadline = hooks.clock() + patience_seconds
        self._news: queue.SimpleQueue[pb.WatchDrillResponse | grpc.RpcError | None] = queue.SimpleQueue()
        self._cancel: Callable[[], object] = _nothing
        self._course = Course()
        self._asked = ""
        self._away_since: float | None = None
        self._again_at: float | None = None

    def run(self) -> Course:
        """Until the drill is over, or a second signal asks to leave it."""
        self._watch()
        try:
            while not self._course.ended and not self._course.left:
                self._obey()
                self._hear()
        finally:
            self._cancel()
        return self._course

    def _watch(self) -> None:
        call = self._stub.WatchDrill(pb.WatchDrillRequest(drill_id=self._id), metadata=self._carried)
        self._cancel, self._again_at = call.cancel, None
        threading.Thread(target=self._read, args=(call,), name="drill", daemon=True).start()

    def _read(self, call: Iterator[pb.WatchDrillResponse]) -> None:
        try:
            for message in call:
                self._news.put(message)
            self._news.put(None)
        except grpc.RpcError as error:
            self._news.put(error)

    def _hear(self) -> None:
        try:
            news = self._news.get(timeout=POLL_SECONDS)
        except queue.Empty:
            if self._again_at is not None and self._hooks.clock() >= self._again_at:
                self._watch()
            return
        if isinstance(news, pb.WatchDrillResponse):
            self._away_since = None
            self._note(news)
        elif not self._course.ended:
            self._lost(news)

    def _note(self, news: pb.WatchDrillResponse) -> None:
        course = self._course
        phase = phase_name(news.phase)
        pressure = news.ls_pressure if news.HasField("ls_pressure") else None
        fresh = [moment_of(one) for one in news.moments]
        # A stream that was opened again begins anew.
        known = set(course.moments)
        fresh = [one for one in fresh if one not in known]
        if not news.moments and (phase != course.phase or news.message != course.message):
            # An agent without a timeline tells by its phase.
            fresh = [Moment(step=phase, elapsed_millis=news.elapsed_millis, detail=news.message)]
        for one in fresh:
            course.moments.append(one)
            self._hooks.tell(one, pressure)
        course.phase, course.message = phase, news.message
        if news.HasField("result"):
            course.result = news.result

    def _lost(self, error: grpc.RpcError | None) -> None:
        """The stream ended before the drill: the agent remembers it, is away, or has begun anew."""
        now = self._hooks.clock()
        if error is not None and error.code() is not grpc.StatusCode.UNAVAILABLE:
            self._recall(f"{error.code().name.lower()}: {error.details()}")
            return
        if self._away_since is None:
            self._away_since = now
            self._hooks.say("the agent does not answer; asking again")
        if now - self._away_since >= AWAY_SECONDS:
            self._recall(f"the agent has not answered for {AWAY_SECONDS:g} s")
            return
        self._again_at = now + AGAIN_SECONDS

    def _recall(self, why: str) -> None:
        """The agent's own memory has the end, if anybody has."""
        found = recall(self._stub, self._carried, self._id)
        if found is not None and phase_name(found.phase) in ENDS:
            self._course.phase, self._course.message = phase_name(found.phase), found.message
            self._course.result = found.result
            return
        self._course.phase, self._course.message = UNKNOWN, why

    def _obey(self) -> None:
        """Pass on that the drill must end."""
        stop = self._hooks.stop
        if stop.count > 1:
            self._course.left = "left by a second signal: the agent's dead-man timer ends the drill and restores"
            return
        if self._asked:
            return
        why = self._hooks.broken()
        if stop.first is not None:
            why = f"{stop.first.name}{LEAVE}"
        elif not why and self._hooks.clock() > self._deadline:
            why = "it takes longer than --patience"
        if why:
            self._asked = why
            self._hooks.say(f"ending the drill and waiting until the node has restored itself: {why}")
            self._course.restored = self._abort()

    def _abort(self) -> str:
        """Ask for the end; what the agent says about it."""
        with contextlib.suppress(grpc.RpcError):
            request = pb.AbortDrillRequest(drill_id=self._id)
            return self._stub.AbortDrill(request, timeout=CALL_SECONDS, metadata=self._carried).message
        self._hooks.say("the agent did not answer; its dead-man timer ends the drill")
        return ""


def _nothing() -> None:
    """Nothing to cancel yet."""


def recall(
    stub: drill_pb2_grpc.DrillServiceStub, carried: tuple[tuple[str, str], ...], drill_id: str
) -> pb.DrillRecord | None:
    """What the agent remembers of a drill; None when it does not answer or knows none of that id."""
    with contextlib.suppress(grpc.RpcError):
        listed = stub.ListDrills(pb.ListDrillsRequest(), timeout=CALL_SECONDS, metadata=carried)
        return next((one for one in listed.drills if one.drill_id == drill_id), None)
    return None
