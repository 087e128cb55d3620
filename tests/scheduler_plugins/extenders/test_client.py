"""The client of extenders against a real HTTP server: kube-scheduling.md 2.1, 2.2 and the extender rows of 8.2."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scheduler_plugins.config.types import ExtenderConfig, ExtenderTls, ManagedResource
from scheduler_plugins.extenders.client import HttpExtender, make_extenders
from scheduler_plugins.framework.extending import ExtenderError, Victims
from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.status import Code
from slacktide.errors import SettingsError
from tests.patience import PATIENCE
from tests.pki import Pki
from tests.scheduler_plugins.build import info, node
from tests.scheduler_plugins.extenders.server import Answer, FakeExtender

Start = Callable[..., tuple[FakeExtender, HttpExtender]]
NODES = [NodeInfo.of(node(name)) for name in ("a", "b", "c")]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a server that answers `answers` and a client for it, with these fields of its configuration."""
    ends: list[Callable[[], None]] = []

    def begin(answers: dict[str, Answer], pod_on: Any = lambda node, uid: None, **fields: Any) -> Any:
        server = FakeExtender(answers)
        verbs = {f"{verb}_verb": verb for verb in answers if verb != "other"}
        weight = {"weight": 1} if "prioritize" in answers else {}
        client = HttpExtender(ExtenderConfig(url_prefix=server.url, **{**verbs, **weight, **fields}), pod_on)
        ends.extend((client.close, server.stop))
        return server, client

    yield begin
    for end in ends:
        end()


def names_kept(*names: str, **more: Any) -> Answer:
    return lambda question: {"NodeNames": list(names), **more}


def test_a_capable_extender_gets_names_and_answers_names(start: Start) -> None:
    server, client = start({"filter": names_kept("a", "c", FailedNodes={"b": "full"})}, node_cache_capable=True)
    result = client.filter(info("p"), NODES)
    assert (result.kept, dict(result.failed), dict(result.unresolvable)) == ({"a", "c"}, {"b": "full"}, {})
    path, question = server.asked[0]
    assert path == "/scheduler/filter"
    assert question["NodeNames"] == ["a", "b", "c"]
    assert question["Nodes"] is None
    assert question["Pod"]["metadata"]["uid"] == "uid-p"
    assert server.headers[0]["Content-Type"] == "application/json"


def test_another_extender_gets_whole_nodes_and_answers_nodes(start: Start) -> None:
    def first_of(question: dict[str, Any]) -> Any:
        return {"Nodes": {"items": question["Nodes"]["items"][:1]}, "FailedNodes": {"b": "no"}}

    server, client = start({"filter": first_of})
    result = client.filter(info("p"), NODES)
    assert result.kept == {"a"}
    question = server.asked[0][1]
    assert question["NodeNames"] is None
    assert question["Nodes"]["items"][0]["status"]["allocatable"]["cpu"] == "8"


def test_a_node_that_changed_is_sent_as_it_is_now(start: Start) -> None:
    server, client = start({"filter": lambda question: question})
    here = NodeInfo.of(node("a", labels={"v": "1"}))
    client.filter(info("p"), [here, NODES[1]])
    here.set_node(node("a", labels={"v": "2"}))
    client.filter(info("p"), [here])
    client.filter(info("p"), [NODES[1], here])
    sent = [
        {one["metadata"]["name"]: one["metadata"].get("labels") for one in q["Nodes"]["items"]} for _, q in server.asked
    ]
    assert sent == [{"a": {"v": "1"}, "b": None}, {"a": {"v": "2"}}, {"a": {"v": "2"}, "b": None}]


def test_an_unresolvable_reason_wins_over_a_failed_one(start: Start) -> None:
    more = {"FailedNodes": {"b": "full", "c": "full"}, "FailedAndUnresolvableNodes": {"b": "no such GPU", "z": "?"}}
    _, client = start({"filter": names_kept("a", **more)}, node_cache_capable=True)
    result = client.filter(info("p"), NODES)
    assert (dict(result.failed), dict(result.unresolvable)) == ({"c": "full"}, {"b": "no such GPU"})


