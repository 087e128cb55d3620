"""The predictor beside another writer of batch resources, on a real API server: managedFields say who it was."""

from __future__ import annotations

import contextlib

import pytest

from predictor.writers import find_writer
from slacktide.cluster import NODES, connect
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from slacktide.settings import ResourceNames


@pytest.fixture
def node(client, namespace):
    name = f"n-{namespace}"
    client.create(NODES, {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
    yield name
    client.delete(NODES, name)


@pytest.fixture
def write(plane, node):
    """A write of a node's status under another program's name."""

    def wrote(manager, amount, resource=BATCH_CPU, parts=("capacity", "allocatable")):
        body = {"status": {part: {resource: str(amount)} for part in parts}}
        with contextlib.closing(connect(plane.settings(), user_agent=f"{manager}/v1 (linux/amd64)")) as other:
            other.patch(NODES, node, None, body, subresource="status")

    return wrote


def test_the_last_writer_is_named_and_we_and_the_kubelet_are_none(client, node, write):
    names = ResourceNames(cpu=BATCH_CPU, memory=BATCH_MEMORY)
    assert find_writer(client, node, names) == ""
    write("slacktide-predictor", 4000)
    write("kubelet", 3000, parts=("allocatable",))
    assert find_writer(client, node, names) == ""
    write("koord-manager", 5000)
    assert find_writer(client, node, names) == "koord-manager"
    # Who writes other names is none of our business.
    write("other", 1, resource="example.com/cards")
    assert find_writer(client, node, names) == "koord-manager"
    # What we set right is ours again: of a writer that is gone nothing stays behind.
    write("slacktide-predictor", 4000)
    assert find_writer(client, node, names) == ""


def test_a_node_that_is_gone_was_written_by_nobody(client):
    assert find_writer(client, "never-was", ResourceNames()) == ""
