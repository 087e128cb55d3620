"""Who writes what Slacktide publishes on nodes, and what the token of an agent is good for."""

from __future__ import annotations

import secrets

import pytest

from slacktide.cluster.evict import eviction_body
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from slacktide.objects import ObjectMeta, Pod
from tests.cluster.admission.bodies import (
    DRY,
    JSON_PATCH,
    MERGE,
    NODE_NAME,
    NODES,
    SOLD,
    account,
    container,
    note,
    pod,
    pods,
    write,
)
from tests.cluster.policies import SYSTEM, until

PREDICTOR = {"user": account("predictor")}
AGENT = {"user": account("agent"), "extra": {NODE_NAME: "n1"}}
STRANGERS = [
    {},
    {"user": account("scheduler")},
    {"user": account("agent"), "extra": {NODE_NAME: "n2"}},
    {"user": "system:serviceaccount:default:slacktide-predictor"},
    {"user": "slacktide-predictor", "groups": (f"system:serviceaccounts:{SYSTEM}",)},
    {"user": "koordinator", "groups": ("system:masters",)},
    {"user": "system:node:n2", "groups": ("system:nodes", "system:masters")},
]


def test_the_predictor_publishes(api):
    body = {**SOLD, "conditions": None}
    assert (
        write(api, "n1", {**note(forecast="{}"), "status": {k: v for k, v in body.items() if v}}, **PREDICTOR)[0] == 200
    )


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize(
    ("sub", "body"),
    [
        ("status", {"status": SOLD}),
        ("status", {"status": {"allocatable": SOLD["allocatable"]}}),
        ("status", {"status": {"capacity": {BATCH_CPU: "0"}}}),
        ("status", note(forecast="{}")),
        ("", note(forecast="")),
        ("", note(gpus="{}")),
        ("status", note(gpus="{}")),
    ],
)
def test_nobody_else_writes_batch_resources_or_our_annotations(api, who, sub, body):
    status, message = write(api, "n1", body, sub, **who)
    assert status == 403
    assert "of Slacktide writes" in message or "agent" in message or "is not allowed" in message


def test_nor_takes_them_away_or_brings_them_with_a_new_node(api):
    path = "/api/v1/nodes/n2"
    api.do("PATCH", f"{path}/status", {**note(forecast="{}"), "status": SOLD}, MERGE, **PREDICTOR)
    gone = {"status": {"capacity": {BATCH_CPU: None}, "allocatable": {BATCH_CPU: None}}}
    assert write(api, "n2", gone)[0] == 403
    assert write(api, "n2", note(forecast=None), "")[0] == 403
    remove = [{"op": "remove", "path": "/metadata/annotations/slacktide.io~1forecast"}]
    assert api.call("PATCH", path, remove, JSON_PATCH)[0] == 403
    whole = api.do("GET", path)
    del whole["status"]["capacity"]
    assert api.call("PUT", f"{path}/status", whole)[0] == 403
    for body in ({"status": SOLD}, note(forecast="{}"), note(gpus="{}")):
        meta = {"name": "n3", **body.get("metadata", {})}
        assert api.call("POST", "/api/v1/nodes" + DRY, {**body, "metadata": meta})[0] == 403
    clean = {
        "status": {
            "capacity": {BATCH_CPU: None, BATCH_MEMORY: None},
            "allocatable": {BATCH_CPU: None, BATCH_MEMORY: None},
        }
    }
    api.do("PATCH", f"{path}/status", {**clean, **note(forecast=None)}, MERGE, user=account("uninstall"))


def test_everything_else_of_a_node_is_written_as_ever(api):
    kubelet = {"user": "system:node:n1", "groups": ("system:nodes", "system:masters")}
    report = {"status": {"capacity": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}}
    assert write(api, "n1", report, **kubelet)[0] == 200
    assert write(api, "n1", {"metadata": {"annotations": {"example.com/a": "b"}, "labels": {"c": "d"}}}, "")[0] == 200
    assert write(api, "n1", note(**{"gpu-wear-level": "0.5"}), "")[0] == 200
    assert write(api, "n1", {"spec": {"unschedulable": True}}, "")[0] == 200
    assert api.call("POST", "/api/v1/nodes" + DRY, {"metadata": {"name": "n3"}})[0] == 201
    assert api.call("DELETE", "/api/v1/nodes/n1" + DRY)[0] == 200


def test_the_kubelet_makes_allocatable_of_capacity_and_no_more(api):
    kubelet = {"user": "system:node:n2", "groups": ("system:nodes", "system:masters")}
    uneven = {"capacity": {BATCH_CPU: "4000"}, "allocatable": {BATCH_CPU: "3000"}}
    api.do("PATCH", "/api/v1/nodes/n2/status", {"status": uneven}, MERGE, **PREDICTOR)
    assert write(api, "n2", {"status": {"allocatable": {BATCH_CPU: "4000"}}}, **kubelet)[0] == 200
    assert write(api, "n2", {"status": {"allocatable": {BATCH_CPU: "5000"}}}, **kubelet)[0] == 403
    assert write(api, "n2", {"status": {"capacity": {BATCH_CPU: "3000"}}}, **kubelet)[0] == 403
    assert write(api, "n1", {"status": {"allocatable": {BATCH_CPU: "4000"}}}, **kubelet)[0] == 403
    api.do(
        "PATCH",
        "/api/v1/nodes/n2/status",
        {"status": {"capacity": {BATCH_CPU: None}, "allocatable": {BATCH_CPU: None}}},
        MERGE,
        **PREDICTOR,
    )


