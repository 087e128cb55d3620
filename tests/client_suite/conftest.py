"""Each server is started once for all tests of the suite; each test works in a namespace of its own."""

from __future__ import annotations

import contextlib
import secrets

import pytest

from slacktide.cluster import NAMESPACES, NODES, PODS, Informer, connect, errors
from slacktide.cluster.retry import Backoff
from tests.client_suite.servers import Embedded, Real
from tests.cluster import harness
from tests.cluster.faults import proxied


@pytest.fixture(scope="session")
def embedded(tmp_path_factory):
    """The embedded server; what it did before the tests is out of its history."""
    server = Embedded(tmp_path_factory.mktemp("api"))
    try:
        server.start()
        server.forget_history()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """A real kube-apiserver."""
    reason = harness.missing()
    if reason is not None:
        pytest.skip(reason)
    server = Real(tmp_path_factory.mktemp("real"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(params=["embedded", "real"], scope="session")
def server(request):
    """Each of the two in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def client(server):
    with contextlib.closing(server.client()) as made:
        yield made


@pytest.fixture
def ns(client):
    name = f"slacktide-test-{secrets.token_hex(4)}"
    client.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    for pod in client.list(PODS, name).items:
        with contextlib.suppress(errors.NotFound):
            client.delete(PODS, pod.metadata.name, name, grace_period_seconds=0)
    client.delete(NAMESPACES, name)


@pytest.fixture
def node(client):
    name = f"slacktide-test-{secrets.token_hex(4)}"
    yield client.create(NODES, {"metadata": {"name": name, "labels": {"x": "y"}}})
    client.delete(NODES, name)


@pytest.fixture
def proxy(server):
    """A proxy in front of the server that can be told to fail."""
    with proxied(server.settings()) as made:
        yield made


@pytest.fixture
def through(proxy):
    """Makes clients that go through the proxy, with these settings."""
    with contextlib.ExitStack() as open_clients:
        yield lambda **settings: open_clients.enter_context(
            contextlib.closing(connect(proxy.settings(**settings), user_agent="slacktide-test"))
        )


@pytest.fixture
def follow():
    """Starts informers that try again soon."""
    informers = []

    def start(client, kind, **options):
        informer = Informer(client, kind, backoff=Backoff(0.02, 0.2), **options)
        informers.append(informer)
        informer.start()
        assert informer.wait_synced(30)
        return informer

    yield start
    for informer in informers:
        informer.stop()
