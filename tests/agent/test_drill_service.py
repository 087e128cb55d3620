"""Drills over gRPC: who may call, what is refused and how, and what a watcher gets."""

from __future__ import annotations

import os
import shutil
import stat
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

import grpc
import pytest

from agent.drill import Kind, Phase, Seen
from agent.drill_board import DrillBoard
from agent.drill_callers import Reviews
from agent.drill_server import DrillServer
from agent.drill_service import DrillService
from agent.drill_settings import DrillSettings
from agent.permissions import DRILL_PERMISSIONS, needed
from agent.policy.rung import RungStatus
from agent.settings import AgentSettings
from slacktide.cluster.errors import Unreachable
from slacktide.errors import SettingsError
from slacktide.tier import Tier
from slacktide.transport import Review, Tokens, User
from slacktide.v1 import drill_pb2 as pb
from slacktide.v1 import drill_pb2_grpc
from tests.agent.nodes import node, pod
from tests.drill_twin import CALM, drill_server
from tests.patience import PATIENCE
from tests.pki import Pki

DEADLINE = 10 * PATIENCE


@pytest.fixture
def board():
    return DrillBoard(time.monotonic)


@pytest.fixture
def serve(board):
    servers = []

    def start(settings, **more):
        server = drill_server(board, settings, **more)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def stub(serve, tmp_path):
    settings = DrillSettings(listen=f"unix:{tmp_path}/run/drill.sock", victims_max=3, duration_max_seconds=60)
    serve(settings)
    with grpc.insecure_channel(settings.listen) as channel:
        yield drill_pb2_grpc.DrillServiceStub(channel)


def request(**changed):
    values = {"node": "n1", "pressure": pb.PRESSURE_KIND_SIGNAL, "duration_millis": 1000, "reason": "game day"}
    return pb.StartDrillRequest(**{**values, **changed})


def seen(at, level=0, limit=None):
    rung = RungStatus(name="contention", level=level, top=3, since=0.0, reason="LS waits")
    return Seen(at=at, rungs={"contention": rung}, be_limit_millis=limit)


def refused(call, *arguments):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, timeout=DEADLINE)
    return caught.value.code(), caught.value.details()


def test_a_drill_from_start_to_result(stub, board):
    drill_id = stub.StartDrill(request(victim_budget=1), timeout=DEADLINE).drill_id
    heard = []
    stream = stub.WatchDrill(pb.WatchDrillRequest(drill_id=drill_id), timeout=DEADLINE)
    steps = iter([seen(0.0), seen(0.05, 1), seen(0.06, 1, 500), seen(1.0, 1, 500), seen(1.5)])
    for message in stream:
        heard.append(message)
        if (step := next(steps, None)) is not None:
            board.observe(step)
    assert heard[0].phase == pb.DRILL_PHASE_WAITING
    assert not heard[0].HasField("elapsed_millis")
    assert heard[-1].phase == pb.DRILL_PHASE_RECOVERED
    result = heard[-1].result
    assert (result.detected_millis, result.throttled_millis, result.recovered_millis) == (50, 60, 1500)
    assert not result.HasField("evicted_millis")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"node": "n2"}, "this is 'n1'"),
        ({"pressure": pb.PRESSURE_KIND_UNSPECIFIED}, "known: pressure, load, memory"),
        ({"duration_millis": 0}, "range 1 to 60000"),
        ({"duration_millis": 60_001}, "range 1 to 60000"),
        ({"victim_budget": 4}, "at most 3"),
        ({"intensity_percent": 101}, "range 0 to 100"),
    ],
)
def test_a_bad_request_names_the_field_and_its_bound(stub, board, changed, word):
    code, text = refused(stub.StartDrill, request(**changed))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert word in text
    assert board.current() is None


def test_a_second_drill_is_refused(stub):
    stub.StartDrill(request(), timeout=DEADLINE)
    code, text = refused(stub.StartDrill, request())
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "runs" in text


def test_a_node_in_trouble_or_without_load_refuses(serve, board, tmp_path):
    settings = DrillSettings(listen=f"unix:{tmp_path}/drill.sock")
    serve(settings, standing=lambda kind: replace(CALM, load="drill.load is off" if kind is Kind.LOAD else ""))
    with grpc.insecure_channel(settings.listen) as channel:
        stub = drill_pb2_grpc.DrillServiceStub(channel)
        code, text = refused(stub.StartDrill, request(pressure=pb.PRESSURE_KIND_LOAD))
        assert (code, text) == (grpc.StatusCode.FAILED_PRECONDITION, "drill.load is off")
        stub.StartDrill(request(), timeout=DEADLINE)


