from __future__ import annotations

import os
import socket
import threading

import pytest

from slacktide.cluster import PODS, errors
from slacktide.cluster.credentials import Endpoint, TokenFileSource, checked_endpoint
from slacktide.cluster.transport import Request, Transport
from tests.slacktide.cluster.fakeapi import CUT, FakeApi, Reply, listing, pod, status, wait_for


def get(path="/x", **options):
    options = {"connect_seconds": 5.0, "read_seconds": 5.0, "total_seconds": 10.0, **options}
    return Request(method="GET", path=path, **options)


@pytest.fixture
def transport(api):
    made = Transport(TokenFileSource(Endpoint(api.url)), "slacktide-test/1")
    yield made
    made.close()


def test_unix_socket(tmp_path, make_client):
    api = FakeApi(unix_path=f"{tmp_path}/api.sock")
    try:
        api.on("GET", "/api/v1/pods", listing([pod("a")], 7))
        client = make_client(api.url)
        assert [p.metadata.name for p in client.list(PODS).items] == ["a"]
        assert client.list(PODS).resource_version == "7"
        assert len(api.sockets) == 1, "the connection is kept for the second call"
    finally:
        api.close()


def test_headers_and_query(api, transport, tmp_path):
    api.on("GET", "/x", Reply(b"{}"))
    transport.send(get(query={"labelSelector": "a in (b,c)", "limit": "5"}))
    (call,) = api.calls
    assert call.query == {"labelSelector": "a in (b,c)", "limit": "5"}
    assert call.headers["User-Agent"] == "slacktide-test/1"
    assert call.headers["Accept"] == "application/json"
    assert "Authorization" not in call.headers


def test_path_prefix_of_the_server_is_kept(api, make_client):
    api.on("GET", "/k8s/clusters/c-1/api/v1/pods", listing([], 1))
    assert make_client(f"{api.url}/k8s/clusters/c-1/").list(PODS).items == ()


def test_answer_that_dribbles_is_ended_by_the_total_time(api, transport):
    def dribble():
        while not api.closing.wait(0.01):
            yield b"x"

    api.on("GET", "/x", lambda _: Reply(chunks=dribble()))
    with pytest.raises(errors.Unreachable, match="not complete after"):
        transport.send(get(total_seconds=0.2))


def test_silent_server_is_ended_by_the_read_timeout(api, transport):
    api.on("GET", "/x", lambda _: (api.hang(), Reply())[1])
    with pytest.raises(errors.Unreachable, match=r"GET /x.*silent"):
        transport.send(get(read_seconds=0.1))


def test_server_that_accepts_nobody_is_ended_by_a_timeout(tmp_path, make_client):
    path = f"{tmp_path}/full.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen(0)
        client = make_client(f"unix:{path}", timeout_seconds=0.2)
        with pytest.raises(errors.Unreachable, match="silent"):
            client.version()
        # What was tried still fills the queue of those who wait to be accepted.
        with pytest.raises(errors.Unreachable, match="no connection within the timeout"):
            client.version()


