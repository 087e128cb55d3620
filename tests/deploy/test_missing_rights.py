"""Each right of the table taken away once, on a real API server: the daemon's readiness names it, and nothing else."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys

import pytest

from agent import permissions as of_agent
from predictor import permissions as of_predictor
from scheduler_plugins import permissions as of_scheduler
from scheduler_plugins.config.load import load
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from scheduler_plugins.simulation.run import kinds_of
from slacktide.cluster import connect
from slacktide.cluster.permissions import Rights
from slacktide.settings import ClusterSettings
from standalone.probe import get
from tests.cluster.harness import ROOT, Program, running
from tests.cluster.product import wait_for
from tests.deploy.installation import account_kubeconfig
from tests.deploy.rights import Right, explained

_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def wanted(component):
    plugins = default_registry()
    scheduler = of_scheduler.SCHEDULER_PERMISSIONS + of_scheduler.of_lease("slacktide-scheduler", "kube-system")
    return {
        "agent": (
            *of_agent.PERMISSIONS,
            *of_agent.GPU_PERMISSIONS,
            *of_agent.DRILL_PERMISSIONS,
            *of_agent.FORECAST_PERMISSIONS,
        ),
        "predictor": of_predictor.PERMISSIONS + of_predictor.AUTH_PERMISSIONS,
        "scheduler": scheduler + of_scheduler.of_kinds(kinds_of(load(SchedulerSettings(), plugins), plugins)),
        "extender": of_scheduler.EXTENDER_PERMISSIONS + of_scheduler.BINDING_PERMISSIONS,
    }[component]


def right_of(component, one):
    resource = f"{one.resource}/{one.subresource}" if one.subresource else one.resource
    return Right(component, one.verb, one.group, resource, one.namespace, one.name)


class Accounts:
    """Makes accounts with given rights, each with a kubeconfig."""

    def __init__(self, plane, client, namespace, directory):
        self._plane, self._client, self._namespace, self._directory = plane, client, namespace, directory

    def make(self, rights):
        """Path of the kubeconfig of an account that has these rights only."""
        name = f"test-{secrets.token_hex(4)}"
        self._post(f"/api/v1/namespaces/{self._namespace}/serviceaccounts", name)
        for namespace in sorted({right.namespace for right in rights}):
            rules = [self._rule(right) for right in rights if right.namespace == namespace]
            kind, place = ("Role", f"{_RBAC}/namespaces/{namespace}") if namespace else ("ClusterRole", _RBAC)
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
            subject = {"kind": "ServiceAccount", "name": name, "namespace": self._namespace}
            self._post(f"{place}/{kind.lower()}s", name, rules=rules)
            self._post(f"{place}/{kind.lower()}bindings", name, roleRef=reference, subjects=[subject])
        return account_kubeconfig(self._plane, self._client, name, self._directory)

    def _post(self, path, name, **more):
        self._client.request("POST", path, body=json.dumps({"metadata": {"name": name}, **more}).encode())

    def _rule(self, right):
        names = {"resourceNames": [right.name]} if right.name else {}
        return {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb], **names}


@pytest.fixture
def accounts(plane, client, namespace, tmp_path):
    return Accounts(plane, client, namespace, tmp_path)


@pytest.mark.parametrize("component", ["agent", "predictor", "scheduler", "extender"])
def test_all_rights_of_the_table_are_enough(accounts, component):
    rights = [right for right in explained() if right.component == component]
    assert missing(accounts.make(rights), component, lambda found: not found) == set()


@pytest.mark.parametrize("component", ["agent", "predictor", "scheduler", "extender"])
def test_one_right_less_is_named(accounts, component):
    rights = [right for right in explained() if right.component == component]
    for lost in rights:
        config = accounts.make([right for right in rights if right != lost])
        assert missing(config, component, lambda found, lost=lost: found == {lost}) == {lost}


def missing(kubeconfig, component, done):
    """What the readiness check of a daemon finds missing, once `done` holds: RBAC follows its objects with a delay."""
    with contextlib.closing(connect(ClusterSettings(kubeconfig=kubeconfig), user_agent="test")) as client:
        found = set()

        def look():
            watch = Rights(client, wanted(component), again_seconds=0.1)
            watch._look()
            found.clear()
            found.update(right_of(component, one) for one in watch.missing())
            return done(found)

        with contextlib.suppress(AssertionError):
            wait_for(look, "verdict", 20)
        return found


@pytest.mark.parametrize(
    ("component", "module", "flags", "lost", "why"),
    [
        ("predictor", "predictor", ("--listen", "unix:{dir}/g"), "patch nodes/status", "publish"),
        ("scheduler", "scheduler_plugins", (), "create pods/binding", "place pods"),
        ("extender", "scheduler_plugins.extender_main", ("--listen", "127.0.0.1:0"), "list nodes", "room and forecast"),
        ("agent", "agent", ("--observe-only", "true", "--node", "n1"), "watch pods", "tier"),
    ],
)
def test_a_daemon_without_a_right_says_so_and_recovers(accounts, client, short, component, module, flags, lost, why):
    verb, resource = lost.split()
    rights = [right for right in explained() if right.component == component]
    (right,) = [right for right in rights if (right.verb, right.resource) == (verb, resource)]
    config = accounts.make([one for one in rights if one != right])
    places = {"agent": ("--state-dir", f"{short}/s"), "predictor": ("--history-dir", f"{short}/h")}.get(component, ())
    given = [flag.format(dir=short) for flag in (*flags, *places)]
    socket = f"{short}/o"
    command = [
        sys.executable,
        "-m",
        module,
        "--cluster.kubeconfig",
        config,
        "--observe.listen",
        f"unix:{socket}",
        *given,
    ]

    def ready():
        with contextlib.suppress(OSError):
            code, body = get(socket, "/readyz", 5.0)
            return code, body.decode()
        return 0, ""

    with running(Program(component, command, ROOT, short)):
        wait_for(lambda: f"forbids: {lost}" in ready()[1], lambda: f"word of {lost} in {ready()[1]!r}")
        assert why in ready()[1]
        assert "docs/security.md" in ready()[1]
        grant(client, config, right)
        wait_for(lambda: "permissions" not in ready()[1], lambda: f"recovery: {ready()[1]!r}", 90)


def grant(client, config, right):
    """Give the account of that kubeconfig what it lacks."""
    name = config.rpartition("/")[2].removesuffix(".kubeconfig")
    role = json.loads(client.request("GET", f"{_RBAC}/clusterroles/{name}"))
    role["rules"].append({"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]})
    client.request("PUT", f"{_RBAC}/clusterroles/{name}", body=json.dumps(role).encode())
