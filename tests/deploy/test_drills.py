"""`slacktide drill` in a cluster with one real node: chart, rights, certificates, tokens and agent are real."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import signal
import subprocess
import sys
import threading

import msgspec
import pytest

from cli.drillreport import Report
from slacktide import names
from slacktide.cluster import EVENTS, PDBS, PODS
from slacktide.cluster.errors import NotFound
from tests.cluster import harness
from tests.cluster.harness import ROOT
from tests.cluster.local_node import why_not
from tests.cluster.product import Cluster, wait_for
from tests.deploy.chart import NAMESPACE, Refused
from tests.deploy.installation import account_kubeconfig
from tests.deploy.local import NODE, local_cluster
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

SECONDS = 120 * PATIENCE
VALUES = {
    "agent.drills.enabled": "true",
    # Once a year; the test does not wait for it.
    "drills.schedule": "0 0 1 1 *",
    "drills.duration": "500ms",
    "drills.lastNode": "true",
    "agent.settings.policies": "{batch_limits,weight,contention,evict}",
    "agent.settings.turn_seconds": "500ms",
    # A busy machine is no flood, and no trouble either; how fast it is, is not what is tested.
    "agent.settings.shortage.run_delay_cut": "100",
    "agent.settings.shortage.psi_cut": "1",
    "agent.settings.drill.refuse_in_trouble": "false",
    **{
        f"agent.settings.drill_targets.{step}_seconds": "300"
        for step in ("detected", "throttled", "evicted", "recovered")
    },
    "agent.settings.contention.quiet_seconds": "0",
    "agent.settings.contention.min_dwell_seconds": "0",
    "agent.settings.contention.settle_seconds": "100ms",
    "agent.settings.evict.fresh_samples": "1",
    "agent.settings.evict.pressure_settle_seconds": "500ms",
    "agent.settings.evict.quiet_seconds": "0",
    "agent.settings.evict.min_dwell_seconds": "0",
}


@pytest.fixture(scope="module")
def local(tmp_path_factory, helm):
    reason = harness.missing()
    if reason is not None:
        pytest.skip(reason)
    with local_cluster(tmp_path_factory.mktemp("drills"), helm) as made:
        try:
            made.install(**VALUES)
        except Refused as error:
            pytest.fail(f"{error}\n{made.words()}")
        # The first turns of an agent decide nothing.
        wait_for(lambda: Cluster(made.client).forecast(NODE), made.words, 120)
        yield made


def words_of(local, *words, kubeconfig=""):
    config = kubeconfig or local.plane.kubeconfig()
    command = [sys.executable, "-m", "cli", "drill", *words, "--kubeconfig", config]
    return {"args": command, "cwd": ROOT, "stdin": subprocess.DEVNULL, "text": True}


def drill(local, *words, kubeconfig=""):
    """One call, to its end."""
    given = words_of(local, *words, kubeconfig=kubeconfig)
    return subprocess.run(**given, capture_output=True, check=False, timeout=SECONDS)


def run(local, *words, **more):
    return drill(local, "run", "--node", NODE, "--yes", "--last-node", *words, **more)


def report_of(done):
    (found,) = json.loads(done.stdout)["drills"]
    return msgspec.convert(found, Report)


class Running:
    """A call that goes on; `said` is what it told so far."""

    def __init__(self, local, *words):
        given = words_of(local, "run", "--node", NODE, "--yes", "--last-node", *words)
        self.process = subprocess.Popen(**given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self._lines = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        self._lines.extend(iter(self.process.stderr.readline, ""))

    @property
    def said(self):
        return "".join(self._lines)

    def says(self, text):
        wait_for(lambda: text in self.said, lambda: f"{text!r} in {self.said!r}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self._thread.join()
        self.process.stderr.close()


def records(local):
    listed = json.loads(drill(local, "list", "-o", "json").stdout)["drills"]
    return {one["id"]: msgspec.convert(one, Report) for one in listed}


def status(local):
    """What the agent says of its last turn."""
    selector = "app.kubernetes.io/component=agent"
    (pod,) = local.client.list(PODS, NAMESPACE, label_selector=selector).items
    with contextlib.closing(http.client.HTTPConnection(pod.status.pod_ip, 9464, timeout=10)) as connection:
        connection.request("GET", "/status")
        return json.loads(connection.getresponse().read())


@pytest.fixture
def batch(local):
    """A best-effort pod that uses CPU, on the node; the agent knows it."""
    client, name = local.client, f"batch-{secrets.token_hex(3)}"
    container = {"name": "main", "image": "none", "command": ["sh", "-c", "while :; do :; done"]}
    body = {
        "metadata": {"name": name, "labels": {names.TIER_LABEL: "BE", "app": "batch"}},
        "spec": {"nodeName": NODE, "terminationGracePeriodSeconds": 1, "containers": [container]},
    }
    client.create(PODS, body, "default")

    def known():
        mine = [one for one in status(local)["pods"] if one["name"] == name]
        return mine and mine[0]["usage"]["cpu_millis"]

    wait_for(known, local.words, 120)
    yield name
    for remove in (lambda: client.delete(PODS, name, "default"), lambda: client.delete(PDBS, "kept", "default")):
        with contextlib.suppress(NotFound):
            remove()
    wait_for(lambda: not client.list(PODS, "default").items, local.words, 120)


def test_the_only_node_for_batch_work_is_drilled_on_request_alone(local):
    done = drill(local, "run", "--node", NODE, "--yes", "--duration", "500ms", "-o", "json")
    assert done.returncode == 3, done.stderr
    assert "only node where best-effort work may go" in report_of(done).message
    done = drill(local, "run", "--node", "locall", "--yes")
    assert done.returncode == 2
    assert f"nearest known: {NODE}" in done.stderr


def test_a_drill_that_evicts_within_budgets(local, batch, tmp_path):
    client = local.client
    kept = {"minAvailable": 1, "selector": {"matchLabels": {"app": "batch"}}}
    client.create(PDBS, {"metadata": {"name": "kept"}, "spec": kept}, "default")
    wait_for(lambda: client.get(PDBS, "kept", "default").status.observed_generation, "budget in force")
    words = ("--victims-max", "1", "--duration", "20s", "--reason", "game day")
    done = run(local, *words)
    assert done.returncode == 3, done.stderr
    assert f"budget default/kept lets 0 of its pods go now, 1 would: default/{batch}" in done.stdout
    assert client.get(PODS, batch, "default").metadata.deletion_timestamp is None

    client.delete(PDBS, "kept", "default")
    target = tmp_path / "report.md"
    done = run(local, *words, "--report", str(target))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"default/{batch} evicted" in done.stdout
    wait_for(lambda: not client.list(PODS, "default").items, "end of the victim")
    newest = next(iter(records(local).values()))
    assert newest.passed
    assert [one.name for one in newest.victims if one.evicted] == [batch]
    assert newest.id in target.read_text()
    assert 0 <= newest.detected_millis <= newest.throttled_millis <= newest.evicted_millis < newest.recovered_millis
    steps = [one.step for one in newest.timeline]
    assert steps.index("raised") < steps.index("throttled") < steps.index("lowered") < steps.index("recovered")
    assert drill(local, "report", newest.id).stdout == target.read_text()

    def told():
        events = client.list(EVENTS).items
        return {one.involved_object.kind for one in events if newest.id in one.message} >= {"Node", "Pod"}

    wait_for(told, "events of the drill on node and pod")


def test_a_caller_that_is_asked_to_end_has_the_node_restored(local, batch):
    with Running(local, "--duration", "300s") as caller:
        caller.says("throttled")
        # Nobody else meanwhile, on this node or another.
        done = run(local, "--duration", "500ms")
        assert done.returncode == 3, done.stdout
        assert "runs" in done.stdout
        caller.process.send_signal(signal.SIGTERM)
        assert caller.process.wait(SECONDS) == 128 + signal.SIGTERM, caller.said
    newest = next(iter(records(local).values()))
    assert (newest.phase, newest.passed) == ("aborted", False)
    assert newest.restored
    done = run(local, "--duration", "500ms")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_caller_that_is_killed_is_noticed_and_its_place_taken_over(local):
    with Running(local, "--duration", "300s") as caller:
        (mine,) = wait_for(lambda: [one for one in records(local).values() if not one.ended], "record of the drill")
        caller.process.kill()
        caller.process.wait()
        # What its caller never said is asked of the node.
        wait_for(lambda: "nobody watched" in drill(local, "show", mine.id).stdout, "end by the dead-man timer")
    done = run(local, "--duration", "500ms")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "still lives" in done.stderr
    assert mine.id in drill(local, "list", "--node", NODE).stdout


def person(local, name, directory, *roles):
    """The kubeconfig of an account of its own, bound to roles of the chart: (kind, name)."""
    post = local.client.request
    post(
        "POST",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
        body=json.dumps({"metadata": {"name": name}}).encode(),
    )
    for kind, role in roles:
        bind(local, name, kind, role)
    return account_kubeconfig(local.plane, local.client, name, directory)


def bind(local, name, kind, role):
    """Give an account what a role has: ClusterRoles in the cluster, Roles in our namespace."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    place = rbac if kind == "ClusterRole" else f"{rbac}/namespaces/{NAMESPACE}"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    body = {"metadata": {"name": f"{name}-{role}"}, "roleRef": reference, "subjects": [subject]}
    local.client.request("POST", f"{place}/{kind.lower()}bindings", body=json.dumps(body).encode())


