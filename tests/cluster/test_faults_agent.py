"""The real agent on this machine while the API server or the predictor fails it, or cannot be believed.

In each: the LS pod's cgroup stays as it is, the BE pod gets nothing more, one line says what is wrong, and all of it
goes on without a restart. The agent reaches the API server through a proxy; the runner that plays the kubelet, the
predictor and the tests go straight, so that pods come and go which the agent is not told of.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from slacktide import names
from slacktide.cluster import NAMESPACES, NODES, PODS
from slacktide.kernel.hierarchy import discover
from standalone.sweep import sweep
from tests.cluster.faults import answer, proxied
from tests.cluster.harness import free_ports
from tests.cluster.product import Cluster, Product, wait_for
from tests.cluster.trouble import OVER, SAID, Behind, Certificates, Said
from tests.pki import Pki
from tests.whole.drills import drill
from tests.whole.node import Group

HIERARCHY = discover()
CPU = HIERARCHY.controllers.get("cpu")

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        CPU is None or os.geteuid() != 0 or not os.access(CPU.path, os.W_OK), reason="needs root and a cpu controller"
    ),
]

NODE = "faulty"
ACCOUNT, SERVICE = "slacktide-agent", "slacktide-predictor"
AUDIENCE = "slacktide-predictor"
MEMORY, MILLIS = 64 << 20, 300
AWAY = "predictor away"
AGENT = """
turn_seconds: 0.25
policies: [batch_limits, weight, contention]
shortage: {run_delay_cut: 100, psi_cut: 1}
contention: {step_percent: 50, quiet_seconds: 0, min_dwell_seconds: 0, settle_seconds: 0.1}
cluster: {timeout_seconds: 1}
report: {window_seconds: 1, backoff_seconds: 0.2, backoff_max_seconds: 0.5}
"""
SILENT = {"stale_seconds": "2", "stale_windows": "1", "expire_seconds": "4"}


def put(content, path):
    """In one step, as a mounted secret changes."""
    Path(f"{path}.new").write_bytes(content if isinstance(content, bytes) else content.encode())
    os.replace(f"{path}.new", path)


class Accounts:
    """Accounts of one namespace and tokens bound to pods, for the predictor."""

    def __init__(self, client, namespace):
        self._client = client
        self._namespace = namespace
        self._post("serviceaccounts", {"metadata": {"name": ACCOUNT}})

    def _post(self, what, body):
        path = f"/api/v1/namespaces/{self._namespace}/{what}"
        return json.loads(self._client.request("POST", path, body=json.dumps(body).encode()))

    def token(self, pod):
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        spec = {"expirationSeconds": 3600, "audiences": [AUDIENCE], "boundObjectRef": bound}
        return self._post(f"serviceaccounts/{ACCOUNT}/token", {"spec": spec})["status"]["token"]


class Scene:
    """All that runs; as a running Slacktide for the helpers of `tests.whole`."""

    def __init__(self, stack, plane):
        self.client = stack.enter_context(contextlib.closing(plane.client()))
        self.cluster = Cluster(self.client)
        self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-")))
        self.namespace, self.elsewhere = (f"agent-{secrets.token_hex(4)}" for _ in range(2))
        for name in (self.namespace, self.elsewhere):
            self.client.create(NAMESPACES, {"metadata": {"name": name}})
        root = f"slacktide-test-{secrets.token_hex(4)}"
        self.state = SimpleNamespace(cgroup_root=root, drill_socket=f"{self.directory}/drill.sock")
        stack.callback(sweep, HIERARCHY, root, kill=True)
        self.certificates = Certificates(self.directory)
        self.proxy = stack.enter_context(proxied(plane.settings(), self.certificates.good))
        product = Product(plane, self.directory)
        flags = {"state_dir": f"{self.directory}/runner", "log_dir": f"{self.directory}/logs", "cgroup_root": root}
        self.runner = stack.enter_context(product.daemon("standalone.runner", "runner", node=NODE, **flags))
        stack.callback(self.client.delete, NODES, NODE)
        stack.callback(self._clear)
        self.protected = self.bound("ls", "ls", {"requests": {"cpu": "100m", "memory": "64Mi"}})
        self.be = self.bound("be", "be")
        self._predictor(stack, product)
        self._agent(stack, plane, root)

    def _predictor(self, stack, product):
        (self.directory / "pki").mkdir()
        self.pki = Pki(self.directory / "pki")
        (self.directory / "strangers").mkdir()
        stranger = Pki(self.directory / "strangers")
        name = f"subjectAltName=DNS:{SERVICE}\n"
        self.good = self.pki.issue("good", "/CN=predictor", name)
        self.bad = {
            "expired": self.pki.issue("expired", "/CN=predictor", name, days=-1),
            "of another authority": stranger.issue("other", "/CN=predictor", name),
            "for another name": self.pki.issue("name", "/CN=predictor", "subjectAltName=DNS:elsewhere\n"),
        }
        self.pair = (f"{self.directory}/tls.crt", f"{self.directory}/tls.key")
        self.show(self.good)
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        listen = {"listen": self.address, "tls__certificate_file": self.pair[0], "tls__key_file": self.pair[1]}
        allowed = f"system:serviceaccount:{self.namespace}:{ACCOUNT}"
        self.predictor = stack.enter_context(
            product.predictor("predictor-tls", auth__agents=allowed, **listen, **SILENT)
        )

    def _agent(self, stack, plane, root):
        self.accounts = Accounts(self.client, self.namespace)
        self.ca, self.token = f"{self.directory}/ca.crt", f"{self.directory}/token"
        shutil.copy(self.pki.ca, self.ca)
        put(self.accounts.token(self.protected), self.token)
        (self.directory / "agent.yaml").write_text(AGENT)
        way = Behind(plane, self.certificates.kubeconfig(self.proxy, self.directory / "agent.config"))
        report = {"report__ca_file": self.ca, "report__token_file": self.token, "report__server_name": SERVICE}
        self.agent = stack.enter_context(
            Product(way, self.directory).daemon(
                "agent",
                "agent",
                node=NODE,
                state_dir=f"{self.directory}/agent",
                cgroup_root=root,
                predictor=self.address,
                drill__listen=f"unix:{self.state.drill_socket}",
                config=f"{self.directory}/agent.yaml",
                **report,
            )
        )

    def bound(self, name, tier, resources=None, namespace=None):
        """A pod on the node, whoever has room; it is a process that sleeps."""
        batch = {names.BATCH_CPU: str(MILLIS), names.BATCH_MEMORY: str(MEMORY)}
        wanted = resources or {"requests": dict.fromkeys(batch, "0"), "limits": batch}
        container = {
            "name": "main",
            "image": names.HOST_PROCESS_IMAGE,
            "command": ["sleep", "1000"],
            "resources": wanted,
        }
        spec = {
            "nodeName": NODE,
            "terminationGracePeriodSeconds": 1,
            "serviceAccountName": ACCOUNT,
            "containers": [container],
        }
        where = namespace or self.namespace
        made = {"metadata": {"name": name, "labels": {names.TIER_LABEL: tier}}, "spec": spec}
        pod = self.client.create(PODS, made, where)
        wait_for(lambda: self.client.get(PODS, name, where).status.phase == "Running", f"{name} that runs")
        return pod

    def show(self, pair):
        """What the predictor shows to connections that begin from now on."""
        for source, target in zip(pair, self.pair, strict=True):
            put(Path(source).read_bytes(), target)

    def anew(self):
        """The agent's connection to the predictor ends, as when its files change, and another follows."""
        put(Path(self.pki.ca).read_bytes(), self.ca)

    def pod(self, name):
        return self.client.get(PODS, name, self.namespace)

    def closed(self):
        found = self.cluster.forecast(NODE)
        return found is not None and found.closed

    def logs(self):
        return "\n".join(str(line) for line in [*self.runner.log()[-15:], *self.agent.log()[-15:]])

    def _clear(self):
        for namespace in (self.namespace, self.elsewhere):
            for pod in self.client.list(PODS, namespace).items:
                self.client.delete(PODS, pod.metadata.name, namespace)
            wait_for(lambda namespace=namespace: not self.client.list(PODS, namespace).items, "end of all pods")


