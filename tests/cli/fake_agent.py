"""An agent's drills by script: what it plans, what it says while it drills, what it remembers. Over a Unix socket."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent import futures

import grpc

from slacktide.v1 import drill_pb2 as pb
from slacktide.v1 import drill_pb2_grpc
from tests.patience import PATIENCE

DRILL_ID = "3f9c2a7b1d04"
WAIT_SECONDS = 30 * PATIENCE


def moment(step, elapsed, detail=""):
    return pb.DrillMoment(step=step, elapsed_millis=elapsed, detail=detail)


def good_result(**fields):
    """A drill that went well within its targets."""
    timeline = [
        moment("raised", 0, "LS pressure is reported raised"),
        moment("rung:contention", 240),
        moment("detected", 250, "a drill raises the signal"),
        moment("throttled", 300, "BE is limited to 500m"),
        moment("lowered", 1000, "pressure is off"),
        moment("open:contention", 1900, "quiet for 0.5 s"),
        moment("recovered", 2000, "BE has its room back"),
    ]
    return pb.DrillResult(
        detected_millis=250,
        throttled_millis=300,
        recovered_millis=2000,
        timeline=timeline,
        targets=[
            pb.DrillTarget(step="detected", within_millis=2000),
            pb.DrillTarget(step="recovered", within_millis=60_000, after_lowered=True),
        ],
        ls_pressure_max=0.25,
        **fields,
    )


class FakeAgent(drill_pb2_grpc.DrillServiceServicer):
    """`plan` is its answer to a plan; `phase`, `message` and `result` are how a drill ends; `hold` keeps it running.

    `old` knows neither plans nor lists. `refuse` is (code, words) for a start.
    """

    def __init__(self):
        self.plan = pb.PlanDrillResponse(targets=good_result().targets)
        self.skew_seconds = 0.0
        self.phase, self.message, self.result = pb.DRILL_PHASE_RECOVERED, "BE has its room back", good_result()
        self.old = False
        self.refuse = None
        self.hold = False
        self.records = []
        self.orders = []
        self.aborts = 0
        self.watching = threading.Event()
        self.cut = False
        self._aborted = threading.Event()

    def PlanDrill(self, request, context):
        if self.old:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        answer = pb.PlanDrillResponse()
        answer.CopyFrom(self.plan)
        answer.now_unix_millis = round((time.time() + self.skew_seconds) * 1000)
        del answer.victims[request.order.victim_budget :]
        return answer

    def StartDrill(self, request, context):
        if self.refuse:
            context.abort(*self.refuse)
        self.orders.append(request)
        self._aborted.clear()
        return pb.StartDrillResponse(drill_id=DRILL_ID)

    def WatchDrill(self, request, context):
        if request.drill_id != DRILL_ID or self.cut == "gone":
            context.abort(grpc.StatusCode.NOT_FOUND, f"no drill {request.drill_id!r} on this node")
        self.watching.set()
        if self.old:
            yield pb.WatchDrillResponse(phase=pb.DRILL_PHASE_THROTTLED, message="BE is down to 500m")
            yield pb.WatchDrillResponse(phase=self.phase, message=self.message, result=self.result)
            return
        lines = list(self.result.timeline)
        yield pb.WatchDrillResponse(phase=pb.DRILL_PHASE_RAISED, message="raised", moments=lines[:1])
        if self.cut:
            self.cut = self.cut if self.cut == "gone" else False
            context.abort(grpc.StatusCode.UNAVAILABLE, "the agent restarts")
        yield pb.WatchDrillResponse(
            phase=pb.DRILL_PHASE_THROTTLED, message="BE is limited to 500m", moments=lines[1:4], ls_pressure=0.25
        )
        if self.hold:
            end = time.monotonic() + WAIT_SECONDS
            while context.is_active() and not self._aborted.wait(0.02):
                assert time.monotonic() < end, "nobody ended the drill"
            yield pb.WatchDrillResponse(
                phase=pb.DRILL_PHASE_ABORTED, message="aborted by the owner of the socket", result=self.result
            )
            return
        yield pb.WatchDrillResponse(phase=self.phase, message=self.message, result=self.result, moments=lines[4:])

    def AbortDrill(self, request, context):
        self.aborts += 1
        self._aborted.set()
        return pb.AbortDrillResponse(message="the next beat restores")

    def ListDrills(self, request, context):
        if self.old:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        return pb.ListDrillsResponse(drills=self.records)


@contextlib.contextmanager
def serving(agent, address):
    """The agent, listening there."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    drill_pb2_grpc.add_DrillServiceServicer_to_server(agent, server)
    server.add_insecure_port(address)
    server.start()
    try:
        yield agent
    finally:
        server.stop(0).wait()
