"""Streams over TLS: who may report for which node, who may read, and what an identity that is due costs a stream."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import threading
import time

import grpc
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from predictor.auth import AuthSettings, Gate
from predictor.metrics import Metrics
from predictor.service import RpcServer
from slacktide.cluster.errors import ServerError, Unreachable
from slacktide.errors import SettingsError
from slacktide.transport import CertificateFiles, Review, Tokens, User
from slacktide.transport.reviews import NODE_CLAIM
from slacktide.v1 import forecast_pb2, forecast_pb2_grpc, usage_pb2_grpc
from tests.patience import PATIENCE
from tests.pki import Pki
from tests.predictor.support import eventually
from tests.predictor.test_service import Running, message, report

AGENT = "system:serviceaccount:slacktide-system:slacktide-agent"
NAME = "slacktide-predictor.slacktide-system.svc"
LOCAL = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", NAME)]
DEADLINE = 30 * PATIENCE
PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command")
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.server = made.issue("server", "/CN=predictor", f"subjectAltName=DNS:{NAME}\n")
    return made


@pytest.fixture
def metrics():
    return Metrics(CollectorRegistry())


def token(node, seconds=3600.0):
    payload = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + seconds, "node": node}).encode()).decode()
    return f"header.{payload.rstrip('=')}.signature"


class Api:
    """Reviews tokens and rights as the API server would; `failure` is raised instead while it is set."""

    def __init__(self):
        self.users = {}
        self.readers = set()
        self.failure = None
        self.reviews = 0
        self.settings = AuthSettings()
        self.tokens = Tokens(self.ask, lambda: self.settings.review_seconds, jitter=lambda: 1.0)

    def issue(self, node="n1", account=AGENT, seconds=3600.0):
        text = token(node, seconds)
        self.users[text] = User(username=account, extra={NODE_CLAIM: (node,)} if node else {})
        return text

    def ask(self, text):
        self.reviews += 1
        if self.failure is not None:
            raise self.failure
        user = self.users.get(text)
        return Review(user) if user is not None else Review(None, "[invalid bearer token]")

    def may(self, user, verb, node):
        if self.failure is not None:
            raise self.failure
        return "" if (user.username, verb, node) in self.readers else f"{user.username} may not {verb}"


@pytest.fixture
def api():
    return Api()


def kinds(metrics):
    samples = metrics.refused_calls.collect()[0].samples
    return {s.labels["kind"]: s.value for s in samples if s.name.endswith("_total")}


@contextlib.contextmanager
def over_tls(tmp_path, metrics, api, pki, client_ca=""):
    service = Running(tmp_path, metrics)
    files = CertificateFiles(*pki.server, client_ca)
    gate = Gate(
        lambda: api.settings,
        api.tokens,
        api.may,
        by_certificate=bool(client_ca),
        count=lambda kind: metrics.refused_calls.labels(kind).inc(),
    )
    service.server = RpcServer("127.0.0.1:0", service.ingest, service.board, tls=files, gate=gate)
    try:
        with service:
            service.pki = pki
            yield service
    finally:
        gate.stop()


@pytest.fixture
def service(tmp_path, metrics, api, pki):
    with over_tls(tmp_path, metrics, api, pki) as made:
        yield made


def content(path):
    with open(path, "rb") as file:
        return file.read()


@contextlib.contextmanager
def dialled(service, pair=None, ca=None):
    own = (content(pair[1]), content(pair[0])) if pair else (None, None)
    credentials = grpc.ssl_channel_credentials(content(ca or service.pki.ca), *own)
    with grpc.secure_channel(f"127.0.0.1:{service.server.port}", credentials, options=LOCAL) as channel:
        yield channel


def carrying(text):
    return (("authorization", f"Bearer {text}"),) if text else ()


def speak(service, text, go_on, node=lambda: "n1", **more):
    """One stream that says a message after the other while `go_on(highest acknowledged)`; code and words of its end."""
    highest = 0

    def messages():
        sequence = 0
        while go_on(highest):
            sequence += 1
            yield report(message(sequence), node=node())
            time.sleep(0.02)

    with dialled(service, **more) as channel:
        call = usage_pb2_grpc.UsageServiceStub(channel).Report(messages(), metadata=carrying(text), timeout=DEADLINE)
        with contextlib.suppress(grpc.RpcError):
            for response in call:
                highest = max(highest, response.durable_sequence)
        return call.code(), call.details()


def outcome(service, text=None, node="n1", **more):
    """Code and words of a stream that ends once something was acknowledged."""
    return speak(service, text, lambda highest: not highest, lambda: node, **more)


def test_an_agent_reports_for_its_node(service, api):
    assert outcome(service, api.issue("n1"))[0] is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("make", "node", "code", "kind", "word"),
    [
        (lambda api: None, "n1", grpc.StatusCode.UNAUTHENTICATED, "token", "no token"),
        (lambda api: "made.up.token", "n1", grpc.StatusCode.UNAUTHENTICATED, "token", "invalid bearer token"),
        (lambda api: api.issue("n1"), "n2", grpc.StatusCode.PERMISSION_DENIED, "node", "'n1' only, not for 'n2'"),
        (lambda api: api.issue(""), "n1", grpc.StatusCode.PERMISSION_DENIED, "node", "names no node"),
        (
            lambda api: api.issue("n1", "system:serviceaccount:shop:web"),
            "n1",
            grpc.StatusCode.PERMISSION_DENIED,
            "account",
            "none of auth.agents",
        ),
    ],
)
def test_who_may_not_report(service, api, metrics, make, node, code, kind, word):
    found, words = outcome(service, make(api), node)
    assert found is code, words
    assert word in words
    assert kinds(metrics) == {kind: 1.0}
    assert not list(service.fleet.view(time.time()).names)


def test_a_second_node_on_a_stream_ends_it(service, api):
    heard = []

    def go_on(highest):
        heard.append(highest)
        return True

    code, _ = speak(service, api.issue("n1"), go_on, lambda: "n2" if heard[-1] else "n1")
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert list(service.fleet.view(time.time()).names) == ["n1"]


def test_messages_of_a_stream_cost_no_review(service, api):
    assert speak(service, api.issue("n1"), lambda highest: highest < 30)[0] is grpc.StatusCode.OK
    assert api.reviews == 1


def test_while_the_api_server_is_away_who_is_known_goes_on_and_nobody_new_comes_in(service, api, metrics):
    known = api.issue("n1")
    assert outcome(service, known)[0] is grpc.StatusCode.OK
    api.failure = Unreachable("no connection")
    assert outcome(service, known)[0] is grpc.StatusCode.OK
    code, words = outcome(service, api.issue("n2"), "n2")
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "cannot be reviewed now" in words
    assert kinds(metrics) == {"unavailable": 1.0}


def after(condition, step):
    """Goes on for ever, and takes `step` once when `condition` holds."""
    taken = []

    def go_on(_highest):
        if not taken and condition():
            taken.append(True)
            step()
        return True

    return go_on


@pytest.fixture
def often(api):
    api.settings = msgspec.structs.replace(api.settings, review_seconds=0.2)


def test_a_stream_is_reviewed_again_and_goes_on(service, api, often):
    assert speak(service, api.issue("n1"), lambda _: api.reviews < 4)[0] is grpc.StatusCode.OK


def test_a_pod_that_is_gone_ends_its_stream_at_the_next_review(service, api, often):
    go_on = after(lambda: api.reviews >= 2, api.users.clear)
    assert speak(service, api.issue("n1"), go_on)[0] is grpc.StatusCode.UNAUTHENTICATED


def test_an_account_that_is_listed_no_more_ends_at_the_next_review(service, api, often):
    def change():
        api.settings = msgspec.structs.replace(api.settings, agents=("somebody",))

    assert speak(service, api.issue("n1"), after(lambda: api.reviews >= 2, change))[0] is PERMISSION_DENIED


def test_a_stream_goes_on_through_an_outage_and_ends_with_its_token(service, api, often):
    seconds = 4.0 * PATIENCE
    began, away = time.monotonic(), []

    def fail():
        api.failure = ServerError(500, "InternalError", "etcd")
        away.append(time.monotonic())

    code, words = speak(service, api.issue("n1", seconds=seconds), after(lambda: api.reviews >= 2, fail))
    assert code is grpc.StatusCode.UNAVAILABLE, words
    assert time.monotonic() - began > seconds - 0.5
    assert away[0] - began < seconds - 1.0


def test_a_slow_api_server_holds_no_stream_that_is_known(service, api, often):
    released, asked = threading.Event(), threading.Event()
    ask = api.ask
    acknowledged = []

    def slow(text):
        asked.set()
        assert released.wait(DEADLINE)
        return ask(text)

    def go_on(highest):
        if api.reviews and api.tokens._ask is not slow:
            api.tokens._ask = slow
        if asked.is_set():
            acknowledged.append(highest)
        return len(set(acknowledged)) < 5

    try:
        assert speak(service, api.issue("n1"), go_on)[0] is grpc.StatusCode.OK
        assert not released.is_set()
    finally:
        released.set()


def test_readers_need_the_right(service, api, metrics):
    reader, other = api.issue("", "system:serviceaccount:shop:reader"), api.issue("n1")
    api.readers = {("system:serviceaccount:shop:reader", "get", "n1")}
    codes = []
    with dialled(service) as channel:
        stub = forecast_pb2_grpc.ForecastServiceStub(channel)
        for text in (None, other, reader):
            with pytest.raises(grpc.RpcError) as caught:
                stub.GetForecast(forecast_pb2.GetForecastRequest(node="n1"), metadata=carrying(text), timeout=DEADLINE)
            codes.append(caught.value.code())
        watch = stub.WatchForecasts(forecast_pb2.WatchForecastsRequest(), metadata=carrying(reader), timeout=DEADLINE)
        codes.append(watch.code())
    # NOT_FOUND is what somebody gets who was let in: there is no forecast.
    assert codes == [grpc.StatusCode.UNAUTHENTICATED, PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND, PERMISSION_DENIED]
    assert kinds(metrics) == {"token": 1.0, "right": 2.0}


@pytest.mark.parametrize(
    ("subject", "node", "code"),
    [
        ("/O=system:nodes/CN=system:node:n1", "n1", grpc.StatusCode.OK),
        ("/CN=slacktide-agent:n1", "n1", grpc.StatusCode.OK),
        ("/CN=system:node:n1", "n2", grpc.StatusCode.PERMISSION_DENIED),
        ("/CN=system:node:", "n1", grpc.StatusCode.PERMISSION_DENIED),
        ("/CN=somebody", "n1", grpc.StatusCode.PERMISSION_DENIED),
        # An alternative name is no proof, also where there is no common one.
        ("/O=somebody", "n2", grpc.StatusCode.PERMISSION_DENIED),
    ],
)
def test_a_certificate_names_the_node(tmp_path, metrics, api, pki, subject, node, code):
    pair = pki.issue("client", subject, "extendedKeyUsage=clientAuth\nsubjectAltName=DNS:system:node:n2\n")
    with over_tls(tmp_path, metrics, api, pki, pki.ca) as service:
        assert outcome(service, None, node, pair=pair)[0] is code
    assert api.reviews == 0


def test_with_a_client_ca_nobody_comes_in_without_a_good_certificate(tmp_path, metrics, api, pki):
    (tmp_path / "other").mkdir()
    other = Pki(tmp_path / "other")
    foreign = other.issue("client", "/CN=system:node:n1", "extendedKeyUsage=clientAuth\n")
    expired = pki.issue("expired", "/CN=system:node:n1", "extendedKeyUsage=clientAuth\n", days=-1)
    with over_tls(tmp_path, metrics, api, pki, pki.ca) as service:
        for pair in (None, foreign, expired):
            assert outcome(service, api.issue("n1"), pair=pair)[0] is grpc.StatusCode.UNAVAILABLE


def test_a_renewed_certificate_is_shown_to_the_next_connection_and_streams_go_on(tmp_path, metrics, api, pki):
    for name, source in zip(("tls.crt", "tls.key"), pki.server, strict=True):
        shutil.copy(source, tmp_path / name)
    moving = Pki.__new__(Pki)
    moving.ca, moving.server = pki.ca, (str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    second_ca = Pki(tmp_path)
    second = second_ca.issue("second", "/CN=predictor", f"subjectAltName=DNS:{NAME}\n")
    text = api.issue("n1")
    with over_tls(tmp_path, metrics, api, moving) as service:
        steps = []

        def go_on(highest):
            if highest and not steps:
                for source, target in zip(second, moving.server, strict=True):
                    shutil.copy(source, target)
                steps.append((outcome(service, text)[0], outcome(service, text, ca=second_ca.ca)[0], highest))
            return not steps or highest <= steps[0][2]

        assert speak(service, text, go_on)[0] is grpc.StatusCode.OK
        assert steps[0][:2] == (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK)


def test_plaintext_to_a_tls_port_gets_nowhere(service, api):
    with grpc.insecure_channel(f"127.0.0.1:{service.server.port}", options=LOCAL[:1]) as channel:
        call = usage_pb2_grpc.UsageServiceStub(channel).Report(
            iter([report(message(1))]), metadata=carrying(api.issue("n1")), timeout=DEADLINE
        )
        assert call.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "0.0.0.0:0", ":0", "[::1]:0", "example.org:1"])
def test_plaintext_is_refused_on_tcp(tmp_path, metrics, listen):
    service = Running(tmp_path, metrics)
    with pytest.raises(SettingsError, match=r"tls\.certificate_file"):
        RpcServer(listen, service.ingest, service.board)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", ":0", "[::]:0", "192.168.7.1:0", "example.org:1"])
def test_insecure_is_for_loopback_only(tmp_path, metrics, listen):
    service = Running(tmp_path, metrics)
    with pytest.raises(SettingsError, match="loopback only"):
        RpcServer(listen, service.ingest, service.board, insecure=True)


def test_one_line_a_minute_tells_of_refusals_and_none_holds_a_token(service, api, caplog):
    secret = "secret.of.somebody"
    for _ in range(5):
        outcome(service, secret)
    eventually(lambda: api.reviews)
    lines = [record.getMessage() for record in caplog.records if "caller refused" in record.getMessage()]
    assert len(lines) == 1
    assert secret not in caplog.text
