"""The same raw request to both servers gets the same answer: code, reason, causes and the words that programs look for.

Left out on purpose: a batch amount that is no whole number, which the embedded server refuses as our admission policy
does in a cluster; and a binding without a node and a watch from a version that is no number, to which a real server
answers 500.
"""

from __future__ import annotations

import json
import re
import secrets
from contextlib import closing

import pytest

from slacktide.cluster import errors

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
POD = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
PODS = "/api/v1/namespaces/{ns}/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
PDBS = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
OTHER_UID = "00000000-0000-0000-0000-000000000000"


def pod(name="a", resources=None, **spec):
    container = {"name": "main", "image": "none", **({"resources": resources} if resources else {})}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def post(path, body, **query):
    return ("POST", path, body, "application/json", query)


def get(path, **query):
    return ("GET", path, None, "application/json", query)


def put(path, body, **query):
    return ("PUT", path, body, "application/json", query)


def patch(path, body, kind=MERGE, **query):
    return ("PATCH", path, body, kind, query)


def delete(path, body=None, **query):
    return ("DELETE", path, body, "application/json", query)


def binding(node="n1", **metadata):
    target = {"kind": "Node", "name": node} if node else {}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "a", **metadata}, "target": target}


def eviction(**options):
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}, "deleteOptions": options}