# What the token of an agent is good for.


@pytest.fixture
def victims(api):
    """A pod on each node, and one that is on none."""
    name = f"team-{secrets.token_hex(3)}"
    api.do("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    for node in (*NODES, ""):
        api.do(
            "POST", pods(name), pod(container(), name=f"on-{node or 'none'}", **({"nodeName": node} if node else {}))
        )
    return name


def evict(api, namespace, name, token="", **who):
    """As our client asks for it."""
    body = eviction_body(Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid="u")), None, dry_run=True)
    del body["deleteOptions"]["preconditions"]
    return api.call("POST", pods(namespace, name, "eviction") + DRY, body, token=token, **who)


def eviction(namespace, name, version="v1", **labels):
    return {
        "apiVersion": f"policy/{version}",
        "kind": "Eviction",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {f"slacktide.io/{key.replace('_', '-')}": text for key, text in labels.items()},
        },
    }


def test_an_agent_writes_its_note_of_gpus_on_its_own_node(api, tokens):
    for node in NODES:
        for other in NODES:
            status, message = write(api, node, note(gpus="{}"), "", token=tokens[other])
            assert status == (200 if node == other else 403), message
    assert write(api, "n1", note(gpus="{}"), "", token=tokens[""])[0] == 403


@pytest.mark.parametrize(
    ("sub", "body"),
    [
        ("status", {"status": SOLD}),
        ("", note(forecast="{}")),
        ("", {"spec": {"unschedulable": True}}),
        ("", {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}}),
        ("", {"metadata": {"labels": {"a": "b"}}}),
        ("", {"metadata": {"annotations": {"a": "b"}}}),
        ("", {"metadata": {"finalizers": ["a.b/c"]}}),
        ("status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        ("status", {"status": {"capacity": {"cpu": "1"}}}),
    ],
)
def test_a_stolen_token_of_an_agent_changes_nothing_else_there(api, tokens, sub, body):
    assert write(api, "n1", body, sub, token=tokens["n1"])[0] == 403


def test_nor_does_it_delete_create_or_touch_pods_elsewhere(api, tokens, victims):
    token = tokens["n1"]
    assert api.call("DELETE", "/api/v1/nodes/n1" + DRY, token=token)[0] == 403
    assert api.call("POST", "/api/v1/nodes" + DRY, {"metadata": {"name": "n3"}}, token=token)[0] == 403
    assert api.call("POST", pods(victims) + DRY, pod(container(), labels={}), token=token)[0] == 403
    for name, status in (("on-n1", 200), ("on-n2", 403), ("on-none", 403)):
        body = {"metadata": {"labels": {"a": "b"}}}
        assert api.call("PATCH", pods(victims, name) + DRY, body, MERGE, token=token)[0] == status
        assert api.call("DELETE", pods(victims, name) + DRY, token=token)[0] == status
    assert api.call("DELETE", pods(victims) + DRY, token=token)[0] == 403


def test_an_agent_evicts_on_its_own_node_only(api, tokens, victims):
    for node in NODES:
        for other in NODES:
            # The API server's cache of pods may be a moment behind: a pod that it does not know yet is no parameter.
            wanted = 201 if node == other else 403
            until(lambda: evict(api, victims, f"on-{node}", tokens[other])[0] == wanted, f"{wanted}")  # noqa: B023 - called at once
    assert "its own node" in evict(api, victims, "on-n2", tokens["n1"])[1]["message"]
    assert evict(api, victims, "on-none", tokens["n1"])[0] == 403
    assert evict(api, victims, "on-n1", tokens[""])[0] == 403


def test_ways_around_the_node_of_an_eviction(api, tokens, victims):
    until(lambda: evict(api, victims, "on-n2", tokens["n1"])[0] == 403, "pods in view")
    token, path = tokens["n1"], pods(victims, "on-n2", "eviction")
    ways = [
        # The name in the body is another than that in the path.
        (path, eviction(victims, "on-n1", evicted_by="agent")),
        (pods(victims, "on-n1", "eviction"), eviction(victims, "on-n2", evicted_by="agent")),
        (path, eviction(victims, "", evicted_by="agent")),
        # Without the label that leads to the policy, with another, and in the older version.
        (path, eviction(victims, "on-n2")),
        (path, eviction(victims, "on-n2", evicted_by="me")),
        (path, eviction(victims, "on-n2", "v1beta1")),
        (path, eviction(victims, "on-n2", "v1beta1", evicted_by="agent")),
    ]
    for where, body in ways:
        status, said = api.call("POST", where, body, token=token)
        assert status in (400, 403, 404, 422), said
    for name in ("on-n1", "on-n2"):
        assert "deletionTimestamp" not in api.do("GET", pods(victims, name))["metadata"]


def test_others_evict_as_ever(api, victims):
    assert evict(api, victims, "on-n2")[0] == 201
    assert evict(api, victims, "none")[0] == 404
    assert evict(api, SYSTEM, "none")[0] == 404
    assert evict(api, victims, "on-n1", user="system:serviceaccount:kube-system:descheduler")[0] == 201
