"""Roles of a real API server: with what the lists say nothing is missing, with one verb less readiness names it."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import tempfile
from pathlib import Path

import pytest

from agent.permissions import GPU_PERMISSIONS
from agent.permissions import PERMISSIONS as AGENT
from predictor.permissions import PERMISSIONS as PREDICTOR
from scheduler_plugins.permissions import BINDING_PERMISSIONS, EXTENDER_PERMISSIONS, SCHEDULER_PERMISSIONS, of_lease
from slacktide.cluster import Rights, connect
from tests.cluster.faults import proxied
from tests.cluster.harness import ROOT, Program
from tests.cluster.product import Product, wait_for

RBAC = "/apis/rbac.authorization.k8s.io/v1"
LISTS = {
    "agent": (*AGENT, *GPU_PERMISSIONS),
    "predictor": PREDICTOR,
    "scheduler": (*SCHEDULER_PERMISSIONS, *of_lease("slacktide-scheduler", "kube-system")),
    "extender": (*EXTENDER_PERMISSIONS, *BINDING_PERMISSIONS),
}


def rule(one):
    what = f"{one.resource}/{one.subresource}" if one.subresource else one.resource
    names = {"resourceNames": [one.name]} if one.name else {}
    return {"apiGroups": [one.group], "resources": [what], "verbs": [one.verb], **names}


class Account:
    """A service account, its role, and a file with its token."""

    def __init__(self, client, namespace, directory):
        self.name = f"robot-{secrets.token_hex(4)}"
        self._client = client
        where = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self._post(where, {"metadata": {"name": self.name}})
        self._post(f"{RBAC}/clusterroles", {"metadata": {"name": self.name}, "rules": []})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self.name}
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": namespace}
        self._post(
            f"{RBAC}/clusterrolebindings", {"metadata": {"name": self.name}, "roleRef": role, "subjects": [subject]}
        )
        self.token_file = directory / self.name
        self.token_file.write_text(self._post(f"{where}/{self.name}/token", {})["status"]["token"])

    def _post(self, path, body):
        return json.loads(self._client.request("POST", path, body=json.dumps(body).encode()))

    def may(self, permissions):
        """What the account may do from now on."""
        patch = json.dumps({"rules": [rule(one) for one in permissions]}).encode()
        path, kind = f"{RBAC}/clusterroles/{self.name}", "application/merge-patch+json"
        self._client.request("PATCH", path, body=patch, content_type=kind)

    def remove(self):
        for path in (f"{RBAC}/clusterrolebindings/{self.name}", f"{RBAC}/clusterroles/{self.name}"):
            self._client.request("DELETE", path)


@pytest.fixture
def account(client, namespace, tmp_path):
    made = Account(client, namespace, tmp_path)
    yield made
    made.remove()


@pytest.fixture
def proxy(plane):
    with proxied(plane.settings()) as made:
        yield made


def looked(rights):
    """As after a denial."""
    rights._news.set()
    return rights


@pytest.mark.parametrize("component", LISTS)
def test_each_verb_that_is_missing_is_named_until_it_is_granted(account, proxy, component):
    wanted = LISTS[component]
    account.may(wanted)
    with contextlib.closing(connect(proxy.settings(str(account.token_file)), user_agent="test")) as mine:
        rights = Rights(mine, wanted, again_seconds=0.05)
        rights.start()
        try:
            for left_out in wanted:
                account.may([one for one in wanted if one != left_out])
                wait_for(lambda lacks=(left_out,): looked(rights).missing() == lacks, f"missing {left_out}", 30)
                assert str(left_out) in rights.problem()
                account.may(wanted)
                wait_for(lambda: rights.problem() is None, f"granted {left_out}", 30)
        finally:
            rights.stop()


class AsAccount:
    """Starts daemons that may do what an account may; for `Product`."""

    def __init__(self, directory, url, token_file):
        self._directory = directory
        self._flags = ["--cluster.server", url, "--cluster.token-file", str(token_file)]

    def daemon(self, module, *flags, name=""):
        command = [sys.executable, "-m", module, *self._flags, *flags]
        return Program(name or module, command, ROOT, self._directory)


def test_readiness_of_a_daemon_says_which_verb_and_it_goes_on_without_a_restart(account, proxy, tmp_path):
    account.may(PREDICTOR)
    with tempfile.TemporaryDirectory(prefix="st-") as directory:
        product = Product(AsAccount(tmp_path, proxy.url, account.token_file), Path(directory))
        with product.predictor() as daemon:
            account.may([one for one in PREDICTOR if one.resource != "pods"])
            # The watch is opened again, and refused.
            proxy.cut()
            # Whose account it is, is known from the first call that was refused.
            named = ("watch pods", account.name)
            said = wait_for(
                lambda: all(part in (answer := daemon.ask("/readyz")) for part in named) and answer, "missing verb"
            )
            assert "docs/security.md" in said
            lines = [line for line in daemon.log() if line["event"] == "a permission is missing"]
            assert len(lines) == len({line["permission"] for line in lines}), "one line for each permission"
            account.may(PREDICTOR)
            wait_for(lambda: daemon.ready, "readiness")
            assert daemon.program.process.poll() is None