@pytest.mark.parametrize("capable", [True, False])
def test_neither_nodes_nor_names_leaves_none(start: Start, capable: bool) -> None:
    _, client = start({"filter": lambda question: {"Nodes": None, "NodeNames": None}}, node_cache_capable=capable)
    assert client.filter(info("p"), NODES).kept == frozenset()


def test_a_capable_extender_may_answer_whole_nodes(start: Start) -> None:
    answer = {"Nodes": {"items": [{"metadata": {"name": "b"}}]}}
    _, client = start({"filter": lambda question: answer}, node_cache_capable=True)
    assert client.filter(info("p"), NODES).kept == {"b"}


def test_names_of_an_extender_that_is_not_capable_do_not_count(start: Start) -> None:
    _, client = start({"filter": names_kept("a")})
    assert client.filter(info("p"), NODES).kept == frozenset()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        # kube-scheduling.md 2.1 [T]: a name that was not sent is an error.
        ({"NodeNames": ["a", "stranger"]}, "stranger"),
        ({"Error": "disk on fire"}, "disk on fire"),
        ((500, b"out of order"), "HTTP 500: out of order"),
        ((404, b"<html>\n<p>"), "HTTP 404"),
        ((202, {"NodeNames": ["a"]}), "HTTP 202"),
        (b"not json", "not JSON"),
        (b"", "not JSON"),
        (b'{"NodeNames": 5}', "NodeNames"),
        (b'["a"]', "ExtenderFilterResult"),
        ({"Nodes": {"items": ["text"]}, "NodeNames": None}, "no node"),
    ],
)
def test_an_answer_that_does_not_count_is_an_error_that_names_the_extender(
    start: Start, answer: Any, words: str
) -> None:
    server, client = start({"filter": lambda question: answer}, node_cache_capable=True)
    with pytest.raises(ExtenderError, match=server.url) as error:
        client.filter(info("p"), NODES)
    assert words in str(error.value)


def test_scores_are_weighted_times_ten_and_not_clamped(start: Start) -> None:
    scores = [
        {"Host": "a", "Score": 10},
        {"Host": "b", "Score": -3},
        {"Host": "c", "Score": 40},
        {"Host": "z", "Score": 1},
    ]
    _, client = start({"prioritize": lambda question: scores}, weight=5)
    assert client.prioritize(info("p"), NODES) == {"a": 500, "b": -150, "c": 2000}


def test_a_node_that_is_scored_twice_gets_both(start: Start) -> None:
    _, client = start({"prioritize": lambda question: [{"Host": "a", "Score": 2}, {"host": "a", "score": 3}]})
    assert client.prioritize(info("p"), NODES) == {"a": 50}


@pytest.mark.parametrize("score", [1 << 62, -(1 << 62), 10**30, 1.5, "9", None])
def test_scores_that_cannot_be_counted_are_an_error(start: Start, score: Any) -> None:
    _, client = start({"prioritize": lambda question: [{"Host": "a", "Score": score}]}, weight=7)
    with pytest.raises(ExtenderError):
        client.prioritize(info("p"), NODES)


def test_bind_sends_who_goes_where_and_says_what_failed(start: Start) -> None:
    answers = iter(({"Error": ""}, {"Error": "node is locked"}, (500, b"")))
    server, client = start({"bind": lambda question: next(answers)})
    assert client.bind(info("p"), "a").ok
    assert server.asked[0][1] == {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "a"}
    refused = client.bind(info("p"), "a")
    assert (refused.code, "node is locked" in refused.message) == (Code.ERROR, True)
    assert client.bind(info("p"), "a").code is Code.ERROR


def test_bind_is_never_sent_twice(start: Start) -> None:
    server, client = start({"bind": lambda question: server.drop(), "filter": names_kept("a")}, node_cache_capable=True)
    client.filter(info("p"), NODES)
    assert client.bind(info("p"), "a").code is Code.ERROR
    assert [path for path, _ in server.asked].count("/scheduler/bind") == 1


VICTIMS = {"a": Victims((info("v1"), info("v2")), 1), "b": Victims((info("v3"),))}


