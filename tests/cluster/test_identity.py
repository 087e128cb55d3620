"""Who is who, by tokens that a real API server bound and reviews: agents to the predictor, callers to drills.

What is crafted here is signed with the server's own key, so that the verdict on it is the server's.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import grpc
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from agent.drill_board import DrillBoard
from agent.drill_callers import reviews_by
from agent.drill_settings import DrillSettings
from predictor.auth import AuthSettings, Gate
from predictor.metrics import Metrics
from predictor.permissions import AUTH_PERMISSIONS, PERMISSIONS
from predictor.service import RpcServer
from slacktide.cluster import NAMESPACES, NODES, PODS, connect
from slacktide.cluster.errors import NotFound
from slacktide.transport import CertificateFiles, Tokens, may, review_token
from slacktide.transport.tokens import QUIET_SECONDS
from slacktide.v1 import drill_pb2 as drills
from slacktide.v1 import drill_pb2_grpc
from tests.agent.test_report import QUICK, reporting, sample, wait_for
from tests.agent.test_report_tls import move, put
from tests.cluster.faults import answer, proxied
from tests.cluster.harness import free_ports
from tests.cluster.product import Daemon
from tests.drill_twin import drill_server
from tests.patience import PATIENCE
from tests.pki import Pki
from tests.predictor.support import eventually
from tests.predictor.test_auth import NAME, carrying, outcome, speak
from tests.predictor.test_service import Running

AUDIENCE = "slacktide-predictor"
DEADLINE = 30 * PATIENCE
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Cluster:
    """Accounts, agents' pods on two nodes and rights in a namespace of its own."""

    def __init__(self, client, key):
        self.client = client
        self.key = key
        self.namespace = f"identity-{secrets.token_hex(3)}"
        self.nodes = [f"{self.namespace}-{name}" for name in ("one", "two")]
        self.made = []

    def start(self):
        self.client.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        for account in ("slacktide-agent", "slacktide-predictor", "operator", "web"):
            self.post(f"/api/v1/namespaces/{self.namespace}/serviceaccounts", {"metadata": {"name": account}})
        for node in self.nodes:
            self.client.create(NODES, {"metadata": {"name": node}})
        self.grant("predictor", "slacktide-predictor", [rule_of(one) for one in AUTH_PERMISSIONS])

    def stop(self):
        for pod in self.client.list(PODS, namespace=self.namespace).items:
            self.client.delete(PODS, pod.metadata.name, self.namespace, grace_period_seconds=0)
        for path in reversed(self.made):
            with contextlib.suppress(NotFound):
                self.client.request("DELETE", path)
        for node in self.nodes:
            self.client.delete(NODES, node)

    def post(self, path, body):
        return json.loads(self.client.request("POST", path, body=json.dumps(body).encode()))

    def grant(self, name, account, rules):
        """A cluster role with `rules`, bound to an account; gives its path, so that it can be taken back."""
        full = f"{self.namespace}-{name}"
        self.post(f"{RBAC}/clusterroles", {"metadata": {"name": full}, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": account, "namespace": self.namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": full}
        binding = {"metadata": {"name": full}, "roleRef": role, "subjects": [subject]}
        self.post(f"{RBAC}/clusterrolebindings", binding)
        paths = [f"{RBAC}/clusterroles/{full}", f"{RBAC}/clusterrolebindings/{full}"]
        self.made += paths
        return paths

    def name_of(self, account):
        return f"system:serviceaccount:{self.namespace}:{account}"

    def pod(self, node, account="slacktide-agent"):
        """A pod of an account on a node."""
        spec = {"nodeName": node, "serviceAccountName": account, "containers": [{"name": "c", "image": "i"}]}
        name = f"p-{secrets.token_hex(3)}"
        return self.client.create(PODS, {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec})

    def token(self, pod=None, account="slacktide-agent", audience=AUDIENCE):
        """What the kubelet gets for a pod; without one it is bound to nothing. No audience: for the API itself."""
        spec = {"expirationSeconds": 600, **({"audiences": [audience]} if audience else {})}
        if pod is not None:
            known = {"name": pod.metadata.name, "uid": pod.metadata.uid}
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **known}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        return self.post(path, {"spec": spec})["status"]["token"]

    def signed(self, token, **claims):
        """A token like another with other claims, signed by the API server's key."""
        header, payload, _ = token.split(".")
        known = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        body = f"{header}.{_base64(json.dumps({**known, **claims}).encode())}"
        command = ["openssl", "dgst", "-sha256", "-sign", self.key]
        return f"{body}.{_base64(subprocess.run(command, input=body.encode(), check=True, capture_output=True).stdout)}"


