"""Predictor, scheduler and extender as processes on a real control plane: what Deployments get as nodes change."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from pathlib import Path

import pytest

from slacktide.cluster import NAMESPACES, NODES, PDBS, PODS
from slacktide.cluster.errors import NotFound
from slacktide.cluster.evict import Outcome
from tests.cluster.fake_kubelet import FakeKubelet, node_body
from tests.cluster.harness import free_ports
from tests.cluster.product import CONTROLLERS, DEPLOYMENTS, STOCK, Cluster, Product, be_deployment, deployment, wait_for
from tests.cluster.simulated_agents import SimulatedAgents
from tests.cluster.test_extender import extenders

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def product(plane):
    with tempfile.TemporaryDirectory(prefix="st-") as directory:
        yield Product(plane, Path(directory))


@pytest.fixture(scope="module")
def running(plane, product):
    """Everything but schedulers of the stock kind: (cluster, agents)."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(plane.client()))
        stack.enter_context(plane.controllers(CONTROLLERS))
        stack.enter_context(FakeKubelet(client))
        stack.enter_context(product.predictor())
        stack.enter_context(product.scheduler())
        agents = stack.enter_context(
            SimulatedAgents(product.predictor_address(), Path(stack.enter_context(tempfile.TemporaryDirectory())))
        )
        yield Cluster(client), agents


@pytest.fixture
def cluster(running):
    return running[0]


@pytest.fixture
def nodes(running):
    """Makes nodes of 8 cores with agents; gone afterwards."""
    cluster, agents = running
    made = []

    def make(*names, **use):
        found = {}
        for name in names:
            if name not in made:
                made.append(name)
            cluster.client.create(NODES, node_body(name))
            found[name] = agents.add(name, **use)
        return found

    yield make
    for name in made:
        agents.remove(name)
        cluster.client.delete(NODES, name)


@pytest.fixture
def namespace(cluster):
    name = f"test-{secrets.token_hex(4)}"
    cluster.client.create(NAMESPACES, {"metadata": {"name": name}})
    yield name
    cluster.client.delete(NAMESPACES, name)

    def ended():
        for pod in cluster.client.list(PODS, name).items:
            with contextlib.suppress(NotFound):
                cluster.client.delete(PODS, pod.metadata.name, name, grace_period_seconds=0)
        return not cluster.client.list(PODS, name).items

    wait_for(ended, f"end of the pods of {name}")


def test_a_deployment_goes_where_the_forecast_has_room_and_gives_way_to_services(plane, cluster, nodes, namespace):
    made = nodes("wide", ls_cpu=900) | nodes("narrow", ls_cpu=5900) | nodes("full", ls_cpu=7900)
    for name, offered in (("wide", 7000), ("narrow", 2000), ("full", 0)):
        cluster.offers(name, offered)
    cluster.client.create(DEPLOYMENTS, be_deployment("batch", 9), namespace)
    assert cluster.per_node(namespace, "batch", 9) == {"wide": 7, "narrow": 2}
    cluster.scale(namespace, "batch", 10)
    text = wait_for(lambda: cluster.words(namespace, "batch"), "condition that says why")
    assert "0/3 nodes are available" in text
    assert "kubernetes.io/batch-cpu" in text
    cluster.scale(namespace, "batch", 3)
    cluster.running(namespace, "batch", 3)
    # A service scales up on the wide node: what was its room is published no more.
    with plane.scheduler():
        where = {"kubernetes.io/hostname": "wide"}
        service = deployment("shop", 1, {"cpu": "1500m", "memory": "128Mi"}, scheduler=STOCK, nodeSelector=where)
        cluster.client.create(DEPLOYMENTS, service, namespace)
        cluster.running(namespace, "shop", 1)
        # What a pod asks for that no agent has measured yet counts beside all that is used: 900 + 100 + 1500.
        cluster.offers("wide", 5500)
        cluster.scale(namespace, "shop", 4)
        cluster.running(namespace, "shop", 4)
        cluster.offers("wide", 1000)
        # The agent measures more than was ever asked for: nothing is offered, what is sold is still in the status.
        made["wide"].ls_cpu = 7950
        sold = sum(node == "wide" for node in cluster.running(namespace, "batch", 3).values())
        wait_for(
            lambda: (cluster.reclaimable("wide"), cluster.published("wide")) == (0, 1000 * sold), "end of the offer"
        )