@pytest.mark.parametrize("capable", [True, False])
def test_preempt_sends_candidates_in_the_form_that_the_extender_wants(start: Start, capable: bool) -> None:
    answer = {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "uid-v2"}], "NumPDBViolations": 3}}}
    server, client = start({"preempt": lambda question: answer}, node_cache_capable=capable)
    assert client.preempt(info("p"), VICTIMS) == {"a": Victims((VICTIMS["a"].pods[1],), 3)}
    question = server.asked[0][1]
    full, meta = question["NodeNameToVictims"], question["NodeNameToMetaVictims"]
    if capable:
        assert full is None
        assert meta["a"] == {"Pods": [{"UID": "uid-v1"}, {"UID": "uid-v2"}], "NumPDBViolations": 1}
    else:
        assert meta is None
        assert [pod["metadata"]["name"] for pod in full["a"]["Pods"]] == ["v1", "v2"]


@pytest.mark.parametrize("pods", [[], None])
def test_a_node_may_be_left_without_victims(start: Start, pods: Any) -> None:
    # Section 7 row 12 (kubernetes PR 135486): an empty list of victims is no error.
    _, client = start({"preempt": lambda question: {"NodeNameToMetaVictims": {"b": {"Pods": pods}}}})
    assert client.preempt(info("p"), VICTIMS) == {"b": Victims(())}


def test_no_candidate_may_be_left(start: Start) -> None:
    _, client = start({"preempt": lambda question: {"NodeNameToMetaVictims": None}})
    assert client.preempt(info("p"), VICTIMS) == {}


def test_preempt_may_name_another_pod_of_the_node_and_no_stranger(start: Start) -> None:
    other = info("v9")
    found = {("a", "uid-v9"): other}
    uids = iter(("uid-v9", "uid-gone"))
    _, client = start(
        {"preempt": lambda question: {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": next(uids)}]}}}},
        pod_on=lambda node, uid: found.get((node, uid)),
    )
    assert client.preempt(info("p"), VICTIMS) == {"a": Victims((other,))}
    with pytest.raises(ExtenderError, match="uid-gone"):
        client.preempt(info("p"), VICTIMS)


def test_preempt_may_not_name_a_node_that_is_no_candidate(start: Start) -> None:
    _, client = start({"preempt": lambda question: {"NodeNameToMetaVictims": {"z": {"Pods": []}}}})
    with pytest.raises(ExtenderError, match="'z'"):
        client.preempt(info("p"), VICTIMS)


MANAGED = "example.com/device"


@pytest.mark.parametrize(
    ("managed", "spec", "wanted"),
    [
        # kube-scheduling.md 8.2 IsInterested.
        pytest.param([MANAGED], {"containers": [{"name": "c"}]}, False, id="no resources"),
        pytest.param([], {"containers": [{"name": "c"}]}, True, id="managed list empty"),
        pytest.param([MANAGED], {"containers": [{"resources": {"requests": {MANAGED: "1"}}}]}, True, id="request"),
        pytest.param([MANAGED], {"containers": [{"resources": {"limits": {MANAGED: "1"}}}]}, True, id="limit"),
        pytest.param([MANAGED], {"initContainers": [{"resources": {"requests": {MANAGED: "1"}}}]}, True, id="init"),
        pytest.param([MANAGED], {"containers": [{"resources": {"requests": {MANAGED: "0"}}}]}, True, id="quantity 0"),
        pytest.param([MANAGED], {"containers": [{"resources": {"requests": {"x.io/y": "1"}}}]}, False, id="other"),
    ],
)
def test_interest_follows_the_managed_resources(managed: list[str], spec: dict[str, Any], wanted: bool) -> None:
    resources = [ManagedResource(name=name) for name in managed]
    client = HttpExtender(ExtenderConfig(url_prefix="http://127.0.0.1:1", managed_resources=resources), lambda *_: None)
    assert client.interested(info("p", **spec)) is wanted


def test_verbs_and_order_come_from_the_configuration() -> None:
    first = ExtenderConfig(url_prefix="http://127.0.0.1:1/x", filter_verb="f", ignorable=True)
    second = ExtenderConfig(url_prefix="http://127.0.0.1:2", prioritize_verb="p", weight=1, preempt_verb="e")
    third = ExtenderConfig(url_prefix="http://127.0.0.1:3", bind_verb="b")
    made = make_extenders([first, second, third], lambda *_: None)
    # kube-scheduling.md 2.1: ignorable ones are ordered last.
    assert [e.name for e in made] == ["http://127.0.0.1:2", "http://127.0.0.1:3", "http://127.0.0.1:1/x"]
    assert [(e.filters, e.prioritizes, e.binds, e.preempts, e.ignorable) for e in made] == [
        (False, True, False, True, False),
        (False, False, True, False, False),
        (True, False, False, False, True),
    ]


def test_calls_share_a_connection_and_survive_its_end(start: Start) -> None:
    server, client = start({"filter": names_kept("a"), "prioritize": lambda question: []}, node_cache_capable=True)
    for _ in range(3):
        client.filter(info("p"), NODES)
        client.prioritize(info("p"), NODES)
    assert server.connections == 1
    server.drop()
    assert client.filter(info("p"), NODES).kept == {"a"}
    assert server.connections == 2


def test_calls_from_many_threads_each_get_their_own_answer(start: Start) -> None:
    _, client = start(
        {"filter": lambda question: {"NodeNames": [question["Pod"]["metadata"]["name"]]}}, node_cache_capable=True
    )
    names = [f"n{i}" for i in range(100)]
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda name: client.filter(info(name), [NodeInfo.of(node(name))]).kept, names))
    assert kept == [{name} for name in names]