def _base64(content):
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def rule_of(permission):
    resource = "/".join(part for part in (permission.resource, permission.subresource) if part)
    return {"apiGroups": [permission.group], "resources": [resource], "verbs": [permission.verb]}


@pytest.fixture(scope="module")
def cluster(plane):
    with contextlib.closing(plane.client()) as client:
        made = Cluster(client, plane._account_key)
        made.start()
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def pki(plane, tmp_path_factory):
    made = Pki(tmp_path_factory.mktemp("pki"))
    made.server = made.issue("server", "/CN=predictor", f"subjectAltName=DNS:{NAME}\n")
    made.agent = made.issue("agent", "/CN=agent", "subjectAltName=DNS:slacktide-agent\n")
    return made


@pytest.fixture
def proxy(plane, cluster, tmp_path):
    """The way to the API server, with the predictor's own rights."""
    token = tmp_path / "api-token"
    token.write_text(cluster.token(account="slacktide-predictor", audience=None))
    with proxied(plane.settings()) as made:
        made.reach = made.settings(token_file=str(token))
        yield made


@pytest.fixture
def service(proxy, cluster, pki, tmp_path):
    """Ingest of a predictor over TLS. `settings` may be changed; its certificate lies in files of its own."""
    metrics = Metrics(CollectorRegistry())
    made = Running(tmp_path, metrics)
    pair = (str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    for source, target in zip(pki.server, pair, strict=True):
        shutil.copy(source, target)
    settings = SimpleNamespace(now=AuthSettings(agents=(cluster.name_of("slacktide-agent"),)))
    with contextlib.closing(connect(proxy.reach, user_agent="test-predictor")) as client:
        tokens = Tokens(lambda text: review_token(client, text, AUDIENCE, 5.0), lambda: settings.now.review_seconds)
        gate = Gate(lambda: settings.now, tokens, lambda user, verb, node: may(client, user, verb, "forecasts", node))
        made.server = RpcServer(
            "127.0.0.1:0", made.ingest, made.board, tls=CertificateFiles(*pair, setting="tls"), gate=gate
        )
        made.pki, made.pair, made.settings = pki, pair, settings
        try:
            with made:
                yield made
        finally:
            gate.stop()


def test_an_agent_reports_for_the_node_of_its_pod_and_for_no_other(cluster, service):
    token = cluster.token(cluster.pod(cluster.nodes[0]))
    code, words = outcome(service, token, cluster.nodes[0])
    assert code is grpc.StatusCode.OK, words
    code, words = outcome(service, token, cluster.nodes[1])
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert f"{cluster.nodes[0]!r} only" in words


def gone(cluster, pod):
    token = cluster.token(pod)
    cluster.client.delete(PODS, pod.metadata.name, cluster.namespace, grace_period_seconds=0)
    return token


REFUSED = {
    "wrong audience": (lambda cluster, pod: cluster.token(pod, audience="slacktide-drill"), "UNAUTHENTICATED"),
    "a token for the API itself": (lambda cluster, pod: cluster.token(pod, audience=None), "UNAUTHENTICATED"),
    # The API server takes a token for a minute longer than it says.
    "expired": (lambda cluster, pod: cluster.signed(cluster.token(pod), exp=int(time.time()) - 120), "UNAUTHENTICATED"),
    "pod deleted": (gone, "UNAUTHENTICATED"),
    "signature of nobody": (lambda cluster, pod: cluster.token(pod)[:-8] + "AAAAAAAA", "UNAUTHENTICATED"),
    "no token at all": (lambda cluster, pod: "not.a.token", "UNAUTHENTICATED"),
    "another account": (
        lambda cluster, pod: cluster.token(cluster.pod(cluster.nodes[0], "web"), "web"),
        "PERMISSION_DENIED",
    ),
    "bound to no pod": (lambda cluster, pod: cluster.token(), "PERMISSION_DENIED"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_who_is_refused(cluster, service, case):
    make, code = REFUSED[case]
    found, words = outcome(service, make(cluster, cluster.pod(cluster.nodes[0])), cluster.nodes[0])
    assert found is grpc.StatusCode[code], words
    assert not list(service.fleet.view(time.time()).names)


def test_the_stream_of_a_pod_that_is_deleted_ends_at_the_next_review(cluster, service):
    service.settings.now = msgspec.structs.replace(service.settings.now, review_seconds=1.0)
    pod = cluster.pod(cluster.nodes[0])
    token = cluster.token(pod)
    deleted = []

    def go_on(highest):
        if highest and not deleted:
            deleted.append(cluster.client.delete(PODS, pod.metadata.name, cluster.namespace, grace_period_seconds=0))
        return True

    assert speak(service, token, go_on, lambda: cluster.nodes[0])[0] is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("trouble", ["away", "500", "429", "403", "slow"])
def test_while_the_api_server_fails_known_agents_go_on_and_new_ones_are_told_to_come_again(
    cluster, service, proxy, trouble
):
    known, new = (cluster.token(cluster.pod(node)) for node in cluster.nodes)
    assert outcome(service, known, cluster.nodes[0])[0] is grpc.StatusCode.OK
    if trouble == "away":
        proxy.away()
    elif trouble == "slow":
        proxy.delay(60.0)
    else:
        proxy.fail(answer(int(trouble)))
    assert outcome(service, known, cluster.nodes[0])[0] is grpc.StatusCode.OK
    code, words = outcome(service, new, cluster.nodes[1])
    assert code is grpc.StatusCode.UNAVAILABLE, words
    proxy.heal()
    end = time.monotonic() + DEADLINE
    # Failed reviews are not repeated at once, so that a busy server is not asked by everybody again and again.
    while outcome(service, new, cluster.nodes[1])[0] is not grpc.StatusCode.OK:
        assert time.monotonic() < end
        time.sleep(QUIET_SECONDS / 4)


def test_a_stream_ends_with_its_token_while_nobody_can_be_asked(cluster, service, proxy):
    service.settings.now = msgspec.structs.replace(service.settings.now, review_seconds=1.0)
    ends = int(time.time() + 6 * PATIENCE)
    token = cluster.signed(cluster.token(cluster.pod(cluster.nodes[0])), exp=ends)
    away = []

    def go_on(highest):
        if highest and not away:
            away.append(proxy.away())
        return True

    code, words = speak(service, token, go_on, lambda: cluster.nodes[0])
    assert code is grpc.StatusCode.UNAVAILABLE, words
    assert time.time() > ends - 0.5


@contextlib.contextmanager
def without_reviews(cluster):
    """The predictor may not review tokens meanwhile."""
    role = f"{RBAC}/clusterroles/{cluster.namespace}-predictor"
    before = json.loads(cluster.client.request("GET", role))["rules"]

    def write(rules):
        now = json.loads(cluster.client.request("GET", role))
        cluster.client.request("PUT", role, body=json.dumps({**now, "rules": rules}).encode())

    write([rule for rule in before if rule["resources"] != ["tokenreviews"]])
    try:
        yield
    finally:
        write(before)


def test_without_the_right_to_review_nobody_comes_in_and_the_words_say_which(cluster, service):
    token = cluster.token(cluster.pod(cluster.nodes[0]))
    with without_reviews(cluster):
        wait_for(lambda: outcome(service, token, cluster.nodes[0])[0] is grpc.StatusCode.UNAVAILABLE)
        assert "tokenreviews" in outcome(service, token, cluster.nodes[0])[1]
    wait_for(lambda: outcome(service, token, cluster.nodes[0])[0] is grpc.StatusCode.OK)


@contextlib.contextmanager
def predictor_process(plane, cluster, pki):
    """The daemon as the chart starts it, with the rights of its account and no more; its log is at debug level."""
    paths = cluster.grant("daemon", "slacktide-predictor", [rule_of(one) for one in PERMISSIONS])
    token = cluster.token(account="slacktide-predictor", audience=None)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="slacktide-test-"))
        put(token, f"{directory}/api-token")
        user = {"name": "account", "user": {"tokenFile": f"{directory}/api-token"}}
        config = json.loads(Path(plane.kubeconfig()).read_text())
        config |= {"users": [user], "contexts": [{"name": "test", "context": {"cluster": "test", "user": "account"}}]}
        put(json.dumps(config), f"{directory}/kubeconfig")
        (port,) = free_ports(1)
        flags = {
            "--listen": f"127.0.0.1:{port}",
            "--tls.certificate-file": pki.server[0],
            "--tls.key-file": pki.server[1],
            "--auth.agents": cluster.name_of("slacktide-agent"),
            "--history-dir": f"{directory}/history",
            "--observe.listen": f"unix:{directory}/observe",
            "--observe.log-level": "debug",
        }
        words = [word for flag in flags.items() for word in flag]
        program = plane.daemon("predictor", *words, name="predictor-identity", kubeconfig=f"{directory}/kubeconfig")
        stack.callback(program.stop)
        daemon = Daemon(program, f"{directory}/observe")
        eventually(lambda: daemon.ready or program.process.poll() is not None, 2 * DEADLINE)
        assert daemon.ready, program.fail("is not ready")
        yield SimpleNamespace(server=SimpleNamespace(port=port), pki=pki, daemon=daemon, secrets=[token])
    for path in paths:
        cluster.client.request("DELETE", path)


def test_the_daemon_keeps_secrets_out_of_log_and_command_line_and_says_which_right_is_missing(plane, cluster, pki):
    good, bad = cluster.token(cluster.pod(cluster.nodes[0])), cluster.token(audience="slacktide-drill")
    with predictor_process(plane, cluster, pki) as running:
        assert outcome(running, good, cluster.nodes[0])[0] is grpc.StatusCode.OK
        assert outcome(running, bad, cluster.nodes[0])[0] is grpc.StatusCode.UNAUTHENTICATED
        with without_reviews(cluster):
            new = cluster.token(cluster.pod(cluster.nodes[1]))
            wait_for(lambda: outcome(running, new, cluster.nodes[1])[0] is grpc.StatusCode.UNAVAILABLE)
            wait_for(lambda: "tokenreviews" in str(running.daemon.ask("/readyz")))
            assert outcome(running, good, cluster.nodes[0])[0] is grpc.StatusCode.OK
        process = running.daemon.program.process
        said = running.daemon.program.log.read_text() + Path(f"/proc/{process.pid}/cmdline").read_text()
        assert "caller refused" in said
        keys = [line for line in Path(pki.server[1]).read_text().splitlines() if "-----" not in line]
        for secret in (good, bad, new, *running.secrets):
            assert secret not in said
            # Neither whole nor the part that proves it.
            assert secret.rpartition(".")[2] not in said
        assert not any(line in said for line in keys)


def test_an_agent_process_reports_with_its_token_and_its_secrets_stay_in_their_files(plane, cluster, pki, tmp_path):
    node = cluster.nodes[0]
    pair = pki.issue("local", "/CN=predictor", "subjectAltName=DNS:localhost\n")
    token = cluster.token(cluster.pod(node))
    (tmp_path / "token").write_text(token)
    with predictor_process(plane, cluster, SimpleNamespace(ca=pki.ca, server=pair)) as running:
        flags = {
            "--node": node,
            "--observe-only": "true",
            "--state-dir": str(tmp_path / "state"),
            "--predictor": f"localhost:{running.server.port}",
            "--report.ca-file": pki.ca,
            "--report.token-file": str(tmp_path / "token"),
            "--report.window-seconds": "1",
            "--observe.log-level": "debug",
        }
        program = plane.daemon("agent", *(word for flag in flags.items() for word in flag), name="agent-identity")
        try:
            eventually(lambda: running.daemon.metric("slacktide_predictor_samples_total") >= 2, 2 * DEADLINE)
            said = program.log.read_text() + Path(f"/proc/{program.process.pid}/cmdline").read_text()
        finally:
            program.stop()
        said += running.daemon.program.log.read_text()
    assert token not in said
    assert token.rpartition(".")[2] not in said
    assert "predictor away" not in said


def test_tokens_certificates_and_authority_change_under_load_and_nothing_is_lost(
    cluster, service, pki, tmp_path, monkeypatch
):
    monkeypatch.setattr("agent.stream._FILES_SECONDS", 0.1)
    (tmp_path / "second").mkdir()
    second = Pki(tmp_path / "second")
    new_pair = second.issue("server", "/CN=predictor", f"subjectAltName=DNS:{NAME}\n")
    pod = cluster.pod(cluster.nodes[0])
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text(cluster.token(pod))
    shutil.copy(pki.ca, ca)
    both = tmp_path / "both.crt"
    both.write_bytes(b"".join(open_bytes(path) for path in (pki.ca, second.ca)))
    settings = msgspec.structs.replace(
        QUICK, ca_file=str(ca), token_file=str(token), server_name=NAME, ack_timeout_seconds=20.0 * PATIENCE
    )
    steps = [
        lambda: put(cluster.token(pod), str(token)),
        lambda: move(str(both), str(ca)),
        lambda: [move(source, target) for source, target in zip(new_pair, service.pair, strict=True)],
        lambda: move(second.ca, str(ca)),
        lambda: put(cluster.token(pod), str(token)),
    ]
    target = f"127.0.0.1:{service.server.port}"
    (tmp_path / "spool").mkdir()
    with reporting(tmp_path / "spool", target, settings, node=cluster.nodes[0]) as (reporter, spool):
        sent = 0
        for step in steps:
            streams = reporter.counters["streams"]
            step()
            # A certificate alone opens no stream anew: connections that are open go on.
            changes = step is not steps[2]
            wait_for(lambda least=streams + changes: said(reporter) and reporter.counters["streams"] >= least)
            sent += 1
        wait_for(lambda: spool.waiting() == 0)
        assert reporter.counters["failures"] == 0
        assert reporter.counters["acknowledged"] == reporter.counters["sent"] >= sent


def said(reporter):
    """One more sample, as of now."""
    reporter.submit(sample(end=time.time()))
    return True


def open_bytes(path):
    with open(path, "rb") as file:
        return file.read()


@contextlib.contextmanager
def drilling(plane, pki, node):
    """The drill service of an agent of a node, over TLS; `dial(token)` gives a stub and what its calls carry."""
    board = DrillBoard(time.monotonic)
    settings = DrillSettings(listen="127.0.0.1:0", tls_certificate_file=pki.agent[0], tls_key_file=pki.agent[1])
    credentials = grpc.ssl_channel_credentials(open_bytes(pki.ca))
    named = [("grpc.ssl_target_name_override", "slacktide-agent")]
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(plane.client()))
        reviews = reviews_by(client, settings.audience, node)
        server = drill_server(board, settings, node=node, reviews=reviews)
        server.start()
        stack.callback(server.stop)

        def start(token):
            channel = stack.enter_context(grpc.secure_channel(f"127.0.0.1:{server.port}", credentials, options=named))
            request = drills.StartDrillRequest(pressure=drills.PRESSURE_KIND_SIGNAL, duration_millis=100, reason="test")
            call = drill_pb2_grpc.DrillServiceStub(channel).StartDrill.future(
                request, metadata=carrying(token), timeout=DEADLINE
            )
            return call.code(), call.details()

        yield SimpleNamespace(start=start, board=board, port=server.port)