def test_an_unknown_drill_is_not_found(stub):
    assert refused(stub.AbortDrill, pb.AbortDrillRequest(drill_id="x"))[0] is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.WatchDrill(pb.WatchDrillRequest(drill_id="x"), timeout=DEADLINE))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_abort_ends_the_stream(stub, board):
    drill_id = stub.StartDrill(request(), timeout=DEADLINE).drill_id
    board.observe(seen(0.0))
    assert "next beat" in stub.AbortDrill(pb.AbortDrillRequest(drill_id=drill_id), timeout=DEADLINE).message
    board.observe(seen(0.1))
    last = list(stub.WatchDrill(pb.WatchDrillRequest(drill_id=drill_id), timeout=DEADLINE))[-1]
    assert last.phase == pb.DRILL_PHASE_ABORTED
    assert last.message == "aborted by the owner of the socket"


def test_a_watcher_that_goes_away_starts_the_dead_man_timer(stub, board):
    drill_id = stub.StartDrill(request(dead_man_millis=200), timeout=DEADLINE).drill_id
    stream = stub.WatchDrill(pb.WatchDrillRequest(drill_id=drill_id), timeout=DEADLINE)
    next(stream)
    stream.cancel()
    stop = time.monotonic() + DEADLINE
    while board.active() is not None and time.monotonic() < stop:
        board.observe(seen(time.monotonic()))
        threading.Event().wait(0.02)
    assert board.current().phase is Phase.ABORTED
    assert "nobody watched" in board.current().message


def test_the_socket_is_its_owners_alone_and_goes_with_the_server(board, tmp_path):
    settings = DrillSettings(listen=f"unix:{tmp_path}/drill.sock")
    server = drill_server(board, settings)
    server.start()
    path = settings.listen.removeprefix("unix:")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    server.stop()
    assert not os.path.exists(path)


def test_nothing_is_served_over_tcp_without_certificates(board):
    settings = DrillSettings(listen="127.0.0.1:0")
    with pytest.raises(SettingsError) as caught:
        drill_server(board, settings)
    text = str(caught.value)
    for name in ("tls_key_file", "tls_certificate_file", "tls_client_ca_file", "allowed_callers"):
        assert name in text


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.server = made.issue("server", "/CN=agent", "subjectAltName=IP:127.0.0.1\n")
    made.known = made.issue("known", "/CN=driller", "extendedKeyUsage=clientAuth\n")
    made.stranger = made.issue("stranger", "/CN=somebody", "extendedKeyUsage=clientAuth\n")
    return made


def content(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    ("caller", "code"),
    [("known", None), ("stranger", grpc.StatusCode.PERMISSION_DENIED), (None, grpc.StatusCode.UNAVAILABLE)],
)
def test_over_tcp_only_named_callers_may_drill(serve, pki, caller, code):
    certificate, key = pki.server
    server = serve(
        DrillSettings(
            listen="127.0.0.1:0",
            tls_certificate_file=certificate,
            tls_key_file=key,
            tls_client_ca_file=pki.ca,
            allowed_callers=("driller",),
        )
    )
    own = tuple(content(path) for path in reversed(getattr(pki, caller))) if caller else (None, None)
    credentials = grpc.ssl_channel_credentials(content(pki.ca), *own)
    with grpc.secure_channel(f"127.0.0.1:{server.port}", credentials) as channel:
        stub = drill_pb2_grpc.DrillServiceStub(channel)
        if code is None:
            assert stub.StartDrill(request(), timeout=DEADLINE).drill_id
        else:
            assert refused(stub.StartDrill, request())[0] is code


OPERATOR = "system:serviceaccount:slacktide-system:slacktide-operator"


class Api:
    """Reviews tokens and rights; `failure` is raised instead while it is set."""

    def __init__(self):
        self.users = {"token.of.operator": OPERATOR, "token.of.watcher": "watcher"}
        self.rights = {(OPERATOR, "create"), (OPERATOR, "get"), ("watcher", "get")}
        self.failure = None

    def ask(self, token):
        if self.failure is not None:
            raise self.failure
        name = self.users.get(token)
        return Review(User(username=name)) if name else Review(None, "the token has another audience")

    def why_not(self, user, verb):
        return "" if (user.username, verb) in self.rights else f"{user.username} may not {verb} drills.slacktide.io n1"

    def reviews(self):
        return Reviews(Tokens(self.ask, lambda: 30.0), self.why_not)


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def dial(board, api, pki):
    """Serves with tokens; gives a stub for the bearer of one."""
    certificate, key = pki.server
    settings = DrillSettings(listen="127.0.0.1:0", tls_certificate_file=certificate, tls_key_file=key)
    server = drill_server(board, settings, reviews=api.reviews())
    server.start()
    channels = []

    def stub(token=None):
        channel = grpc.secure_channel(f"127.0.0.1:{server.port}", grpc.ssl_channel_credentials(content(pki.ca)))
        channels.append(channel)
        stub = drill_pb2_grpc.DrillServiceStub(channel)
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        return stub, metadata

    yield stub
    for channel in channels:
        channel.close()
    server.stop()


