"""Two of each daemon on a real control plane: one is stopped or killed, the API server goes and comes back.

The agent reports over TLS and proves its node with a bound token, as in a cluster.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from slacktide import forecast
from slacktide.cluster import LEASES, NAMESPACES, NODES, PODS, Informer
from slacktide.forecast import AGEING_TTLS
from slacktide.names import FORECAST_ANNOTATION, SYSTEM_NAMESPACE
from tests.cluster.fake_kubelet import FakeKubelet, node_body
from tests.cluster.harness import control_plane, free_ports, missing
from tests.cluster.product import CONTROLLERS, DEPLOYMENTS, Cluster, Product, be_deployment, wait_for
from tests.cluster.simulated_agents import PROMPT, SimulatedAgents
from tests.pki import Pki

pytestmark = pytest.mark.timeout(300)

NODE, NAMESPACE = "steady", "failover"
SYSTEM, ACCOUNT, SERVER = "slacktide-system", "slacktide-agent", "slacktide-predictor"


class Published:
    """All that was ever published on a node, in order: (wall seconds, millicores)."""

    def __init__(self, client):
        self.numbers = []
        self._informer = Informer(
            client, NODES, on_add=self._look, on_update=lambda _old, new: self._look(new), name="published"
        )

    def __enter__(self):
        self._informer.start()
        return self

    def __exit__(self, *_):
        self._informer.stop()

    def _look(self, node):
        text = node.metadata.annotations.get(FORECAST_ANNOTATION)
        if text:
            found = forecast.decode(text)
            self.numbers.append((found.at, found.reclaimable.cpu_millis))


class Secured:
    """What predictors listen with and agents report with: certificates, and for each node a token of a pod there."""

    def __init__(self, client, directory):
        self._client = client
        self._directory = directory
        self._pki = Pki(directory)
        self._pair = self._pki.issue("predictor", "/CN=predictor", f"subjectAltName=DNS:{SERVER}\n")
        client.create(NAMESPACES, {"metadata": {"name": SYSTEM}})
        self._post(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", {"metadata": {"name": ACCOUNT}})

    def predictor(self, port):
        certificate, key = self._pair
        return {"listen": f"127.0.0.1:{port}", "tls__certificate_file": certificate, "tls__key_file": key}

    def agent(self, node):
        spec = {"nodeName": node, "serviceAccountName": ACCOUNT, "containers": [{"name": "agent", "image": "none"}]}
        pod = self._client.create(PODS, {"metadata": {"name": f"agent-{node}"}, "spec": spec}, SYSTEM)
        known = {"kind": "Pod", "apiVersion": "v1", "name": pod.metadata.name, "uid": pod.metadata.uid}
        wanted = {"audiences": ["slacktide-predictor"], "expirationSeconds": 3600, "boundObjectRef": known}
        made = self._post(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{ACCOUNT}/token", {"spec": wanted})
        token = self._directory / f"{node}.token"
        token.write_text(made["status"]["token"])
        return msgspec.structs.replace(PROMPT, ca_file=self._pki.ca, token_file=str(token), server_name=SERVER)

    def _post(self, path, body):
        return json.loads(self._client.request("POST", path, body=json.dumps(body).encode()))


@pytest.fixture(scope="module")
def running():
    """A control plane of its own, because its API server is killed; (product, cluster, agents, daemons by name)."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-")))
        plane = stack.enter_context(control_plane(directory, throughput=True))
        product = Product(plane, directory)
        client = stack.enter_context(contextlib.closing(plane.client()))
        stack.enter_context(plane.controllers(CONTROLLERS))
        stack.enter_context(FakeKubelet(client))
        (directory / "pki").mkdir()
        secured = Secured(client, directory / "pki")
        ports = free_ports(2)
        daemons = {
            name: stack.enter_context(product.predictor(name, identity=name, **secured.predictor(port)))
            for name, port in zip(("predictor-a", "predictor-b"), ports, strict=True)
        }
        daemons |= {
            name: stack.enter_context(product.scheduler(name, identity=name)) for name in ("scheduler-a", "scheduler-b")
        }
        client.create(NODES, node_body(NODE))
        targets = ",".join(f"127.0.0.1:{port}" for port in ports)
        agents = stack.enter_context(SimulatedAgents(targets, directory, secured.agent))
        client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        client.create(DEPLOYMENTS, be_deployment("batch", 1), NAMESPACE)
        yield Cluster(client), daemons, agents.add(NODE, ls_cpu=900), plane


