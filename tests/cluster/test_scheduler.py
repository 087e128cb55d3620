"""Our scheduler as a process against a real API server: by forecast, and beside the stock scheduler."""

from __future__ import annotations

import time

from benchmarks.scheduler import node_body, pod_body
from scheduler_plugins.report import scheduled_condition
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


def condition(client, namespace, name):
    return scheduled_condition(client.get(PODS, name, namespace))


def words(client, namespace, name):
    found = condition(client, namespace, name)
    return "" if found is None else found.message


def in_gang(index):
    """A pod of a gang of three."""
    body = pod_body(index, names.SCHEDULER_NAME)
    body["metadata"].update(name=f"gang-{index}", annotations={"slacktide.io/min-members": "3"})
    body["metadata"]["labels"]["slacktide.io/pod-group"] = "three"
    return body


def gang_says(client, namespace, *texts):
    """A gang that is not whole says so in each of its pods after a while."""
    for index in range(2):
        said = wait_for(lambda name=f"gang-{index}": words(client, namespace, name), "condition of a gang kept out")
        assert all(text in said for text in texts), said


def test_best_effort_pods_go_where_the_forecast_has_room(plane, client, namespace):
    bodies = [node_body(index, time.time()) for index in range(3)]
    closed(bodies[1])
    made = [client.create(NODES, body).metadata.name for body in bodies]
    try:
        with plane.slacktide("scheduler_plugins"):
            for index in range(2):
                client.create(PODS, in_gang(index), namespace)
            for index in range(6):
                client.create(PODS, pod_body(index, names.SCHEDULER_NAME), namespace)
            assert set(placed(client, namespace, 6)) == {made[0], made[2]}
            gang_says(client, namespace, "gang has fewer pods than it needs", "has 2, its minimum is 3")
            client.create(PODS, in_gang(2), namespace)
            assert set(placed(client, namespace, 9)) == {made[0], made[2]}
            assert {condition(client, namespace, f"gang-{index}").status for index in range(3)} == {"True"}
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
