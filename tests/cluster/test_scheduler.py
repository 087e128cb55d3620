"""Our scheduler as a process against a real API server: by forecast, and beside the stock scheduler."""

from __future__ import annotations

import time

from benchmarks.scheduler import node_body, pod_body
from slacktide import names
from slacktide.cluster import NODES, PODS
from slacktide.forecast import Amount, Forecast, Terms, encode
from tests.patience import PATIENCE

STOCK = "default-scheduler"


def wait_for(condition, what, seconds=60.0):
    deadline = time.monotonic() + seconds * PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds:.0f} s"
        time.sleep(0.05)
    return found


def closed(body):
    nothing = Amount()
    terms = Terms(capacity=nothing, reserve=nothing, peak=nothing, now=nothing, sold=nothing)
    text = encode(
        Forecast(at=time.time(), ttl_seconds=600, peak=nothing, reclaimable=nothing, terms=terms, closed="drill")
    )
    body["metadata"]["annotations"] = {names.FORECAST_ANNOTATION: text}
    return body


def nodes_of(client, namespace):
    return {pod.metadata.name: pod.spec.node_name for pod in client.list(PODS, namespace=namespace).items}


def placed(client, namespace, count):
    def all_placed():
        found = [node for node in nodes_of(client, namespace).values() if node]
        return found if len(found) == count else None

    return wait_for(all_placed, f"{count} pods on nodes")


def words(client, namespace, name):
    pod = client.get(PODS, name, namespace)
    return next((one.message for one in pod.status.conditions if one.type == "PodScheduled"), "")


def test_best_effort_pods_go_where_the_forecast_has_room(plane, client, namespace):
    bodies = [node_body(index, time.time()) for index in range(3)]
    closed(bodies[1])
    made = [client.create(NODES, body).metadata.name for body in bodies]
    try:
        with plane.slacktide("scheduler_plugins"):
            for index in range(6):
                client.create(PODS, pod_body(index, names.SCHEDULER_NAME), namespace)
            assert set(placed(client, namespace, 6)) == {made[0], made[2]}
            big = pod_body(99, names.SCHEDULER_NAME)
            big["spec"]["containers"][0]["resources"]["requests"][names.BATCH_CPU] = "18000"
            big["spec"]["containers"][0]["resources"]["limits"][names.BATCH_CPU] = "18000"
            client.create(PODS, big, namespace)
            text = wait_for(lambda: words(client, namespace, "pod-00099"), "condition that says why")
            assert "0/3 nodes are available" in text
            assert "closed for batch work" in text
            # Room that appears wakes it.
            client.create(NODES, node_body(3, time.time()))
            made.append("node-00003")
            wait_for(lambda: nodes_of(client, namespace)["pod-00099"] == "node-00003", "place on the new node")
    finally:
        for name in made:
            client.delete(NODES, name)


def test_two_schedulers_side_by_side_never_sell_the_same_room(plane, client, namespace):
    bodies = [node_body(index, time.time()) for index in range(4)]
    made = [client.create(NODES, body).metadata.name for body in bodies]
    try:
        with plane.slacktide("scheduler_plugins"), plane.scheduler():
            # Ten pods of a core each fit twice over; both schedulers see what the other has placed.
            for index in range(20):
                client.create(PODS, pod_body(index, STOCK if index % 2 else names.SCHEDULER_NAME), namespace)
            placed(client, namespace, 20)
        sold: dict[str, int] = {}
        for pod in client.list(PODS, namespace=namespace).items:
            sold[pod.spec.node_name] = sold.get(pod.spec.node_name, 0) + 1000
        assert sum(sold.values()) == 20_000
        assert max(sold.values()) <= 20_000
    finally:
        for name in made:
            client.delete(NODES, name)
