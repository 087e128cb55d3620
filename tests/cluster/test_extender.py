"""The stock scheduler on a real API server with our extender: by forecast while it answers, and when it is gone."""

from __future__ import annotations

import contextlib
import http.client
import json
import time

import pytest

from benchmarks.scheduler import node_body, pod_body
from slacktide.cluster import NODES, PODS
from tests.cluster.harness import free_ports
from tests.cluster.test_scheduler import STOCK, closed, nodes_of, placed, wait_for, words


def extenders(port, *, ignorable):
    return {
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{port}",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "weight": 5,
                "nodeCacheCapable": True,
                "ignorable": ignorable,
                "httpTimeout": "2s",
            }
        ]
    }


def ls_body(name):
    requests = {"cpu": "100m", "memory": "64Mi"}
    container = {"name": "main", "image": "none", "resources": {"requests": requests}}
    return {"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}}


@pytest.fixture
def nodes(client):
    """Two nodes that look alike to the stock scheduler; the forecast of the second is closed."""
    made = [client.create(NODES, body) for body in (node_body(0, time.time()), closed(node_body(1, time.time())))]
    yield [node.metadata.name for node in made]
    for node in made:
        client.delete(NODES, node.metadata.name)


@contextlib.contextmanager
def extender(plane, port):
    with plane.slacktide("scheduler_plugins.extender_main", "--listen", f"127.0.0.1:{port}") as started:
        yield started


def test_best_effort_pods_of_the_stock_scheduler_follow_the_forecast(plane, client, namespace, nodes):
    (port,) = free_ports(1)
    with extender(plane, port), plane.scheduler(extenders(port, ignorable=True)):
        # Until both have listed everything pods are refused or placed by stock rules alone: the first decides nothing.
        wait_for(lambda: _answers(port), "answer of the extender")
        for index in range(6):
            client.create(PODS, pod_body(index, STOCK), namespace)
        assert set(placed(client, namespace, 6)) == {nodes[0]}
        client.create(PODS, ls_body("online"), namespace)
        big = pod_body(9, STOCK, cpu=17000)
        client.create(PODS, big, namespace)
        text = wait_for(lambda: words(client, namespace, "pod-00009"), "condition that says why")
        assert "closed for batch work" in text
        assert "Insufficient kubernetes.io/batch-cpu" in text
        wait_for(lambda: nodes_of(client, namespace)["online"], "place for a latency-sensitive pod")


def test_latency_sensitive_pods_are_placed_while_an_ignorable_extender_is_away(plane, client, namespace, nodes):
    (port,) = free_ports(1)
    with plane.scheduler(extenders(port, ignorable=True)):
        client.create(PODS, ls_body("online"), namespace)
        assert wait_for(lambda: nodes_of(client, namespace)["online"], "place") in nodes


def test_nothing_is_placed_while_an_extender_that_must_answer_is_away(plane, client, namespace, nodes):
    (port,) = free_ports(1)
    with plane.scheduler(extenders(port, ignorable=False)):
        client.create(PODS, ls_body("online"), namespace)
        reason = wait_for(lambda: words(client, namespace, "online"), "condition that says why")
        assert "connection refused" in reason
        assert nodes_of(client, namespace)["online"] == ""
        with extender(plane, port):
            # The error queue asks again after one to ten seconds.
            assert wait_for(lambda: nodes_of(client, namespace)["online"], "place once it answers") in nodes


def _answers(port):
    """Whether the extender knows its nodes: a filter of a pod that no node can take names one of them."""
    body = {
        "Pod": {"metadata": {"name": "x", "namespace": "default", "uid": "x"}, **pod_body(0, STOCK)},
        "NodeNames": ["node-00000"],
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with contextlib.suppress(OSError), contextlib.closing(connection):
        connection.request("POST", "/filter", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status == 200 and json.loads(answer.read()).get("NodeNames") == ["node-00000"]
    return False