def code_of(call, message, metadata):
    def hear():
        answer = call(message, metadata=metadata, timeout=DEADLINE)
        return list(answer) if isinstance(answer, grpc.Call) else answer

    with pytest.raises(grpc.RpcError) as caught:
        hear()
    return caught.value.code(), caught.value.details()


def test_a_token_with_the_right_drills_and_is_named(dial, board):
    stub, metadata = dial("token.of.operator")
    drill_id = stub.StartDrill(request(), metadata=metadata, timeout=DEADLINE).drill_id
    assert board.current().order.caller == OPERATOR
    board.observe(seen(0.0))
    assert stub.AbortDrill(pb.AbortDrillRequest(drill_id=drill_id), metadata=metadata, timeout=DEADLINE).message
    board.observe(seen(0.1))
    last = list(stub.WatchDrill(pb.WatchDrillRequest(drill_id=drill_id), metadata=metadata, timeout=DEADLINE))[-1]
    assert last.message == f"aborted by {OPERATOR}"


@pytest.mark.parametrize(
    ("token", "code", "word"),
    [
        (None, grpc.StatusCode.UNAUTHENTICATED, "no token"),
        ("token.of.api", grpc.StatusCode.UNAUTHENTICATED, "another audience"),
        ("token.of.watcher", grpc.StatusCode.PERMISSION_DENIED, "may not create"),
    ],
)
def test_whoever_lacks_token_or_right_starts_and_aborts_nothing(dial, board, token, code, word):
    stub, metadata = dial(token)
    for call, message in ((stub.StartDrill, request()), (stub.AbortDrill, pb.AbortDrillRequest(drill_id="1"))):
        found, words = code_of(call, message, metadata)
        assert found is code
        assert word in words
    assert board.current() is None


def test_a_watcher_may_watch_and_no_more(dial, board):
    operator, metadata = dial("token.of.operator")
    drill_id = operator.StartDrill(request(), metadata=metadata, timeout=DEADLINE).drill_id
    watcher, metadata = dial("token.of.watcher")
    stream = watcher.WatchDrill(pb.WatchDrillRequest(drill_id=drill_id), metadata=metadata, timeout=DEADLINE)
    assert next(stream).phase == pb.DRILL_PHASE_WAITING
    stream.cancel()
    stranger, metadata = dial("token.of.api")
    watched = code_of(stranger.WatchDrill, pb.WatchDrillRequest(drill_id=drill_id), metadata)
    assert watched[0] is grpc.StatusCode.UNAUTHENTICATED


def test_while_nobody_can_be_asked_nobody_new_drills_and_the_code_says_try_again(dial, api, board):
    api.failure = Unreachable("no connection")
    stub, metadata = dial("token.of.operator")
    assert code_of(stub.StartDrill, request(), metadata)[0] is grpc.StatusCode.UNAVAILABLE
    assert board.current() is None


def test_a_refused_token_is_in_no_log_line(dial, caplog):
    caplog.set_level("DEBUG")
    stub, metadata = dial("secret.that.nobody.knows")
    code_of(stub.StartDrill, request(), metadata)
    assert "caller refused" in caplog.text
    assert "secret.that" not in caplog.text


def test_with_tokens_certificate_and_key_are_needed_still(board, api):
    settings = DrillSettings(listen="127.0.0.1:0")
    with pytest.raises(SettingsError, match=r"drill\.tls_certificate_file") as caught:
        drill_server(board, settings, reviews=api.reviews())
    assert "client_ca" not in str(caught.value)


@pytest.mark.parametrize(
    ("drill", "asks"),
    [
        ({}, False),
        ({"listen": "unix:/run/drill.sock"}, False),
        ({"listen": "0.0.0.0:7444"}, True),
        ({"listen": "0.0.0.0:7444", "tls_client_ca_file": "ca.crt"}, False),
    ],
)
def test_the_right_to_review_is_asked_for_only_where_callers_show_tokens(drill, asks):
    wanted = needed(AgentSettings(drill=DrillSettings(**drill)))
    assert (set(DRILL_PERMISSIONS) <= set(wanted)) is asks


RUNNING = node(pods=(pod("ls", Tier.LS), pod("be", cpu=300)))