def test_more_callers_than_the_backlog_of_the_server_wait_for_their_turn(tmp_path, make_client):
    path = f"{tmp_path}/api.sock"
    api = FakeApi(unix_path=path)
    try:
        api.on("GET", "/version", Reply({"gitVersion": "v1"}))
        api._server.socket.listen(0)
        client, versions = make_client(f"unix:{path}"), []
        threads = [threading.Thread(target=lambda: versions.append(client.version().git_version)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert versions == ["v1"] * 20
    finally:
        api.close()


@pytest.mark.parametrize("url", ["unix:/nonexistent/api.sock", "http://127.0.0.1:1"])
def test_nobody_there(make_client, url):
    with pytest.raises(errors.Unreachable, match=r"no connection.*is the API server running"):
        make_client(url).version()


def test_body_cut_short_is_unreachable_not_half_an_object(api, transport):
    api.on("GET", "/x", Reply(b'{"half":', headers={"Content-Length": "100"}))
    api.on("GET", "/y", Reply(chunks=[b'{"half":', CUT]))
    for path in ("/x", "/y"):
        with pytest.raises(errors.Unreachable):
            transport.send(get(path))


def test_connection_dropped_before_an_answer_says_so(api, transport):
    api.on("GET", "/x", CUT)
    with pytest.raises(errors.Unreachable) as caught:
        transport.send(get())
    assert caught.value.dropped


def test_redirect_is_not_followed(api, transport):
    api.on("GET", "/x", Reply(status=302, headers={"Location": "/y"}))
    with pytest.raises(errors.Unreadable, match="redirects"):
        transport.send(get())
    assert [c.path for c in api.calls] == ["/x"]


def test_connection_survives_an_error_answer(api, transport):
    api.on("GET", "/x", status(404, "NotFound"), Reply(b"{}"))
    with pytest.raises(errors.NotFound):
        transport.send(get())
    transport.send(get())
    assert len(api.sockets) == 1


def test_endless_error_page_is_not_read_to_its_end(api, transport):
    def page():
        while not api.closing.is_set():
            yield b"x" * 65536

    api.on("GET", "/x", lambda _: Reply(status=500, chunks=page()))
    with pytest.raises(errors.ServerError):
        transport.send(get())


def test_stream_is_ended_from_another_thread(api, transport):
    api.on("GET", "/x", Reply(chunks=[b"one", api.hang]))
    stream = transport.stream(get(read_seconds=None))
    got, done = [], threading.Event()

    def read():
        got.extend(stream)
        done.set()

    thread = threading.Thread(target=read)
    thread.start()
    wait_for(lambda: got or api.calls, "the stream to begin")
    stream.close()
    assert done.wait(5)
    thread.join(5)
    assert got in ([b"one"], [])


def test_stream_that_breaks_is_unreachable(api, transport):
    api.on("GET", "/x", Reply(chunks=[b"one", CUT]))
    chunks = iter(transport.stream(get()))
    assert next(chunks) == b"one"
    with pytest.raises(errors.Unreachable, match="broke"):
        next(chunks)


def test_many_threads_share_one_client(api, make_client):
    api.on("GET", "/api/v1/pods", listing([pod("a")], 7))
    client = make_client(api.url)
    results = []
    threads = [threading.Thread(target=lambda: results.append(client.list(PODS).items)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [len(items) for items in results] == [1] * 16


@pytest.mark.parametrize(
    "url",
    ["unix:/run/api.sock", "https://10.0.0.1:6443", "http://127.0.0.1:8001", "http://[::1]:80", "http://localhost:1"],
)
def test_good_endpoint(url):
    assert checked_endpoint(Endpoint(url)).url == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("unix:api.sock", "absolute"),
        ("unix:/" + "x" * 107, "at most 107"),
        ("http://10.0.0.1:8080", "use https"),
        ("http://example.com", "use https"),
        ("127.0.0.1:6443", "expected"),
        ("ftp://127.0.0.1", "expected"),
        ("https://", "expected"),
        ("https://h/?a=b", "query"),
    ],
)
def test_bad_endpoint(url, said):
    with pytest.raises(errors.CredentialsError, match=said):
        checked_endpoint(Endpoint(url))


def test_longest_socket_path_that_the_kernel_takes(tmp_path, make_client):
    directory = f"{tmp_path}/"
    path = directory + "s" * (107 - len(os.fsencode(directory)))
    api = FakeApi(unix_path=path)
    try:
        api.on("GET", "/version", Reply({"gitVersion": "v1"}))
        assert make_client(api.url).version().git_version == "v1"
    finally:
        api.close()


@pytest.mark.parametrize(
    ("date", "said"), [("Thu, 01 Jan 2026 10:00:00 GMT", 1_767_261_600.5), ("yesterday", None), ("", None)]
)
def test_the_servers_clock_is_known_by_the_date_of_its_last_answer(api, date, said):
    now = [100.0]
    made = Transport(TokenFileSource(Endpoint(api.url)), "slacktide-test/1", clock=lambda: now[0])
    try:
        assert made.server_seconds() is None
        api.on("GET", "/x", Reply(b"{}", headers={"Date": date}))
        made.send(get())
        assert made.server_seconds() == said
        now[0] += 30.0
        assert made.server_seconds() == (None if said is None else said + 30.0)
    finally:
        made.close()
