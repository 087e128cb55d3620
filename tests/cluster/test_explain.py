"""`explain` in a cluster: a real API server takes the question to real daemons, by the rights of whoever asks.

Pods of the components exist in the API only. Their address is one of this machine's that is not loopback, to which an
API server refuses to go; there a relay listens, which hands the question to the daemon's Unix socket.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import secrets
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from agent.act.audit import Audit, AuditLine
from agent.eviction import Way
from cli.app import App
from cli.main import main
from slacktide.cluster import NAMESPACES, NODES, PODS, EventRecorder
from slacktide.cluster.permissions import permissions
from slacktide.names import BATCH_CPU, BATCH_MEMORY, SCHEDULER_NAME, TIER_LABEL
from slacktide.objects import ObjectMeta, Pod
from standalone.probe import get
from tests.cluster.fake_kubelet import node_body
from tests.cluster.product import Cluster, Product, wait_for
from tests.cluster.simulated_agents import SimulatedAgents
from tests.cluster.test_permissions import Account

pytestmark = pytest.mark.timeout(300)

HERE, OTHER, LOOPBACK = "explained-here", "explained-there", "explained-loopback"


def address():
    """An address of this machine that is not loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found = one.getsockname()[0]
    return None if found.startswith(("127.", "169.254.", "0.")) else found


ADDRESS = address()


class Relay(http.server.ThreadingHTTPServer):
    """Answers what a daemon answers on its Unix socket, at a TCP address."""

    daemon_threads = True

    def __init__(self, path):
        super().__init__((ADDRESS or "127.0.0.1", 0), Handler)
        self.path = path

    @property
    def port(self):
        return self.server_address[1]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        code, body = get(self.server.path, self.path, 10.0)
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing to say."""


@contextlib.contextmanager
def relayed(path):
    server = Relay(path)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Slacktide:
    """Our daemons, their pods in the API, and questions to them."""

    def __init__(self, plane, client, namespace, stack, directory):
        self.cluster = Cluster(client)
        self.namespace = namespace
        self.kubeconfig = plane.kubeconfig()
        self._stack = stack
        self._directory = directory
        self.product = Product(plane, directory)

    def pod(self, component, name, node="", ip=ADDRESS):
        """The pod of a daemon that runs here as `name`."""
        port = self._stack.enter_context(relayed(f"{self._directory}/{name}.observe"))
        labels = {"app.kubernetes.io/name": "slacktide", "app.kubernetes.io/component": component}
        container = {"name": component, "image": "none", "ports": [{"name": "metrics", "containerPort": port}]}
        body = {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container], "nodeName": node}}
        self.cluster.client.create(PODS, body, self.namespace)
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}
        self.cluster.client.patch(PODS, name, self.namespace, {"status": status}, "status")

    def work(self, name, requests, tier="be"):
        """A pod for our scheduler."""
        container = {"name": "main", "image": "none", "resources": {"requests": requests, "limits": requests}}
        spec = {"schedulerName": SCHEDULER_NAME, "containers": [container]}
        metadata = {"name": name, "labels": {TIER_LABEL: tier}}
        self.cluster.client.create(PODS, {"metadata": metadata, "spec": spec}, self.namespace)


@contextlib.contextmanager
def installed(plane):
    """Ours in a namespace of its own, which is emptied in the end."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(plane.client()))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-")))
        name = f"explain-{secrets.token_hex(4)}"
        client.create(NAMESPACES, {"metadata": {"name": name}})
        try:
            yield Slacktide(plane, client, name, stack, directory)
        finally:
            for pod in client.list(PODS, name).items:
                client.delete(PODS, pod.metadata.name, name, grace_period_seconds=0)


@pytest.fixture(scope="module")
def shared(plane):
    """Two nodes, one with a real agent that only observes; a predictor that forecasts both."""
    if ADDRESS is None:
        pytest.skip("this machine has no address but loopback")
    with contextlib.ExitStack() as stack:
        slacktide = stack.enter_context(installed(plane))
        client, product = slacktide.cluster.client, slacktide.product
        for name in (HERE, OTHER):
            client.create(NODES, node_body(name))
            stack.callback(client.delete, NODES, name)
        stack.enter_context(product.predictor())
        agents = stack.enter_context(SimulatedAgents(product.predictor_address(), product.directory))
        found = {name: agents.add(name) for name in (HERE, OTHER)}
        flags = {"node": HERE, "state_dir": f"{product.directory}/agent", "observe_only": "true"}
        stack.enter_context(product.daemon("agent", "agent", **flags))
        slacktide.pod("predictor", "predictor")
        slacktide.pod("agent", "agent", HERE)
        wait_for(lambda: slacktide.cluster.reclaimable(HERE), "forecast")
        yield slacktide, found


