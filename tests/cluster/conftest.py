"""One control plane for all tests of a session that want one; each test works in a namespace of its own."""

from __future__ import annotations

import contextlib
import secrets

import pytest

from slacktide.cluster import NAMESPACES, PODS
from tests.cluster import harness


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    """A real API server."""
    reason = harness.missing()
    if reason is not None:
        pytest.skip(reason)
    with harness.control_plane(tmp_path_factory.mktemp("plane"), throughput=True) as started:
        yield started


@pytest.fixture
def client(plane):
    """A client of ours with all rights."""
    with contextlib.closing(plane.client()) as made:
        yield made


@pytest.fixture
def namespace(client):
    """Name of a namespace of the test's own; its pods are gone afterwards, so that no other test counts them."""
    name = f"test-{secrets.token_hex(4)}"
    client.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    for pod in client.list(PODS, namespace=name).items:
        client.delete(PODS, pod.metadata.name, name, grace_period_seconds=0)
