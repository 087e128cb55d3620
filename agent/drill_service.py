"""The calls of drills: plan, start, watch, abort, list. Who may call is for `agent.drill_callers`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NoReturn

import grpc

from agent.drill import Drill, Kind
from agent.drill_board import Busy, DrillBoard, Unknown
from agent.drill_callers import Callers, Refused, Reviews
from agent.drill_plan import Standing, expectations, expected_victims, refusals
from agent.drill_wire import KINDS, message_of, order_of, problem_of, victim_of, wire_targets
from slacktide.observe import get_logger
from slacktide.v1 import drill_pb2 as pb
from slacktide.v1 import drill_pb2_grpc

if TYPE_CHECKING:
    from agent.settings import AgentSettings

_LOG: Final = get_logger("agent.drill")
_WATCH_SECONDS: Final = 1.0


class DrillService(drill_pb2_grpc.DrillServiceServicer):
    """The calls. `standing` says how the node stands for a drill of a kind, and may block for some seconds.

    `records` are the last drills, newest first. `wall` is seconds since the epoch. `refused` counts StartDrill calls
    that were refused for how the node stands.
    """

    def __init__(
        self,
        node: str,
        board: DrillBoard,
        settings: Callable[[], AgentSettings],
        standing: Callable[[Kind], Standing],
        records: Callable[[], list[pb.DrillRecord]] = list,
        reviews: Reviews | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self.callers = Callers(lambda: settings().drill, reviews)
        """Who may call."""
        self._board = board
        self._settings = settings
        self._standing = standing
        self._records = records
        self._wall = wall
        self.refused = 0

    def PlanDrill(self, request: pb.PlanDrillRequest, context: grpc.ServicerContext) -> pb.PlanDrillResponse:  # noqa: N802 - named by the .proto
        """What a drill would meet now; a request that makes no sense is an error, as in StartDrill."""
        caller = self._caller(context, "get")
        kind = self._checked(request.order, context)
        settings, standing = self._settings(), self._standing(kind)
        order = order_of(request.order, "", caller, settings, self._wall())
        running = self._board.active()
        busy = [f"drill {running.order.id} runs: {running.message}"] if running else []
        victims = expected_victims(order, standing.snapshot, settings) if standing.snapshot else []
        return pb.PlanDrillResponse(
            refusals=[*busy, *refusals(kind, standing, settings, self._wall())],
            victims=[victim_of(victim, victim.reason) for victim in victims],
            now_unix_millis=round(self._wall() * 1000),
            expectations=expectations(order, standing, settings),
            targets=wire_targets(order.targets),
        )

    def StartDrill(self, request: pb.StartDrillRequest, context: grpc.ServicerContext) -> pb.StartDrillResponse:  # noqa: N802 - named by the .proto
        """Begin a drill; refusals name the field and its bound, or what stands against it."""
        caller = self._caller(context, "create")
        kind = self._checked(request, context)
        settings = self._settings()
        refused = refusals(kind, self._standing(kind), settings, self._wall())
        if refused:
            self.refused += 1
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, "; ".join(refused))
        try:
            drill_id = self._board.start(lambda new: order_of(request, new, caller, settings, self._wall()))
        except Busy as error:
            self.refused += 1
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.StartDrillResponse(drill_id=drill_id)

    def WatchDrill(  # noqa: N802 - named by the .proto
        self, request: pb.WatchDrillRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchDrillResponse]:
        """Each change of a drill until it ends, and LS pressure each second; one that ended gives its last word."""
        self._caller(context, "get")
        seen: Drill | None = None
        try:
            with self._board.watching(request.drill_id):
                while context.is_active():
                    drill = self._board.after(request.drill_id, seen, _WATCH_SECONDS)
                    if drill is not seen:
                        yield message_of(drill, len(seen.timeline) if seen else 0)
                    if drill.phase.ended:
                        return
                    seen = drill
        except Unknown as error:
            _abort(context, grpc.StatusCode.NOT_FOUND, str(error))

    def AbortDrill(self, request: pb.AbortDrillRequest, context: grpc.ServicerContext) -> pb.AbortDrillResponse:  # noqa: N802 - named by the .proto
        """End a drill with the next beat."""
        caller = self._caller(context, "create")
        try:
            return pb.AbortDrillResponse(message=self._board.abort(request.drill_id, f"aborted by {caller}"))
        except Unknown as error:
            _abort(context, grpc.StatusCode.NOT_FOUND, str(error))

    def ListDrills(self, request: pb.ListDrillsRequest, context: grpc.ServicerContext) -> pb.ListDrillsResponse:  # noqa: N802, ARG002 - named by the .proto, which asks for nothing yet
        """The last drills of this node, newest first."""
        self._caller(context, "get")
        return pb.ListDrillsResponse(drills=self._records())

    def _checked(self, request: pb.StartDrillRequest, context: grpc.ServicerContext) -> Kind:
        """The kind that is asked for; ends the call for a request that makes no sense."""
        problem = problem_of(request, self._node, self._settings())
        if problem:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
        return KINDS[request.pressure]

    def _caller(self, context: grpc.ServicerContext, verb: str) -> str:
        """Name of the caller; ends the call for one that is not allowed."""
        try:
            return self.callers.name(context, verb)
        except Refused as refused:
            _LOG.warning("caller refused", reason=refused.words, peer=context.peer())
            return _abort(context, refused.code, refused.words)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError("abort() raises")