@pytest.fixture
def slacktide(shared):
    return shared[0]


@pytest.fixture
def nodes(shared):
    return shared[1]


@pytest.fixture
def ask(capsys):
    """Ask as a person would; (exit code, standard output, standard error)."""

    def asked(slacktide, *words, kubeconfig=""):
        where = ("--kubeconfig", kubeconfig or slacktide.kubeconfig, "--system", slacktide.namespace)
        code = main(["explain", *words, *where])
        said = capsys.readouterr()
        return code, said.out, said.err

    return asked


def test_a_node_tells_its_sum_what_moved_it_and_its_ladder(slacktide, nodes, ask):
    before = slacktide.cluster.reclaimable(HERE)
    nodes[HERE].ls_cpu += 1500
    wait_for(lambda: slacktide.cluster.reclaimable(HERE) == before - 1500, "drop of the offer")
    code, out, _ = ask(slacktide, "node", HERE, "-o", "json")
    said = json.loads(out)
    assert (code, said["silent"]) == (0, [])
    newest, *_ = said["published"]["changes"]
    assert (newest["cause"], newest["offered"]["cpu_millis"]) == ("drop", before - 1500)
    assert "now 0.60 -> 2.10" in newest["why"]
    assert said["ladder"]["node"] == HERE
    assert not said["ladder"]["writes"]

    def rungs():
        ladder = json.loads(ask(slacktide, "node", HERE, "-o", "json")[1])["ladder"]
        return {rung["name"]: rung for rung in ladder["rungs"]} if not ladder["held"] else None

    # The first turns are without the pods of the API, or without rates.
    by_name = wait_for(rungs, "decided turn")
    # A machine without cgroups of a kubelet has nothing to set, either.
    assert by_name["weight"]["reason"] in {
        "no BE pod is here",
        "neither cpu.idle nor the weight can be set on this node",
    }
    assert any(signal["now"] is not None for signal in by_name["close"]["signals"])
    code, out, _ = ask(slacktide, "node", HERE)
    assert code == 0
    assert f"ladder of {HERE} (the agent, " in out
    assert "* the agent observes only: what is said below is what it would do" in out


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
def test_a_caller_with_a_wrong_clock_judges_no_forecast_by_it(slacktide, capsys, ahead):
    app = App(wall=lambda: time.time() + ahead)
    assert main(["forecast", HERE, "-o", "json", "--kubeconfig", slacktide.kubeconfig], app) == 0
    said = capsys.readouterr()
    (one,) = json.loads(said.out)["nodes"]
    assert one["freshness"] == "fresh"
    assert abs(one["age_seconds"]) < 60
    way = "ahead of" if ahead > 0 else "behind"
    assert f"s {way} the API server's; ages are by the server's" in said.err


def test_a_node_whose_agent_is_not_there_tells_the_rest(slacktide, ask):
    code, out, err = ask(slacktide, "node", OTHER)
    assert code == 0
    assert "= reclaimable" in " ".join(out.split())
    assert "last changes of what is offered" in out
    assert f"no pod of the agent of node {OTHER} is in namespace {slacktide.namespace}" in err


def test_an_address_that_the_api_server_refuses_is_said_and_the_rest_told(plane, ask):
    with installed(plane) as slacktide:
        client = slacktide.cluster.client
        client.create(NODES, node_body(LOOPBACK))
        try:
            slacktide.pod("agent", "agent", LOOPBACK, ip="127.0.0.1")
            code, out, err = ask(slacktide, "node", LOOPBACK)
        finally:
            client.delete(NODES, LOOPBACK)
    assert code == 0
    assert "nothing is sold here: no forecast was published yet" in out
    path = f"/api/v1/namespaces/{slacktide.namespace}/pods/agent:"
    assert f"the agent {slacktide.namespace}/agent was not heard (GET {path}" in err