def test_an_extender_that_is_not_there_is_said_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        config = ExtenderConfig(url_prefix=f"http://127.0.0.1:{taken.getsockname()[1]}", filter_verb="f")
        with pytest.raises(ExtenderError, match=r"is it running at 127\.0\.0\.1"):
            HttpExtender(config, lambda *_: None).filter(info("p"), NODES)


class Trickle:
    """Accepts connections and sends `prefix` and then a byte every few milliseconds until it is stopped."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection:
            try:
                connection.sendall(self._prefix)
                while not self._stop.wait(0.01):
                    connection.sendall(b"x")
            except OSError:
                return  # The client gave up, as it should.

    def stop(self) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", id="body"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-Long: ", id="header"),
        pytest.param(b"", id="status line"),
    ],
)
def test_a_peer_that_answers_byte_by_byte_holds_nobody_longer_than_the_timeout(prefix: bytes) -> None:
    peer = Trickle(prefix)
    try:
        config = ExtenderConfig(url_prefix=f"http://127.0.0.1:{peer.port}", filter_verb="f", http_timeout="300ms")
        began = time.monotonic()
        with pytest.raises(ExtenderError, match=r"no whole answer within 0\.3 s"):
            HttpExtender(config, lambda *_: None).filter(info("p"), NODES)
        # Generous: it would never end otherwise.
        assert time.monotonic() - began < 20
    finally:
        peer.stop()


def test_a_silent_peer_ends_with_the_timeout_and_the_next_call_connects_anew(start: Start) -> None:
    release = threading.Event()
    slow = iter((True, False))

    def answer(question: dict[str, Any]) -> Any:
        if next(slow):
            release.wait(20)
        return {"NodeNames": ["b"]}

    _, client = start({"filter": answer}, node_cache_capable=True, http_timeout=f"{PATIENCE}s")
    try:
        with pytest.raises(ExtenderError, match="no whole answer"):
            client.filter(info("p"), NODES)
        release.set()
        assert client.filter(info("p"), NODES).kept == {"b"}
    finally:
        release.set()


def test_a_server_that_ends_the_connection_after_each_answer_is_understood(start: Start) -> None:
    server, client = start({"filter": lambda question: None}, node_cache_capable=True)

    def closing(handler: Any, body: bytes) -> None:
        handler.wfile.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"NodeNames": ["b"]}')
        handler.close_connection = True

    server.answer = closing  # type: ignore[method-assign]  # the test's own answer
    assert [client.filter(info("p"), NODES).kept for _ in range(2)] == [{"b"}, {"b"}]
    assert server.connections == 2


def test_an_answer_in_chunks_is_understood(start: Start) -> None:
    server, client = start({"filter": lambda question: None}, node_cache_capable=True)

    def chunked(handler: Any, body: bytes) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in (b'{"NodeNames"', b': ["c"]}', b""):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))

    server.answer = chunked  # type: ignore[method-assign]  # the test's own answer
    assert [client.filter(info("p"), NODES).kept for _ in range(2)] == [{"c"}, {"c"}]
    assert server.connections == 1


def test_an_answer_that_breaks_off_is_an_error(start: Start) -> None:
    server, client = start({"filter": lambda question: None}, node_cache_capable=True)

    def half(handler: Any, body: bytes) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\nConnection: close\r\n\r\n{}")
        handler.close_connection = True

    server.answer = half  # type: ignore[method-assign]  # the test's own answer
    with pytest.raises(ExtenderError, match="broke off"):
        client.filter(info("p"), NODES)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    try:
        subprocess.run(["openssl", "version"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("openssl is not installed")
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture
def secure(pki: Pki) -> Iterator[tuple[str, Pki]]:
    """(urlPrefix, its PKI) of an extender that asks clients for a certificate if they have one."""
    certificate, key = pki.issue("server", "/CN=extender", "subjectAltName=DNS:extender.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = FakeExtender({"filter": names_kept("a")}, context)
    yield f"https://127.0.0.1:{server.port}", pki
    server.stop()


def ask(url: str, **fields: Any) -> frozenset[str]:
    config = ExtenderConfig(url_prefix=url, filter_verb="filter", node_cache_capable=True, **fields)
    client = HttpExtender(config, lambda *_: None)
    try:
        return client.filter(info("p"), NODES).kept
    finally:
        client.close()


def test_tls_is_verified_against_the_ca_and_the_server_name(secure: tuple[str, Pki]) -> None:
    url, pki = secure
    named = ExtenderTls(ca_file=pki.ca, server_name="extender.test")
    assert ask(url, tls_config=named, enable_https=True) == {"a"}
    with open(pki.ca, "rb") as file:
        data = ExtenderTls(ca_data=file.read(), ca_file="/nonexistent", server_name="extender.test")
    assert ask(url, tls_config=data, enable_https=True) == {"a"}
    with pytest.raises(ExtenderError, match="certificate is not accepted"):
        ask(url, tls_config=ExtenderTls(ca_file=pki.ca), enable_https=True)
    with pytest.raises(ExtenderError, match="certificate is not accepted"):
        ask(url, tls_config=ExtenderTls(server_name="extender.test"))


def test_https_without_a_ca_is_not_verified_as_in_the_stock_scheduler(secure: tuple[str, Pki]) -> None:
    url, _ = secure
    assert ask(url, enable_https=True) == {"a"}
    assert ask(url, tls_config=ExtenderTls(insecure=True)) == {"a"}


def test_a_client_certificate_is_shown(pki: Pki) -> None:
    certificate, key = pki.issue("server2", "/CN=extender", "subjectAltName=DNS:extender.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(pki.ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    server = FakeExtender({"filter": names_kept("a")}, context)
    try:
        url = f"https://127.0.0.1:{server.port}"
        mine, my_key = pki.issue("client", "/CN=scheduler", "extendedKeyUsage=clientAuth")
        with open(mine, "rb") as one, open(my_key, "rb") as other:
            shown = ExtenderTls(insecure=True, cert_data=one.read(), key_data=other.read())
        assert ask(url, tls_config=shown) == {"a"}
        assert ask(url, tls_config=ExtenderTls(insecure=True, cert_file=mine, key_file=my_key)) == {"a"}
        with pytest.raises(ExtenderError):
            ask(url, tls_config=ExtenderTls(insecure=True))
    finally:
        server.stop()


def test_certificates_that_cannot_be_used_are_all_named() -> None:
    bad = [
        ExtenderConfig(url_prefix="https://a", tls_config=ExtenderTls(ca_file="/nonexistent/ca")),
        ExtenderConfig(url_prefix="https://b", tls_config=ExtenderTls(ca_data=base64.b64decode("bm9uZQ=="))),
    ]
    with pytest.raises(SettingsError) as error:
        make_extenders(bad, lambda *_: None)
    assert ["https://a" in error.value.problems[0], "https://b" in error.value.problems[1]] == [True, True]


def test_a_question_of_five_thousand_names_goes_through(start: Start) -> None:
    many = [NodeInfo.of(node(f"node-{i}")) for i in range(5000)]
    server, client = start(
        {"filter": lambda question: {"NodeNames": question["NodeNames"][::2]}}, node_cache_capable=True
    )
    assert len(client.filter(info("p"), many).kept) == 2500
    assert len(json.dumps(server.asked[0][1]["NodeNames"])) > 60_000