MADE = post(PODS, POD)
BOUND = post(PODS + "/a/binding", binding())
LEASE = post(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15}})
CASES = {
    "get of nothing": [get(PODS + "/a")],
    "list": [MADE, get(PODS)],
    "list in pages": [MADE, post(PODS, pod("b")), get(PODS, limit=1)],
    "unknown field selector": [get(PODS, fieldSelector="spec.nosuch=1")],
    "broken field selector": [get(PODS, fieldSelector="spec.nodeName")],
    "broken label selector": [get(PODS, labelSelector="a in b")],
    "negative limit": [get(PODS, limit=-1)],
    "bad continue": [get(PODS, **{"continue": "xyz"})],
    "version no number": [get(PODS, resourceVersion="x")],
    "version match without version": [get(PODS, resourceVersionMatch="Exact")],
    "unknown version match": [get(PODS, resourceVersion="1", resourceVersionMatch="Nearly")],
    "name taken": [MADE, MADE],
    "bad name": [post(PODS, pod("No_Name!"))],
    "no name": [post(PODS, pod(""))],
    "namespace differs": [post(PODS, {**POD, "metadata": {"name": "a", "namespace": "other"}})],
    "kind differs": [post(PODS, {**POD, "kind": "Node", "apiVersion": "v1"})],
    "no JSON": [post(PODS, "{")],
    "a list": [post(PODS, [1])],
    "no containers": [post(PODS, {"metadata": {"name": "a"}, "spec": {"containers": []}})],
    "no image": [post(PODS, {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "m"}]}})],
    "number as name": [post(PODS, {"metadata": {"name": "a"}, "spec": {"containers": [{"name": 3}]}})],
    "quantity with two points": [post(PODS, pod(resources={"requests": {"cpu": "1.5.2"}}))],
    "quantity with half a power": [post(PODS, pod(resources={"requests": {"cpu": "1e"}}))],
    "quantity that is empty": [post(PODS, pod(resources={"requests": {"cpu": ""}}))],
    "quantity below nothing": [post(PODS, pod(resources={"requests": {"cpu": "-1"}}))],
    "request above limit": [post(PODS, pod(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}))],
    "batch request above limit": [
        post(
            PODS,
            pod(
                resources={
                    "requests": {"kubernetes.io/batch-cpu": "2000"},
                    "limits": {"kubernetes.io/batch-cpu": "1000"},
                }
            ),
        )
    ],
    "extended as a fraction": [post(PODS, pod(resources={"requests": {"x.io/y": "0.5"}, "limits": {"x.io/y": "0.5"}}))],
    "extended without limit": [post(PODS, pod(resources={"requests": {"x.io/y": "1"}}))],
    "unknown priority class": [post(PODS, pod(priorityClassName="nosuch"))],
    "bad restart policy": [post(PODS, pod(restartPolicy="Sometimes"))],
    "bad label": [post(PODS, {**POD, "metadata": {"name": "a", "labels": {"a b": "c"}}})],
    "merge patch": [MADE, patch(PODS + "/a", {"metadata": {"labels": {"x": "y"}}})],
    "merge patch of old version": [MADE, patch(PODS + "/a", {"metadata": {"resourceVersion": "1"}})],
    "merge patch of other uid": [MADE, patch(PODS + "/a", {"metadata": {"uid": OTHER_UID}})],
    "merge patch of nothing": [patch(PODS + "/a", {"metadata": {"labels": {"x": "y"}}})],
    "merge patch that is a list": [MADE, patch(PODS + "/a", [1])],
    "patch of the spec": [MADE, patch(PODS + "/a", {"spec": {"nodeName": "n1"}})],
    "json patch": [
        MADE,
        patch(PODS + "/a", [{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}], JSON_PATCH),
    ],
    "json patch that fails its test": [
        MADE,
        patch(PODS + "/a", [{"op": "test", "path": "/spec/nodeName", "value": "z"}], JSON_PATCH),
    ],
    "json patch of nowhere": [MADE, patch(PODS + "/a", [{"op": "remove", "path": "/metadata/labels/x"}], JSON_PATCH)],
    "json patch that is none": [MADE, patch(PODS + "/a", {"a": 1}, JSON_PATCH)],
    "json patch of an unknown op": [MADE, patch(PODS + "/a", [{"op": "turn", "path": "/x"}], JSON_PATCH)],
    "strategic patch": [
        MADE,
        patch(PODS + "/a/status", {"status": {"conditions": [{"type": "X", "status": "True"}]}}, STRATEGIC),
    ],
    "patch of an unknown kind": [MADE, patch(PODS + "/a", {}, "application/x-patch")],
    "put of old version": [MADE, put(PODS + "/a", {**POD, "metadata": {"name": "a", "resourceVersion": "1"}})],
    "put of another name": [MADE, put(PODS + "/a", pod("b"))],
    "put of nothing": [put(PODS + "/a", POD)],
    "bind": [MADE, BOUND, get(PODS + "/a")],
    "bind twice": [MADE, BOUND, post(PODS + "/a/binding", binding("n2"))],
    "bind of nothing": [BOUND],
    "bind of other uid": [MADE, post(PODS + "/a/binding", binding(uid=OTHER_UID))],
    "bind of another name": [MADE, post(PODS + "/a/binding", {**binding(), "metadata": {"name": "b"}})],
    "bind of gated": [post(PODS, pod(schedulingGates=[{"name": "x.io/wait"}])), BOUND],
    "bind of leaving": [MADE, BOUND, delete(PODS + "/a"), post(PODS + "/a/binding", binding("n2"))],
    "evict": [MADE, post(PODS + "/a/eviction", eviction(gracePeriodSeconds=0))],
    "evict dry": [MADE, post(PODS + "/a/eviction", eviction(dryRun=["All"]))],
    "evict of nothing": [post(PODS + "/a/eviction", eviction())],
    "evict of another name": [MADE, post(PODS + "/a/eviction", {**eviction(), "metadata": {"name": "b"}})],
    "evict with a bad dry run": [MADE, post(PODS + "/a/eviction", eviction(dryRun=["Some"]))],
    "delete": [MADE, delete(PODS + "/a", gracePeriodSeconds=0)],
    "delete of nothing": [delete(PODS + "/a")],
    "delete of other uid": [MADE, delete(PODS + "/a", {"preconditions": {"uid": OTHER_UID}})],
    "delete of old version": [MADE, delete(PODS + "/a", {"preconditions": {"resourceVersion": "1"}})],
    "delete with grace": [MADE, BOUND, delete(PODS + "/a", gracePeriodSeconds=7)],
    "delete twice": [MADE, BOUND, delete(PODS + "/a", gracePeriodSeconds=7), delete(PODS + "/a", gracePeriodSeconds=3)],
    "delete dry": [MADE, delete(PODS + "/a", dryRun="All"), get(PODS + "/a")],
    "create dry": [post(PODS, POD, dryRun="All"), get(PODS + "/a")],
    "lease": [LEASE, get(LEASES + "/l")],
    "lease put without version": [LEASE, put(LEASES + "/l", {"metadata": {"name": "l"}, "spec": {}})],
    "lease put of old version": [
        LEASE,
        put(LEASES + "/l", {"metadata": {"name": "l", "resourceVersion": "1"}, "spec": {"holderIdentity": "b"}}),
    ],
    "lease without length": [post(LEASES, {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}})],
    "budget with both limits": [
        post(PDBS, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "maxUnavailable": 1}})
    ],
    "budget with a bad share": [post(PDBS, {"metadata": {"name": "b"}, "spec": {"minAvailable": "10"}})],
    "log of a pod without node": [MADE, get(PODS + "/a/log")],
    "log of nothing": [get(PODS + "/a/log")],
    "log of an unknown container": [MADE, get(PODS + "/a/log", container="x")],
    "log of fewer than no lines": [MADE, get(PODS + "/a/log", tailLines=-1)],
    "unknown resource": [get("/api/v1/namespaces/{ns}/nosuch")],
    "unknown subresource": [MADE, get(PODS + "/a/nosuch")],
    "unknown verb": [patch(PODS, {})],
    "namespace that is not there": [post("/api/v1/namespaces/{ns}-absent/pods", POD)],
    "watch from the future": [get(PODS, watch="true", resourceVersion="999999999", timeoutSeconds=1)],
}