@pytest.fixture(scope="module")
def scene(plane):
    with contextlib.ExitStack() as stack:
        made = Scene(stack, plane)
        made.ls_group, made.be_group = Group(made, "ls"), Group(made, "be")
        wait_for(lambda: limited(made.be_group), "limits of the BE pod")
        wait_for(lambda: made.cluster.forecast(NODE) and not made.closed(), "forecast of an open node")
        yield made


def limited(group):
    return group.idle() and group.memory() == MEMORY and group.quota() == MILLIS


@contextlib.contextmanager
def watched(scene):
    """Meanwhile LS keeps all that it has and BE gets no more than its limit; the agent lives on."""
    before, most, ending = scene.ls_group.held(), [], threading.Event()

    def look():
        while not ending.wait(0.05):
            quota = scene.be_group.quota()
            most.append(float("inf") if quota is None else quota)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    assert scene.ls_group.held() == before, "LS is untouched"
    assert max(most) <= MILLIS, "BE gains nothing"
    assert scene.agent.program.process.poll() is None, "the same process as before"


API = {
    "away": (lambda scene: scene.proxy.away(), ""),
    "slow": (lambda scene: scene.proxy.delay(5.0), ""),
    "500": (lambda scene: scene.proxy.fail(answer(500)), "faulty proxy"),
    "403": (lambda scene: scene.proxy.fail(answer(403)), "faulty proxy"),
    "expired": (lambda scene: scene.proxy.heal(scene.certificates.bad["expired"]), "certificate has expired"),
}