def ask(config, *words):
    command = [sys.executable, "-m", "cli", *words, "--kubeconfig", config]
    return subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, text=True, capture_output=True, check=False, timeout=SECONDS
    )


def test_who_may_only_look_sees_all_and_may_not_drill(local, batch, tmp_path):
    config = person(local, "onlooker", tmp_path, ("ClusterRole", "slacktide-view"), ("Role", "slacktide-view"))

    def explained():
        done = ask(config, "explain", "node", NODE)
        return (
            done.returncode == 0 and "= reclaimable" in " ".join(done.stdout.split()) and "may not" not in done.stderr
        )

    # Bindings take a moment to hold. No component answers: the API server goes to no address of its own machine.
    wait_for(explained, lambda: ask(config, "explain", "node", NODE).stderr)
    for words, wanted in (
        (("ps",), batch),
        (("top", "--once"), NODE),
        (("forecast",), NODE),
        (("events",), ""),
        (("explain", "pod", f"default/{batch}"), "tier BE"),
        (("explain", "eviction"), ""),
        (("drill", "list"), ""),
    ):
        done = ask(config, *words)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        assert "may not" not in done.stderr, words
        assert wanted in done.stdout, words
    done = run(local, "--duration", "500ms", kubeconfig=config)
    assert done.returncode == 3
    assert "may not" in done.stderr + done.stdout