def test_drills_need_a_token_for_drills_and_the_right_on_that_node(cluster, plane, pki):
    rule = {"apiGroups": ["slacktide.io"], "resources": ["drills"], "verbs": ["create", "get"]}
    cluster.grant("drills", "operator", [{**rule, "resourceNames": [cluster.nodes[0]]}])
    good = cluster.token(account="operator", audience="slacktide-drill")
    with drilling(plane, pki, cluster.nodes[0]) as agent:
        for token, code in (
            (None, "UNAUTHENTICATED"),
            (cluster.token(account="operator", audience=None), "UNAUTHENTICATED"),
            (cluster.token(account="operator"), "UNAUTHENTICATED"),
            (cluster.token(account="web", audience="slacktide-drill"), "PERMISSION_DENIED"),
        ):
            found, words = agent.start(token)
            assert found is grpc.StatusCode[code], words
        assert agent.board.current() is None
        assert agent.start(good)[0] is grpc.StatusCode.OK
        assert agent.board.current().order.caller == cluster.name_of("operator")
    with drilling(plane, pki, cluster.nodes[1]) as agent:
        found, words = agent.start(good)
        assert found is grpc.StatusCode.PERMISSION_DENIED
        assert f"create drills.slacktide.io {cluster.nodes[1]}" in words
