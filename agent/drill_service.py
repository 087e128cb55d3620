"""gRPC server of drills: a local socket that only its owner can open, or TLS with callers that are told apart.

Every call has a place in a small pool and a bounded length; keepalive finds callers that vanished, so that the
dead-man timer of their drill starts. Without certificates nothing is served over TCP. Who may call is for
`agent.drill_callers`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Annotated, Final, NoReturn

import grpc
from msgspec import Meta

from agent.drill import Drill, Kind, Order, Phase, SeenVictim
from agent.drill_board import Busy, DrillBoard, Unknown
from agent.drill_callers import Callers, Refused, Reviews
from slacktide.errors import SettingsError
from slacktide.observe import get_logger
from slacktide.settings import Settings
from slacktide.sockets import parse_listen, remove_socket, remove_stale_socket
from slacktide.transport import CertificateFiles, server_credentials
from slacktide.transport.server import AGE_OPTIONS
from slacktide.v1 import drill_pb2 as pb
from slacktide.v1 import drill_pb2_grpc

_LOG: Final = get_logger("agent.drill")
_CALLS: Final = 8
_WATCH_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 1.0
_REASON_CHARACTERS: Final = 256

_KINDS: Final = {pb.PRESSURE_KIND_SIGNAL: Kind.SIGNAL, pb.PRESSURE_KIND_LOAD: Kind.LOAD}
_PHASES: Final = {
    Phase.WAITING: pb.DRILL_PHASE_WAITING,
    Phase.RAISED: pb.DRILL_PHASE_RAISED,
    Phase.DETECTED: pb.DRILL_PHASE_DETECTED,
    Phase.THROTTLED: pb.DRILL_PHASE_THROTTLED,
    Phase.EVICTED: pb.DRILL_PHASE_EVICTED,
    Phase.RECOVERED: pb.DRILL_PHASE_RECOVERED,
    Phase.ABORTED: pb.DRILL_PHASE_ABORTED,
    Phase.FAILED: pb.DRILL_PHASE_FAILED,
}


class DrillSettings(Settings, frozen=True, kw_only=True):
    """Who may drill this node, and within which bounds."""

    listen: Annotated[
        str, Meta(description="gRPC address of drills: unix:/path, or HOST:PORT with certificates; empty serves none")
    ] = ""
    tls_certificate_file: Annotated[str, Meta(description="certificate chain of the server (PEM), for HOST:PORT")] = ""
    tls_key_file: Annotated[str, Meta(description="private key of the server (PEM)")] = ""
    tls_client_ca_file: Annotated[
        str, Meta(description="authority that callers' certificates must be from (PEM); empty: callers show a token")
    ] = ""
    allowed_callers: Annotated[
        tuple[str, ...], Meta(description="common or alternative names in callers' certificates that may drill")
    ] = ()
    audience: Annotated[str, Meta(min_length=1, description="audience that the token of a caller must be for")] = (
        "slacktide-drill"
    )
    duration_max_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="longest pressure that may be asked for")
    ] = 600.0
    victims_max: Annotated[int, Meta(ge=0, le=1000, description="most pods that one drill may evict")] = 10
    dead_man_seconds: Annotated[
        float, Meta(ge=1, le=600, description="a drill that nobody watches for this long ends and restores")
    ] = 10.0
    recover_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="a drill fails when BE has no room back this long after the pressure")
    ] = 120.0
    load: Annotated[
        bool, Meta(description="keep a helper process ready that can burn CPU, for drills with real load")
    ] = False


class DrillService(drill_pb2_grpc.DrillServiceServicer):
    """The three calls. `why_not` says why no drill may start now (empty: it may)."""

    def __init__(
        self,
        node: str,
        board: DrillBoard,
        settings: Callable[[], DrillSettings],
        why_not: Callable[[Kind], str] = lambda _kind: "",
        reviews: Reviews | None = None,
    ) -> None:
        self._node = node
        self.callers = Callers(settings, reviews)
        """Who may call."""
        self._board = board
        self._settings = settings
        self._why_not = why_not

    def StartDrill(self, request: pb.StartDrillRequest, context: grpc.ServicerContext) -> pb.StartDrillResponse:  # noqa: N802 - named by the .proto
        """Begin a drill; refusals name the field and its bound."""
        caller = self._caller(context, "create")
        settings = self._settings()
        kind = _KINDS.get(request.pressure)
        problem = _problem(request, kind, self._node, settings)
        if problem or kind is None:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, problem)
        refused = self._why_not(kind)
        if refused:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, refused)
        try:
            drill_id = self._board.start(lambda new: _order(new, request, kind, caller, settings))
        except Busy as error:
            _abort(context, grpc.StatusCode.FAILED_PRECONDITION, str(error))
        _LOG.warning("drill", id=drill_id, kind=kind.value, caller=caller, reason=request.reason[:_REASON_CHARACTERS])
        return pb.StartDrillResponse(drill_id=drill_id)

    def WatchDrill(  # noqa: N802 - named by the .proto
        self, request: pb.WatchDrillRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchDrillResponse]:
        """Each change of the drill until it ends; a drill that ended gives its last word."""
        self._caller(context, "get")
        seen: Drill | None = None
        try:
            with self._board.watching(request.drill_id):
                while context.is_active():
                    drill = self._board.after(request.drill_id, seen, _WATCH_SECONDS)
                    if drill is not seen:
                        yield to_wire(drill)
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

    def _caller(self, context: grpc.ServicerContext, verb: str) -> str:
        """Name of the caller; ends the call for one that is not allowed."""
        try:
            return self.callers.name(context, verb)
        except Refused as refused:
            _LOG.warning("caller refused", reason=refused.words, peer=context.peer())
            return _abort(context, refused.code, refused.words)


def _problem(request: pb.StartDrillRequest, kind: Kind | None, node: str, settings: DrillSettings) -> str:
    """What is wrong with a request, in words; empty when nothing is."""
    longest = int(settings.duration_max_seconds * 1000)
    checks = (
        (request.node in {"", node}, f"node is {request.node!r}, this is {node!r}"),
        (
            kind is not None,
            f"pressure {request.pressure} is not known; known: {', '.join(known.value for known in Kind)}",
        ),
        (0 < request.duration_millis <= longest, f"duration_millis is {request.duration_millis}; range 1 to {longest}"),
        (
            request.victim_budget <= settings.victims_max,
            f"victim_budget is {request.victim_budget}; at most {settings.victims_max} here",
        ),
        (request.intensity_percent <= 100, f"intensity_percent is {request.intensity_percent}; range 0 to 100"),
    )
    return "; ".join(text for good, text in checks if not good)


def _order(drill_id: str, request: pb.StartDrillRequest, kind: Kind, caller: str, settings: DrillSettings) -> Order:
    asked = request.dead_man_millis / 1000 or settings.dead_man_seconds
    return Order(
        id=drill_id,
        kind=kind,
        duration_seconds=request.duration_millis / 1000,
        dry_run=request.dry_run,
        victims_max=request.victim_budget,
        reason=request.reason[:_REASON_CHARACTERS],
        caller=caller,
        dead_man_seconds=min(asked, settings.dead_man_seconds),
        recover_seconds=settings.recover_seconds,
        intensity_percent=request.intensity_percent or 100,
    )


def to_wire(drill: Drill) -> pb.WatchDrillResponse:
    """One message of the stream; the last one carries the result."""
    newest = max((at for at in _moments(drill) if at is not None), default=None)
    message = pb.WatchDrillResponse(
        phase=_PHASES[drill.phase], message=drill.message, elapsed_millis=_millis(drill.since_raised(newest))
    )
    if drill.phase.ended:
        message.result.CopyFrom(_result(drill))
    return message


def _moments(drill: Drill) -> tuple[float | None, ...]:
    return (
        drill.raised_at,
        drill.detected_at,
        drill.throttled_at,
        drill.evicted_at,
        drill.lowered_at,
        drill.recovered_at,
    )


def _result(drill: Drill) -> pb.DrillResult:
    return pb.DrillResult(
        detected_millis=_millis(drill.since_raised(drill.detected_at)),
        throttled_millis=_millis(drill.since_raised(drill.throttled_at)),
        evicted_millis=_millis(drill.since_raised(drill.evicted_at)),
        recovered_millis=_millis(drill.since_raised(drill.recovered_at)),
        victims=[
            pb.Victim(
                namespace=seen.victim.namespace,
                name=seen.victim.name,
                uid=seen.victim.uid,
                reason=_reason(seen, dry_run=drill.order.dry_run),
                evicted=seen.evicted,
            )
            for seen in drill.victims
        ],
    )


def _reason(seen: SeenVictim, *, dry_run: bool) -> str:
    """Why this pod, and what kept it."""
    kept = "a dry run evicts nobody" if dry_run else seen.why_not
    return f"{seen.victim.reason}; not evicted: {kept}" if kept and not seen.evicted else seen.victim.reason


def _millis(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(seconds * 1000))


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError("abort() raises")


class DrillServer:
    """Serves `service` on the address of the settings. Raises SettingsError for one that cannot be served."""

    def __init__(self, settings: DrillSettings, service: DrillService) -> None:
        self._where = parse_listen(settings.listen, "drill.listen")
        self._takes_tokens = service.callers.takes_tokens
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=_CALLS, thread_name_prefix="drill"),
            maximum_concurrent_rpcs=_CALLS,
            options=[
                ("grpc.keepalive_time_ms", 10_000),
                ("grpc.keepalive_timeout_ms", 5_000),
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.max_receive_message_length", 65_536),
                ("grpc.so_reuseport", 0),
                *(AGE_OPTIONS if settings.tls_client_ca_file else ()),
            ],
        )
        drill_pb2_grpc.add_DrillServiceServicer_to_server(service, self._server)
        self.port = self._bind(settings)

    def _bind(self, settings: DrillSettings) -> int:
        if self._where.path:
            remove_stale_socket(self._where.path, "drill.listen")
            os.makedirs(os.path.dirname(self._where.path), mode=0o700, exist_ok=True)
            # The umask makes the socket private from its first moment on.
            before = os.umask(0o177)
            try:
                return self._bound(lambda: self._server.add_insecure_port(f"unix:{self._where.path}"), settings)
            finally:
                os.umask(before)
        target = (
            f"{f'[{self._where.host}]' if ':' in self._where.host else self._where.host or '[::]'}:{self._where.port}"
        )
        credentials = server_credentials(_files(settings, takes_tokens=self._takes_tokens))
        return self._bound(lambda: self._server.add_secure_port(target, credentials), settings)

    def _bound(self, bind: Callable[[], int], settings: DrillSettings) -> int:
        try:
            return bind()
        except RuntimeError as error:
            raise SettingsError([f"drill.listen = {settings.listen!r}: cannot listen there: {error}"]) from error

    def start(self) -> None:
        """Accept calls."""
        self._server.start()

    def stop(self) -> None:
        """End calls within a second and remove the socket."""
        self._server.stop(_STOP_SECONDS).wait(_STOP_SECONDS + 1.0)
        if self._where.path:
            remove_socket(self._where.path)


def _files(settings: DrillSettings, *, takes_tokens: bool) -> CertificateFiles:
    """Certificate, key and CA of callers. Raises SettingsError naming what is missing."""
    files: Mapping[str, str] = {
        "drill.tls_certificate_file": settings.tls_certificate_file,
        "drill.tls_key_file": settings.tls_key_file,
        # Without an API server that reviews tokens only certificates tell callers apart.
        **({} if takes_tokens else {"drill.tls_client_ca_file": settings.tls_client_ca_file}),
    }
    problems = [f"{name} is needed to serve drills on {settings.listen}" for name, path in files.items() if not path]
    if (settings.tls_client_ca_file or not takes_tokens) and not settings.allowed_callers:
        problems.append(f"drill.allowed_callers is empty: nobody could drill through {settings.listen}")
    if problems:
        raise SettingsError(problems)
    return CertificateFiles(
        settings.tls_certificate_file, settings.tls_key_file, settings.tls_client_ca_file, setting="drill.tls"
    )