def test_pods_are_explained_by_whichever_scheduler_has_the_record(slacktide, ask):
    product, name = slacktide.product, f"{slacktide.namespace}/huge"
    with product.scheduler("scheduler-a") as leader:
        slacktide.pod("scheduler", "scheduler-a")
        slacktide.work("huge", {BATCH_CPU: "100000", BATCH_MEMORY: "1"})
        slacktide.work("small", {"cpu": "10m", "memory": "16Mi"}, tier="ls")

        def record(pod):
            code, out, err = ask(slacktide, "pod", f"{slacktide.namespace}/{pod}", "-o", "json")
            assert code == 0, err
            return json.loads(out)

        wait_for(lambda: record("small")["state"] == "placed", "placed pod")
        small = record("small")
        assert small["source"].startswith(f"the scheduler {slacktide.namespace}/scheduler-a's record of attempt 1, ")
        assert small["cycle"]["node"] == small["node"]
        assert small["cycle"]["scores"]
        pending = wait_for(lambda: (found := record("huge"))["blocking"] and found, "record of the pod that waits")
        (refusal,) = [one for one in pending["blocking"] if one["plugin"] == "BatchForecast"]
        assert (refusal["nodes"], pending["state"]) == (2, "pending")
        with product.scheduler("scheduler-b"):
            slacktide.pod("scheduler", "scheduler-b")
            leader.program.stop()
            slacktide.work("later", {BATCH_CPU: "100001", BATCH_MEMORY: "1"})
            later = wait_for(lambda: (found := record("later"))["blocking"] and found, "record of the next leader")
            assert later["source"].startswith(f"the scheduler {slacktide.namespace}/scheduler-b's record of attempt ")
            # What the first placed only the first had on record.
            gone = record("small")
            assert gone["source"].startswith("the pod's own status: the scheduler's record of it is gone")
            assert any("scheduler-a was not heard" in one for one in gone["silent"])
    code, out, err = ask(slacktide, "pod", name)
    assert code == 0
    assert "from the pod's own status: the scheduler does not answer" in out
    assert "scheduler-b was not heard" in err


def test_a_pod_that_was_evicted_and_is_gone_is_explained_by_the_agent_that_events_name(slacktide, client, ask):
    namespace = slacktide.namespace
    gone = Pod(metadata=ObjectMeta(namespace=namespace, name="gone", uid="u"))
    line = AuditLine(
        at=1.0,
        wall=time.time() - 30,
        boot_id="b",
        namespace=namespace,
        name="gone",
        uid="u",
        way=Way.EVICT,
        outcome="sent",
        reason="LS is short although contention was cut to the end",
        numbers={"priority": "5500", "cpu_millis": "700"},
    )
    assert Audit(f"{slacktide.product.directory}/agent", 1 << 20).append(line)
    # Of a node without an agent nothing is known but what the events say.
    for node in (OTHER, HERE):
        recorder = EventRecorder(client, "slacktide-agent", node)
        recorder.record(gone, "Warning", "SlacktideEvicted", f"Evicted on {node}")
        recorder.stop(30.0)
        code, out, err = ask(slacktide, "eviction", f"{namespace}/gone")
        assert code == 0
        assert f"no pod of the agent of node {OTHER} is in namespace {namespace}" in err
        assert ("Evicted on" in out) == (node == OTHER)
    assert f"{namespace}/gone on {HERE}, " in out
    assert "ago: evicted: the API took it; LS is short although contention was cut to the end" in out
    assert "cpu_millis 0.70 CPU that the pod used" in " ".join(out.split())
    code, out, _ = ask(slacktide, "pod", f"{namespace}/gone")
    assert (code, out.splitlines()[0]) == (0, f"{namespace}/gone: not there any more; it was told to go:")


def kubeconfig(plane, token_file, directory):
    """As a person has it who is known by a token."""
    cluster = {"server": plane.url, "certificate-authority": plane.ca}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token_file.read_text()}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = directory / "person.kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)


def test_each_right_that_a_person_lacks_is_named_with_its_rule(plane, slacktide, client, tmp_path, ask):
    namespace = slacktide.namespace
    account = Account(client, namespace, tmp_path)
    person = kubeconfig(plane, account.token_file, tmp_path)
    looks = (*permissions("get", "nodes", ""), *permissions("list", "pods", ""))
    try:

        def told(allowed, wanted):
            """Rights take a moment to hold."""
            account.may(allowed)
            wait_for(lambda: wanted in "".join(map(str, ask(slacktide, "node", HERE, kubeconfig=person))), wanted)

        told(
            (),
            'may not get nodes: a ClusterRole needs the rule {apiGroups: [""], resources: ["nodes"], verbs: ["get"]}',
        )
        told(looks[:1], 'may not list pods: a ClusterRole needs the rule {apiGroups: [""], resources: ["pods"]')
        told(looks, f"may not get pods/proxy in namespace {namespace}: a Role in namespace {namespace} needs the rule")
        code, out, err = ask(slacktide, "node", HERE, kubeconfig=person)
        assert code == 0
        assert "= reclaimable" in " ".join(out.split())
        assert 'resources: ["pods/proxy"], verbs: ["get"]' in err
        told((*looks, *permissions("get", "pods/proxy", "")), f"ladder of {HERE} (the agent, ")
    finally:
        account.remove()