@pytest.mark.parametrize("fault", API)
def test_without_the_api_server_ls_is_protected_all_the_same(scene, fault):
    said, late = Said(scene.agent), f"late-{fault}"
    make, words = API[fault]
    with watched(scene):
        try:
            make(scene)
            scene.proxy.cut()
            wait_for(lambda: any(words in line["detail"] for line in said(scene.agent, SAID)), "line of the agent")
            scene.bound(late, "be")
            with drill(scene, 60) as one:
                wait_for(lambda: scene.be_group.quota() <= MILLIS // 2, "cut in the kernel")
                one.abort()
            wait_for(lambda: limited(scene.be_group), "limit as before")
            # Nobody has told the agent what this is: it is left alone, as LS would be.
            assert Group(scene, late).quota() is None
        finally:
            scene.proxy.heal(scene.certificates.good)
        wait_for(lambda: limited(Group(scene, late)), "limits of the pod that came meanwhile")
        wait_for(lambda: len(said(scene.agent, OVER)) >= len(said(scene.agent, SAID)), "word that it is over")
        wait_for(lambda: scene.agent.ready, "readiness")
    said.once(scene.agent)


def certificate(name):
    def make(scene):
        scene.show(scene.bad[name])
        scene.anew()

    def mend(scene):
        scene.show(scene.good)

    return make, mend


def of_another_namespace(scene):
    """A pod with the agent's account, on the agent's node, in a namespace that is not Slacktide's."""
    stranger = Accounts(scene.client, scene.elsewhere)
    put(stranger.token(scene.bound("stranger", "ls", {}, scene.elsewhere)), scene.token)


def of_the_right_one(scene):
    put(scene.accounts.token(scene.protected), scene.token)


# What is done, how it is mended, and words of the agent's line.
PREDICTOR = {
    "expired": (*certificate("expired"), "certificate has expired"),
    "of another authority": (*certificate("of another authority"), "CERTIFICATE_VERIFY_FAILED"),
    "for another name": (*certificate("for another name"), "Hostname Verification"),
    "token of another namespace": (of_another_namespace, of_the_right_one, "system:serviceaccount:"),
}


@pytest.mark.parametrize("fault", PREDICTOR)
def test_a_predictor_that_is_not_believed_or_does_not_believe_gets_no_samples_and_sells_nothing(scene, fault):
    make, mend, words = PREDICTOR[fault]
    said = Said(scene.agent)
    acknowledged = scene.predictor.metric("slacktide_predictor_samples_total")
    with watched(scene):
        try:
            make(scene)
            (line,) = wait_for(lambda: said(scene.agent, AWAY), "line of the agent")
            assert words in line["detail"], line
            wait_for(scene.closed, "closed node")
            assert scene.cluster.published(NODE) in (0, None)
            assert len(said(scene.agent, AWAY)) == 1, "one line"
        finally:
            mend(scene)
        wait_for(lambda: not scene.closed(), "open node")
        wait_for(lambda: scene.predictor.metric("slacktide_predictor_samples_total") > acknowledged + 2, "samples")


def test_the_predictor_shows_when_its_certificate_ends_and_says_once_that_it_has(scene):
    said = Said(scene.predictor)
    expiry = 'slacktide_certificate_expiry_timestamp_seconds{part="certificate",setting="tls"}'
    assert scene.predictor.metric(expiry) > time.time() + 86400
    try:
        scene.show(scene.bad["expired"])
        for _ in range(2):
            assert 0 < scene.predictor.metric(expiry) < time.time()
        (line,) = said(scene.predictor, "certificate has expired")
        assert line["file"] == scene.pair[0]
    finally:
        scene.show(scene.good)
    assert scene.predictor.metric(expiry) > time.time() + 86400
