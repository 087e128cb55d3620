"""The drill of the demo: the signal alone, over a socket of this machine. Drills of people: `cli.drilling`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

import grpc

from slacktide.v1 import drill_pb2 as pb
from slacktide.v1 import drill_pb2_grpc

CALL_SECONDS: Final = 5.0
OPTIONS: Final = (("grpc.keepalive_time_ms", 10_000),)
"""Of a channel to an agent: a caller that is gone must be noticed, and so must an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A pod that gave way, or would have in a dry run."""

    pod: str
    reason: str
    evicted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """How a node answered to raised LS pressure; milliseconds since it was raised, None for what did not happen.

    `problem` says why there was no drill, or how it failed; empty when it went well.
    """

    detected_millis: int | None = None
    throttled_millis: int | None = None
    evicted_millis: int | None = None
    recovered_millis: int | None = None
    victims: tuple[Victim, ...] = ()
    answer: str = ""
    """What the node did, in its own words."""
    problem: str = ""


def rehearse(target: str, seconds: float, reason: str, patience_seconds: float) -> Rehearsal:
    """Raise the signal of LS pressure at the socket `target` (`unix:/path`) for `seconds`; nobody is evicted.

    After `patience_seconds` in all the drill is ended, whether BE has its room back or not.
    """
    request = pb.StartDrillRequest(
        pressure=pb.PRESSURE_KIND_SIGNAL, duration_millis=int(seconds * 1000), victim_budget=0, reason=reason
    )
    with grpc.insecure_channel(target, options=list(OPTIONS)) as channel:
        return _drill(drill_pb2_grpc.DrillServiceStub(channel), request, patience_seconds)


def _drill(stub: drill_pb2_grpc.DrillServiceStub, request: pb.StartDrillRequest, patience_seconds: float) -> Rehearsal:
    """Ask for a drill and follow it; an agent that is not there yet is waited for a moment."""
    answer, last = "", None
    try:
        started = stub.StartDrill(request, timeout=CALL_SECONDS, wait_for_ready=True)
        for last in stub.WatchDrill(pb.WatchDrillRequest(drill_id=started.drill_id), timeout=patience_seconds):
            if last.phase == pb.DRILL_PHASE_THROTTLED and not answer:
                answer = last.message
    except grpc.RpcError as error:
        if last is None or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            return Rehearsal(problem=f"{error.code().name.lower()}: {error.details()}")
        last = _ended(stub, started.drill_id) or last
    result = last.result if last is not None else pb.DrillResult()
    recovered = last is not None and last.phase == pb.DRILL_PHASE_RECOVERED
    return Rehearsal(
        detected_millis=_optional(result, "detected_millis"),
        throttled_millis=_optional(result, "throttled_millis"),
        evicted_millis=_optional(result, "evicted_millis"),
        recovered_millis=_optional(result, "recovered_millis"),
        victims=tuple(
            Victim(pod=f"{one.namespace}/{one.name}", reason=one.reason, evicted=one.evicted) for one in result.victims
        ),
        answer=answer,
        problem="" if recovered or last is None else last.message,
    )


def _ended(stub: drill_pb2_grpc.DrillServiceStub, drill_id: str) -> pb.WatchDrillResponse | None:
    """End a drill that takes too long; its last word."""
    with contextlib.suppress(grpc.RpcError):
        stub.AbortDrill(pb.AbortDrillRequest(drill_id=drill_id), timeout=CALL_SECONDS)
        messages = list(stub.WatchDrill(pb.WatchDrillRequest(drill_id=drill_id), timeout=CALL_SECONDS))
        return messages[-1] if messages else None
    return None


def _optional(result: pb.DrillResult, field: str) -> int | None:
    # Generated HasField takes literal names only.
    return int(getattr(result, field)) if result.HasField(field) else None  # type: ignore[arg-type]