def leader(cluster, lease):
    found = cluster.client.get(LEASES, lease, SYSTEM_NAMESPACE)
    return found.spec.holder_identity


def other(name):
    return name[:-1] + ("b" if name.endswith("a") else "a")


def test_the_standby_takes_over_and_a_leader_that_comes_back_publishes_nothing_old(running):
    cluster, daemons, node, _ = running
    cluster.offers(NODE, 7000)
    cluster.running(NAMESPACE, "batch", 1)
    predicting = leader(cluster, "slacktide-predictor")
    placing = leader(cluster, "slacktide-scheduler")
    wait_for(lambda: daemons[other(predicting)].metric("slacktide_predictor_samples_total") > 0, "warm standby")
    stopped = daemons[predicting].program.process
    with Published(cluster.client) as seen:
        wait_for(lambda: seen.numbers, "number")
        stopped.send_signal(signal.SIGSTOP)
        daemons[placing].program.process.kill()
        # LS takes more: nobody says so until the other one leads.
        node.ls_cpu = 2900
        cluster.scale(NAMESPACE, "batch", 3)
        cluster.offers(NODE, 5000)
        assert leader(cluster, "slacktide-predictor") == other(predicting)
        cluster.running(NAMESPACE, "batch", 3)
        assert leader(cluster, "slacktide-scheduler") == other(placing)
        stopped.send_signal(signal.SIGCONT)
        count = len(seen.numbers)
        # The one that was stopped knows of old use only, and hears that it does not lead any more.
        wait_for(lambda: daemons[predicting].metric("slacktide_predictor_leader") == 0, "end of its leadership")
        wait_for(lambda: len(seen.numbers) > count + 1, "two more refreshes")
    values = [value for _, value in seen.numbers]
    assert values == sorted(values, reverse=True)
    assert set(values) == {7000, 5000}
    # The number was never so old that a reader would not have sold by it any more.
    times = [at for at, _ in seen.numbers]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < AGEING_TTLS * 20


def test_nobody_needs_a_restart_when_the_api_server_was_away(running):
    cluster, daemons, node, plane = running
    before = cluster.reclaimable(NODE)
    living = {name: one.program.process.pid for name, one in daemons.items() if one.program.process.poll() is None}
    plane.stop_api(signal.SIGKILL)
    node.ls_cpu += 1000
    time.sleep(2.0)
    assert {name: daemons[name].program.process.poll() for name in living} == dict.fromkeys(living)
    plane.start()
    cluster.offers(NODE, before - 1000)
    cluster.scale(NAMESPACE, "batch", 4)
    cluster.running(NAMESPACE, "batch", 4)
    wait_for(lambda: all(daemons[name].ready for name in living), "ready daemons")
    assert {name: daemons[name].program.process.pid for name in living} == living


def test_what_etcd_has_compacted_is_listed_anew_by_all(running):
    cluster, daemons, node, plane = running
    before = cluster.reclaimable(NODE)
    cluster.scale(NAMESPACE, "batch", 1)
    cluster.running(NAMESPACE, "batch", 1)
    living = {name: one for name, one in daemons.items() if one.program.process.poll() is None}
    plane.stop_api(signal.SIGKILL)
    plane.compact()
    node.ls_cpu += 500
    with Published(cluster.client) as seen:
        plane.start()
        cluster.offers(NODE, before - 500)
        cluster.scale(NAMESPACE, "batch", 2)
        cluster.running(NAMESPACE, "batch", 2)
        assert max(value for _, value in seen.numbers) <= before, "nobody gains"
    for name, one in living.items():
        wait_for(lambda one=one: gone(one) >= 1, f"word to {name} that its history is gone")
        wait_for(lambda one=one: one.ready, f"readiness of {name}")
        assert one.program.process.poll() is None


def gone(daemon):
    """How often its watches were told that what they ask for is history."""
    lines = daemon.ask("/metrics").splitlines()
    counts = [line.rpartition(" ")[2] for line in lines if "informer_failures_total" in line and '"Gone"' in line]
    return sum(map(float, counts))