def test_a_missing_right_is_named(local, tmp_path):
    config = person(local, "person", tmp_path)
    done = run(local, "--duration", "500ms", kubeconfig=config)
    assert done.returncode == 3
    assert "may not list nodes" in done.stderr + done.stdout
    assert 'verbs: ["list"]' in done.stderr + done.stdout
    for kind in ("ClusterRole", "Role"):
        bind(local, "person", kind, "slacktide-drill-plan")

    def refused():
        done = run(local, "--duration", "500ms", kubeconfig=config)
        assert done.returncode == 3
        return done.stderr + done.stdout

    wait_for(lambda: "may not make tokens" in refused(), refused)
    bind(local, "person", "Role", "slacktide-drill-token")

    def drilled():
        done = run(local, "--duration", "500ms", kubeconfig=config)
        return done.returncode == 0

    wait_for(drilled, "drill with the rights of the page")


def test_the_job_of_the_schedule_drills_with_its_own_account(local):
    client = local.client
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}"
    template = json.loads(client.request("GET", f"{jobs}/cronjobs/slacktide-drill"))["spec"]["jobTemplate"]
    before = records(local).keys()
    body = {"metadata": {"name": "drill-now", **template["metadata"]}, "spec": template["spec"]}
    client.request("POST", f"{jobs}/jobs", body=json.dumps(body).encode())

    def status():
        return json.loads(client.request("GET", f"{jobs}/jobs/drill-now"))["status"]

    def pod():
        found = client.list(PODS, NAMESPACE, label_selector="app.kubernetes.io/component=drill").items
        return "\n".join(local.node.log(NAMESPACE, one.metadata.name) for one in found)

    wait_for(lambda: status().get("succeeded") or status().get("failed"), lambda: f"end of the job: {pod()}")
    assert status().get("succeeded") == 1, pod()
    ((_, newest),) = ((name, one) for name, one in records(local).items() if name not in before)
    assert (newest.reason, newest.passed) == ("scheduled", True)
    assert newest.id in pod()