def test_a_plan_says_what_would_be_met_and_starts_nothing(serve, board, tmp_path):
    settings = DrillSettings(listen=f"unix:{tmp_path}/drill.sock")
    serve(settings, standing=replace(CALM, snapshot=RUNNING))
    before = time.time() * 1000
    with grpc.insecure_channel(settings.listen) as channel:
        stub = drill_pb2_grpc.DrillServiceStub(channel)
        order = request(victim_budget=2, duration_millis=90_000)
        plan = stub.PlanDrill(pb.PlanDrillRequest(order=order), timeout=DEADLINE)
    assert list(plan.refusals) == []
    assert [(one.name, one.evicted) for one in plan.victims] == [("be", False)]
    assert before - 1 <= plan.now_unix_millis <= time.time() * 1000 + 1
    assert "no contention rung is on this node: BE will not be throttled" in plan.expectations
    assert {one.step: (one.within_millis, one.after_lowered) for one in plan.targets} == {
        "detected": (500, False),
        "throttled": (1000, False),
        "evicted": (60_000, False),
        "recovered": (90_000, True),
    }
    assert board.current() is None


def test_a_plan_names_every_refusal_and_the_drill_that_runs(serve, board, tmp_path):
    settings = DrillSettings(listen=f"unix:{tmp_path}/drill.sock")
    standing = [CALM]
    serve(settings, standing=lambda _kind: standing[0])
    with grpc.insecure_channel(settings.listen) as channel:
        stub = drill_pb2_grpc.DrillServiceStub(channel)
        drill_id = stub.StartDrill(request(), timeout=DEADLINE).drill_id
        standing[0] = replace(CALM, held="the API has not answered yet")
        plan = stub.PlanDrill(pb.PlanDrillRequest(order=request()), timeout=DEADLINE)
        assert plan.refusals[0].startswith(f"drill {drill_id} runs")
        assert plan.refusals[1] == "the agent decides nothing yet: the API has not answered yet"
        assert refused(stub.PlanDrill, pb.PlanDrillRequest(order=request(duration_millis=0)))[0] is (
            grpc.StatusCode.INVALID_ARGUMENT
        )


def test_drills_outside_their_hours_are_refused_and_counted(board, tmp_path):
    settings = DrillSettings(listen=f"unix:{tmp_path}/drill.sock", hours=("Mon 09:00-10:00",))
    sunday = datetime(2026, 11, 29, 9, 30, tzinfo=UTC).timestamp()
    service = DrillService("n1", board, lambda: AgentSettings(drill=settings), lambda _kind: CALM, wall=lambda: sunday)
    server = DrillServer(settings, service)
    server.start()
    try:
        with grpc.insecure_channel(settings.listen) as channel:
            code, text = refused(drill_pb2_grpc.DrillServiceStub(channel).StartDrill, request())
    finally:
        server.stop()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "it is Sun 09:30 UTC, and drills may start Mon 09:00-10:00 only" in text
    assert (service.refused, board.current()) == (1, None)


def test_silence_must_last_beyond_the_watchdog(serve, tmp_path):
    settings = DrillSettings(listen=f"unix:{tmp_path}/drill.sock")
    serve(settings, standing=replace(CALM, snapshot=RUNNING))
    with grpc.insecure_channel(settings.listen) as channel:
        stub = drill_pb2_grpc.DrillServiceStub(channel)
        short = request(pressure=pb.PRESSURE_KIND_AGENT_LOSS, duration_millis=7_000)
        code, text = refused(stub.StartDrill, short)
        assert (code, "range 7500 to 600000" in text) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert stub.StartDrill(
            request(pressure=pb.PRESSURE_KIND_AGENT_LOSS, duration_millis=8_000), timeout=DEADLINE
        ).drill_id


def test_the_list_has_the_last_drills(serve, tmp_path):
    settings = DrillSettings(listen=f"unix:{tmp_path}/drill.sock")
    kept = [pb.DrillRecord(drill_id="d2"), pb.DrillRecord(drill_id="d1")]
    serve(settings, records=lambda: kept)
    with grpc.insecure_channel(settings.listen) as channel:
        stub = drill_pb2_grpc.DrillServiceStub(channel)
        assert list(stub.ListDrills(pb.ListDrillsRequest(), timeout=DEADLINE).drills) == kept


def test_a_watcher_gets_each_moment_once_and_the_pressure_between(stub, board):
    drill_id = stub.StartDrill(request(), timeout=DEADLINE).drill_id
    heard = []
    for number, message in enumerate(stub.WatchDrill(pb.WatchDrillRequest(drill_id=drill_id), timeout=DEADLINE)):
        heard.append(message)
        steps = [seen(0.0), replace(seen(0.1), pressure=0.5), seen(0.2, 1, 500), seen(1.5), seen(2.0)]
        if number < len(steps):
            board.observe(steps[number])
    last = heard[-1].result
    assert [moment for message in heard for moment in message.moments] == list(last.timeline)
    assert [one.step for one in last.timeline] == [
        *("raised", "rung:contention", "detected", "throttled"),
        *("open:contention", "unlimited", "lowered", "recovered"),
    ]
    assert last.ls_pressure_max == 0.5
    assert any(message.ls_pressure == 0.5 and not message.moments for message in heard)