def send(client, ns, request):
    """(code, answer) of one request; an answer that is no JSON is its text."""
    method, path, body, content_type, query = request
    text = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    try:
        content = client.request(
            method, path.format(ns=ns), {name: str(value) for name, value in query.items()}, text, content_type
        )
    except errors.ApiError as error:
        causes = sorted((cause.reason, cause.field) for cause in error.causes)
        # How a body is bad is told in the words of whoever reads it; the rest is told in words that programs look for.
        words = "" if error.status in (400, 415, 422) else plain(error.message, ns)
        return error.status, error.reason, words, causes, error.retry_after
    return shape(content, ns)


def plain(text, ns):
    """Words without what differs between two runs: names, uids, versions, times."""
    text = text.replace(ns, "NS")
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    return re.sub(r"\d{2,}", "N", text)


LEFT_OUT = {"uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink", "namespace", "continue"}
# What a kubelet, a token or a later version of the API puts there.
LEFT_OUT |= {"lastTransitionTime", "deletionTimestamp", "observedGeneration", "tolerations"}


def shape(content, ns):
    """What of an object must be alike."""
    try:
        found = json.loads(content)
    except ValueError:
        return plain(content.decode(), ns)
    return reduced(found, ns)


def reduced(found, ns):
    if isinstance(found, dict):
        return {name: reduced(value, ns) for name, value in found.items() if name not in LEFT_OUT and value is not None}
    if isinstance(found, list):
        return [reduced(item, ns) for item in found]
    return plain(found, ns) if isinstance(found, str) else found


@pytest.fixture(scope="module")
def both(embedded, real):
    with closing(embedded.client()) as one, closing(real.client()) as two:
        yield one, two


@pytest.mark.parametrize("name", CASES)
def test_same_answer(both, name):
    answers = []
    for client in both:
        ns = f"same-{secrets.token_hex(4)}"
        client.request("POST", "/api/v1/namespaces", body=json.dumps({"metadata": {"name": ns}}).encode())
        answers.append([send(client, ns, request) for request in CASES[name]])
        send(client, ns, delete(PODS + "/a", gracePeriodSeconds=0))
        client.request("DELETE", f"/api/v1/namespaces/{ns}")
    embedded, real = answers
    assert embedded == real
