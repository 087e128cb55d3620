"""One control plane with the policies for all tests of admission: they are for the whole cluster."""

from __future__ import annotations

import contextlib

import pytest

from slacktide import names
from tests.cluster import harness
from tests.cluster.admission.bodies import NODES, container, pod, pods, wait_active
from tests.cluster.policies import SYSTEM, Api, installed, rendered, until
from tests.deploy.tools import ToolsMissing


@pytest.fixture(scope="session")
def api(tmp_path_factory):
    """The API server, by plain requests; `api.plane` is its control plane."""
    reason = harness.missing()
    if reason is not None:
        pytest.skip(reason)
    try:
        manifests = rendered()
    except ToolsMissing as error:
        pytest.skip(str(error))
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(harness.control_plane(tmp_path_factory.mktemp("admission")))
        api = stack.enter_context(contextlib.closing(Api(plane)))
        api.plane = plane
        prepare(api)
        stack.enter_context(installed(api, manifests))
        wait_active(api)
        yield api


def prepare(api):
    for name, labels in ((SYSTEM, {}), ("plain", {}), ("batch", {"slacktide.io/batch": "enabled"})):
        body = {"metadata": {"name": name, "labels": labels}}
        # A server that has just begun refuses writes until its plug-ins are ready.
        until(lambda: api.call("POST", "/api/v1/namespaces", body)[0] == 201, "server that takes writes")  # noqa: B023 - called at once
    api.do(
        "POST",
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": names.PRIORITY_CLASS}, "value": 5500, "preemptionPolicy": "Never"},
    )
    for name in NODES:
        api.do("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    for component in ("agent", "predictor", "scheduler", "uninstall"):
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts"
        api.do("POST", path, {"metadata": {"name": f"slacktide-{component}"}})
    # More rights than they need: what is refused below, the policies refuse.
    api.do(
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "everybody"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}],
        },
    )


@pytest.fixture(scope="session")
def tokens(api):
    """By node, the token of the agent there, as its pod gets it; under "" one that is bound to no pod."""
    found = {}
    path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/slacktide-agent/token"
    for node in NODES:
        body = pod(container(), labels={}, name=f"agent-{node}", nodeName=node, serviceAccountName="slacktide-agent")
        uid = api.do("POST", pods(SYSTEM), body)["metadata"]["uid"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": f"agent-{node}", "uid": uid}
        found[node] = api.do("POST", path, {"spec": {"boundObjectRef": bound}})["status"]["token"]
    found[""] = api.do("POST", path, {"spec": {}})["status"]["token"]
    return found