def test_a_cordoned_node_is_drained_within_its_budget_and_pods_go_elsewhere(cluster, nodes, namespace):
    nodes("first")
    cluster.offers("first", 7400)
    cluster.client.create(DEPLOYMENTS, be_deployment("batch", 4), namespace)
    assert cluster.per_node(namespace, "batch", 4) == {"first": 4}
    nodes("second")
    cluster.offers("second", 7400)
    body = {"metadata": {"name": "three"}, "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "batch"}}}}
    cluster.client.create(PDBS, body, namespace)
    wait_for(
        lambda: cluster.client.get(PDBS, "three", namespace).status.disruptions_allowed == 1, "budget of one disruption"
    )
    cluster.cordon("first")
    cluster.cordon("second")
    one, *others = cluster.pods(namespace, "batch")
    assert cluster.client.evict(one).outcome is Outcome.EVICTED
    wait_for(lambda: "unschedulable" in cluster.words(namespace, "batch"), "condition that says why")
    # Its replacement has no place, so the budget is used up.
    assert cluster.client.evict(others[0]).outcome is Outcome.BLOCKED
    cluster.cordon("second", unschedulable=False)
    assert cluster.per_node(namespace, "batch", 4) == {"first": 3, "second": 1}
    for pod in others:
        wait_for(
            lambda pod=pod: cluster.client.evict(pod).outcome is Outcome.EVICTED, f"eviction of {pod.metadata.name}"
        )
    assert cluster.per_node(namespace, "batch", 4) == {"second": 4}
    # The drained node is offered whole again; nothing comes to it while it is cordoned.
    cluster.offers("first", 7400)


def test_a_node_that_is_made_again_begins_anew(running, cluster, nodes, namespace):
    agents = running[1]
    nodes("gone", "stays")
    cluster.offers("gone", 7400)
    cluster.client.create(DEPLOYMENTS, be_deployment("batch", 8), namespace)
    assert set(cluster.per_node(namespace, "batch", 8)) == {"gone", "stays"}
    uid = cluster.client.get(NODES, "gone").metadata.uid
    agents.remove("gone")
    cluster.client.delete(NODES, "gone")
    for pod in cluster.pods(namespace, "batch"):
        if pod.spec.node_name == "gone":
            # What the garbage collector of pods does a minute later.
            cluster.client.delete(PODS, pod.metadata.name, namespace, grace_period_seconds=0)
    wait_for(lambda: cluster.words(namespace, "batch"), "pod that waits")
    nodes("gone", ls_cpu=4900)
    cluster.offers("gone", 3000)
    assert cluster.client.get(NODES, "gone").metadata.uid != uid
    assert cluster.per_node(namespace, "batch", 8) == {"gone": 1, "stays": 7}
    # Nothing of the machine that was called so before is left in the numbers.
    wait_for(lambda: cluster.forecast("gone").terms.sold.cpu_millis == 1000, "one pod sold")


def test_a_deleted_namespace_gives_its_room_back(cluster, nodes, namespace):
    nodes("only")
    cluster.offers("only", 7400)
    other = f"{namespace}-other"
    cluster.client.create(NAMESPACES, {"metadata": {"name": other}})
    cluster.client.create(DEPLOYMENTS, be_deployment("first", 7), other)
    cluster.running(other, "first", 7)
    cluster.client.create(DEPLOYMENTS, be_deployment("second", 7), namespace)
    wait_for(lambda: cluster.words(namespace, "second"), "pod that waits")
    wait_for(lambda: cluster.forecast("only").terms.sold.cpu_millis == 7000, "sold room in the annotation")
    cluster.client.delete(NAMESPACES, other)
    cluster.running(namespace, "second", 7)
    assert cluster.reclaimable("only") == 7400


def test_both_ways_of_placing_side_by_side_never_sell_room_twice(plane, product, cluster, nodes, namespace):
    names = [f"node-{index}" for index in range(4)]
    nodes(*names)
    for name in names:
        cluster.offers(name, 7400)
    (port,) = free_ports(1)
    with product.extender(port), plane.scheduler(extenders(port, ignorable=False)):
        cluster.client.create(DEPLOYMENTS, be_deployment("ours", 14), namespace)
        cluster.client.create(DEPLOYMENTS, be_deployment("theirs", 14, scheduler=STOCK), namespace)
        # A place that both chose at the same moment is refused by the kubelet, and its pod made anew.
        ours, theirs = cluster.per_node(namespace, "ours", 14), cluster.per_node(namespace, "theirs", 14)
        assert {name: ours.get(name, 0) + theirs.get(name, 0) for name in names} == dict.fromkeys(names, 7)
