"""The port: what reaches the service, what is refused, and what a bad client cannot do."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import threading
import time

import pytest

from scheduler_plugins.extender.server import ExtenderServer, Limits
from scheduler_plugins.extender.tls import ServerTls
from slacktide.errors import SettingsError
from slacktide.transport import CertificateFiles
from tests.pki import Pki
from tests.scheduler_plugins.build import be, node, pod
from tests.scheduler_plugins.extender.support import LIMITS, Bench, Gate, Picky, body, plain, post, raw, served, until


def bench() -> Bench:
    return Bench(Picky(), nodes=[node("a"), node("b", labels={"say": "no"})])


def head(length: int | str = 2, path: str = "/filter", method: str = "POST", *more: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


_JSON_HEAD = b"POST /filter HTTP/1.1\r\nContent-Type: application/json\r\n"
QUESTION = body(Pod=be(), Nodes=None, NodeNames=["a", "b"])


def test_verbs_are_answered_over_one_connection() -> None:
    with served(bench().service) as server, contextlib.closing(http.client.HTTPConnection(server.address)) as client:
        ports = set()
        for verb in ("filter", "prioritize", "filter", "preempt"):
            question = QUESTION if verb != "preempt" else body(Pod=be(), NodeNameToMetaVictims={})
            client.request("POST", f"/{verb}?timeout=5s", question, {"Content-Type": "application/json; charset=utf-8"})
            response = client.getresponse()
            assert response.status == 200
            assert response.getheader("Content-Type") == "application/json"
            json.loads(response.read())
            ports.add(client.sock.getsockname())
        assert len(ports) == 1


@pytest.mark.parametrize(("path", "content", "kind", "method", "status", "text"), [
    ("/filter", b"{", "application/json", "POST", 400, "not JSON"),
    ("/filter", b"{}", "application/json", "POST", 400, "has no Pod"),
    ("/filter", b"{}", "text/plain", "POST", 415, "must be application/json, not text/plain"),
    ("/filter", b"{}", None, "POST", 415, "not absent"),
    ("/nothing", b"{}", "application/json", "POST", 404, "known: /filter, /prioritize, /preempt, /bind"),
    ("/", b"{}", "application/json", "POST", 404, "nothing at /"),
    ("/filter", b"", "application/json", "GET", 405, "use POST, not GET"),
    ("/filter", b"{}", "application/json", "PUT", 405, "use POST, not PUT"),
    ("/filter", b"{}", "application/json", "ODD", 405, "use POST, not ODD"),
])  # fmt: skip
def test_what_is_not_a_question_gets_its_status_and_a_sentence(path, content, kind, method, status, text) -> None:
    with served(bench().service) as server:
        found, answer, headers = post(server.address, path, content, kind, method)
    assert found == status
    assert text in answer["Error"]
    assert headers["Content-Type"] == "application/json"
    assert headers.get("Allow") == ("POST" if status == 405 else None)


@pytest.mark.parametrize(("sent", "status", "text"), [
    (b"nonsense\r\n\r\n", 400, "Bad request syntax"),
    (b"POST /filter HTTP/9.9\r\n\r\n", 505, "HTTP"),
    (b"POST /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414, "URI"),
    (b"POST /filter HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431, "headers"),
    (_JSON_HEAD + b"\r\n", 411, "Content-Length"),
    (_JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411, "chunked"),
    (head("-1"), 400, "not clear"),
    (head("1e3"), 400, "not clear"),
    (head(2, "/filter", "POST", "Content-Length: 3"), 400, "not clear"),
    (head(2, "/filter", "POST", "Transfer-Encoding: chunked"), 400, "not clear"),
    (head(1 << 40), 413, "the limit is 1048576"),
    (head(1 << 40, "/filter", "POST", "Expect: 100-continue"), 413, "the limit is 1048576"),
])  # fmt: skip
def test_what_is_no_good_http_gets_its_status_and_the_connection_is_closed(sent, status, text) -> None:
    with served(bench().service) as server:
        answer = raw(server.address, sent, close=True)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:200]
    assert text in json.loads(answer.partition(b"\r\n\r\n")[2])["Error"]
    assert b"100 Continue" not in answer
    assert b"Traceback" not in answer


def test_a_client_that_asks_before_it_sends_is_told_to_go_on() -> None:
    with served(bench().service) as server:
        content = head(len(QUESTION), "/filter", "POST", "Expect: 100-continue", "Connection: close") + QUESTION
        answer = raw(server.address, content)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_a_body_of_50_mb_is_refused_and_the_client_can_read_why() -> None:
    with served(bench().service) as server:
        status, answer, _ = post(server.address, "/filter", b" " * 50_000_000)
        assert status == 413
        assert "the body has 50000000 bytes" in answer["Error"]
        assert post(server.address, "/filter", QUESTION)[0] == 200


def test_20_000_names_are_all_answered() -> None:
    asked = [f"node-{i}" for i in range(20_000)]
    with served(Bench(Picky(), nodes=[node("node-7")]).service) as server:
        status, answer, _ = post(server.address, "/filter", body(Pod=be(), NodeNames=asked))
    assert status == 200
    assert answer["NodeNames"] == ["node-7"]
    assert len(answer["FailedAndUnresolvableNodes"]) == 19_999


@pytest.mark.parametrize("sent", [b"PO", b"POST /filter HTTP/1.1\r\nHost:", head(100) + b"{"])
def test_a_slow_client_is_told_and_holds_nobody_else_up(sent) -> None:
    limits = Limits(connections=4, body_bytes=1 << 20, request_seconds=0.3, idle_seconds=30.0)
    with served(bench().service, limits) as server:
        answers: list[bytes] = []
        slow = threading.Thread(target=lambda: answers.append(raw(server.address, sent)))
        slow.start()
        assert post(server.address, "/filter", QUESTION)[0] == 200
        slow.join(30)
    assert answers[0].startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within 0.3 s" in answers[0]


def test_bytes_that_trickle_do_not_extend_the_time() -> None:
    limits = Limits(connections=4, body_bytes=1 << 20, request_seconds=0.3, idle_seconds=30.0)
    with served(bench().service, limits) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(head(1000))
            until("an answer, with a byte each moment", lambda: _trickled(client))


def _trickled(client: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        client.sendall(b" ")
    client.settimeout(0.02)
    try:
        return client.recv(100).startswith(b"HTTP/1.1 408")
    except TimeoutError:
        return False


def test_an_idle_connection_is_closed_in_silence() -> None:
    limits = Limits(connections=4, body_bytes=1 << 20, request_seconds=10.0, idle_seconds=0.1)
    with served(bench().service, limits) as server:
        assert raw(server.address, b"") == b""


def test_a_client_that_does_not_take_its_answer_is_cut_off() -> None:
    big = Bench(Picky(), nodes=[node(f"n{i}") for i in range(3)])
    limits = Limits(connections=4, body_bytes=64 << 20, request_seconds=0.5, idle_seconds=30.0)
    asked = body(Pod=pod(), NodeNames=["x" * 200] * 100_000)
    with served(big.service, limits, metrics=big.metrics) as server:
        host, port = server.address.split(":")
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.sendall(head(len(asked)) + asked)
            until("it was answered", lambda: big.count("passed"))
            until("the connection ended", lambda: big.metrics.connections == 0)


def test_connections_beyond_the_limit_get_503_and_the_others_go_on() -> None:
    crowd = bench()
    limits = Limits(connections=2, body_bytes=1 << 20, request_seconds=10.0, idle_seconds=30.0)
    with served(crowd.service, limits, metrics=crowd.metrics) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                client = stack.enter_context(contextlib.closing(http.client.HTTPConnection(server.address)))
                client.request("POST", "/filter", QUESTION, {"Content-Type": "application/json"})
                client.getresponse().read()
            assert raw(server.address, b"").startswith(b"HTTP/1.1 503 ")
            assert crowd.registry.get_sample_value("slacktide_extender_connections_refused_total") == 1
            assert crowd.registry.get_sample_value("slacktide_extender_connections") == 2
        until("the two are gone", lambda: crowd.metrics.connections == 0)
        assert post(server.address, "/filter", QUESTION)[0] == 200


def test_50_at_once_are_all_answered_right() -> None:
    many = Bench(Picky(), nodes=[node(f"n{i}", labels={"say": "no" if i % 3 else "yes"}) for i in range(300)])
    asked = [f"n{i}" for i in range(300)]
    wanted = [name for i, name in enumerate(asked) if not i % 3]
    wrong: list[object] = []
    barrier = threading.Barrier(50)

    def ask(number: int) -> None:
        tier = be(f"p{number}") if number % 2 else pod(f"p{number}")
        barrier.wait(60)
        for _ in range(4):
            _, answer, _ = post(server.address, "/filter", body(Pod=tier, NodeNames=asked))
            if answer["NodeNames"] != (wanted if number % 2 else asked):
                wrong.append(answer)

    with served(many.service) as server:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong
    assert many.count("judged") == many.count("passed") == 100


def test_a_broken_request_leaves_the_server_as_it_was() -> None:
    one = bench()
    with served(one.service, metrics=one.metrics) as server:
        for sent in (head(500) + b"{", b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n\r\n", b"\x00" * 100):
            raw(server.address, sent, close=True)
        assert post(server.address, "/filter", QUESTION)[0] == 200
        until("no connection is left", lambda: one.metrics.connections == 0)


def test_stop_lets_an_answer_go_out_and_ends_idle_connections() -> None:
    gate = Gate()
    hung = Bench(gate, nodes=[node("a")])
    answers: list[bytes] = []
    with served(hung.service, metrics=hung.metrics) as server:
        address = server.address
        asking = threading.Thread(target=lambda: answers.append(raw(address, head(len(QUESTION)) + QUESTION)))
        asking.start()
        assert gate.entered.wait(30)
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), timeout=30) as idle:
            until("both are open", lambda: hung.metrics.connections == 2)
            stopping = threading.Thread(target=server.stop)
            stopping.start()
            assert idle.recv(1) == b""
            gate.release.set()
            stopping.join(30)
        asking.join(30)
        assert answers[0].startswith(b"HTTP/1.1 200 OK")
        assert b"Connection: close" in answers[0]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((host, int(port)), timeout=5).close()
        server.stop()


def test_an_address_that_is_taken_is_said_with_its_setting() -> None:
    with (
        served(bench().service) as server,
        pytest.raises(SettingsError, match=r"listen: cannot listen at 127\.0\.0\.1"),
    ):
        ExtenderServer(server.address, bench().service, LIMITS, bench().metrics).start()


def test_a_unix_socket_is_no_address_of_an_extender() -> None:
    with pytest.raises(SettingsError, match="speaks TCP only"):
        ExtenderServer("unix:/tmp/x.sock", bench().service, LIMITS, bench().metrics)


def test_ipv6_is_served() -> None:
    try:
        server = ExtenderServer("[::1]:0", bench().service, LIMITS, bench().metrics)
        server.start()
    except SettingsError:
        pytest.skip("this machine has no IPv6 loopback")
    try:
        assert post(server.address, "/filter", QUESTION)[0] == 200
    finally:
        server.stop()


# TLS.


@pytest.fixture(scope="module")
def pki(tmp_path_factory) -> Pki:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make certificates with")
    return Pki(str(tmp_path_factory.mktemp("pki")))


def tls(certificate: str, key: str, ca: str = "") -> ServerTls:
    return ServerTls(CertificateFiles(certificate, key, ca))


def over_tls(address: str, context: ssl.SSLContext) -> tuple[int, object]:
    with contextlib.closing(http.client.HTTPSConnection(address, timeout=30, context=context)) as connection:
        connection.request("POST", "/filter", QUESTION, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())["NodeNames"]


def test_tls_with_and_without_a_client_certificate(pki: Pki) -> None:
    server_pair = pki.issue("server", "/CN=extender", "subjectAltName=IP:127.0.0.1")
    client_pair = pki.issue("client", "/CN=scheduler", "extendedKeyUsage=clientAuth")
    trusting = ssl.create_default_context(cafile=pki.ca)
    trusting.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    with served(bench().service, tls=tls(*server_pair)) as server:
        assert over_tls(server.address, trusting) == (200, ["a"])
        # Plain HTTP to a TLS port gets no answer that could be taken for one.
        assert not raw(server.address, head(len(QUESTION)) + QUESTION).startswith(b"HTTP")
    with served(bench().service, tls=tls(*server_pair, pki.ca)) as server:
        with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
            over_tls(server.address, trusting)
        trusting.load_cert_chain(*client_pair)
        assert over_tls(server.address, trusting) == (200, ["a"])


def test_stop_ends_tls_connections_too(pki: Pki) -> None:
    pair = pki.issue("stop", "/CN=extender", "subjectAltName=IP:127.0.0.1")
    one = bench()
    context = ssl.create_default_context(cafile=pki.ca)
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    with served(one.service, tls=tls(*pair), metrics=one.metrics) as server:
        with contextlib.closing(http.client.HTTPSConnection(server.address, timeout=30, context=context)) as client:
            client.request("POST", "/filter", QUESTION, {"Content-Type": "application/json"})
            client.getresponse().read()
            began = time.monotonic()
            server.stop()
            assert time.monotonic() - began < 3.0
        assert one.metrics.connections == 0


def test_a_renewed_certificate_is_taken_over_and_a_broken_one_is_not(pki: Pki) -> None:
    first = pki.issue("first", "/CN=extender", "subjectAltName=IP:127.0.0.1")
    second = pki.issue("second", "/CN=extender", "subjectAltName=DNS:elsewhere.example")
    context = ssl.create_default_context(cafile=pki.ca)
    context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    with served(bench().service, tls=tls(*first)) as server:
        assert over_tls(server.address, context)[0] == 200
        with open(first[0], "w") as file:
            file.write("broken")
        assert over_tls(server.address, context)[0] == 200
        for have, want in zip(second, first, strict=True):
            shutil.copy(have, want)
        with pytest.raises(ssl.SSLCertVerificationError):
            over_tls(server.address, context)


def test_certificates_that_cannot_be_used_are_settings_errors(tmp_path) -> None:
    with pytest.raises(SettingsError, match=r"tls: .* cannot be used"):
        tls(str(tmp_path / "no.crt"), str(tmp_path / "no.key"))


def test_views_and_plain_json_ask_the_same() -> None:
    with served(bench().service) as server:
        assert post(server.address, "/filter", body(Pod=plain(be()), NodeNames=["a"]))[1]["NodeNames"] == ["a"]
