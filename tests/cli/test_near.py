"""A name that is not there: what may be meant is said."""

from __future__ import annotations

import json

import pytest

from cli.near import hint, like
from tests.cli.test_cluster import be_pod, node, published


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("wroker-1", ["worker-1"]),
        ("WORKER", ["worker-1", "worker-2", "worker-3"]),
        ("gpu", ["gpu-a"]),
        ("", []),
        ("zzz", []),
    ],
)
def test_names_that_may_be_meant(name, found):
    known = ["worker-1", "worker-2", "worker-3", "worker-4", "gpu-a"]
    assert like(name, known)[: len(found) or 1] == found


def test_all_there_are_is_said_where_none_is_like_it():
    assert hint("zzz", [f"node-{index:02}" for index in range(12)]).endswith("node-09 and 2 more")
    assert hint("zzz", []) == "there is none"


@pytest.fixture
def cluster(app, twin):
    app.kubectl = True
    app.reach = lambda _: twin
    twin.nodes = [node("worker-1", published()), node("worker-2")]
    twin.put(be_pod("nightly", "worker-1"))
    return twin


def test_a_node_with_a_typing_error(command, cluster, out, err):
    assert command("forecast", "wroker-1") == 1
    assert "no node 'wroker-1'; do you mean worker-1 or worker-2?" in err.text


def test_no_node_where_there_are_several(command, cluster, out, err):
    assert command("explain", "node") == 1
    assert "which node? there are: worker-1, worker-2" in err.text


@pytest.mark.parametrize(
    ("name", "meant"), [("team/nightyl", "do you mean nightly?"), ("nightly", "do you mean team/nightly?")]
)
def test_a_pod_with_a_typing_error_or_in_another_namespace(command, cluster, out, err, name, meant):
    assert command("explain", "pod", name) == 1
    assert meant in err.text
    assert "`slacktide ps` lists them" in err.text


def test_a_pod_like_no_other(command, cluster, out, err):
    assert command("explain", "pod", "q") == 1
    assert "do you mean" not in err.text


def test_a_right_name_is_answered(command, cluster, out, err):
    assert command("forecast", "worker-1", "-o", "json") == 0
    assert [one["node"] for one in json.loads(out.text)["nodes"]] == ["worker-1"]
