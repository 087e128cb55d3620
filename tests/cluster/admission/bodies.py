"""Pods and paths for tests of admission."""

from __future__ import annotations

from slacktide import names, quantity
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from tests.cluster.policies import SYSTEM, until

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
BE = {names.TIER_LABEL: "BE"}
DRY = "?dryRun=All"
NODE_NAME = "authentication.kubernetes.io/node-name"
NODES = ("n1", "n2")

WHOLE = "must be a whole number"
EQUAL = "must both be there and be equal"
BESIDE = "must not ask for cpu or memory as well"


def account(component):
    return f"system:serviceaccount:{SYSTEM}:slacktide-{component}"


def pods(namespace, name="", sub=""):
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")


def container(name="main", **resources):
    return {"name": name, "image": "work", "resources": resources}


def both(**amounts):
    return {"requests": dict(amounts), "limits": dict(amounts)}


def pod(*containers, labels=BE, name="", **spec):
    meta = {"labels": dict(labels), **({"name": name} if name else {"generateName": "p-"})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": list(containers), **spec}}


def wait_active(api):
    fraction = pod(container(**both(**{BATCH_CPU: "1500m"})))
    until(lambda: api.call("POST", pods("plain") + DRY, fraction)[0] == 422, "policy in force")
    until(lambda: converted(api, pod(container(requests={"cpu": 1}))), "conversion in force")


def converted(api, body):
    status, said = api.call("POST", pods("batch") + DRY, body)
    return said if status == 201 and BATCH_CPU in str(said) else None


def refusal(api, body, namespace="plain", **who):
    """Why a pod is not let in; None where it is."""
    status, said = api.call("POST", pods(namespace) + DRY, body, **who)
    return None if status == 201 else said["message"]


def asked_of(body):
    """Resources of all containers, batch amounts as numbers: the API server writes 2000 as 2k."""

    def number(name, amount):
        return str(quantity.parse(amount).value()) if name in (BATCH_CPU, BATCH_MEMORY) else amount

    every = (*body["spec"].get("initContainers", ()), *body["spec"]["containers"])
    return [
        {
            side: {name: number(name, amount) for name, amount in given.items()}
            for side, given in one["resources"].items()
        }
        for one in every
    ]


BATCH = container(**both(**{BATCH_CPU: 100}))
FRACTION = both(**{BATCH_CPU: "0.5"})
SOLD = {side: {BATCH_CPU: "4000", BATCH_MEMORY: "1000"} for side in ("capacity", "allocatable")}


def note(**annotations):
    return {"metadata": {"annotations": {f"slacktide.io/{key}": value for key, value in annotations.items()}}}


def write(api, node, body, sub="status", **who):
    """The status of the answer to a patch of a node, and its message."""
    status, said = api.call("PATCH", f"/api/v1/nodes/{node}" + (f"/{sub}" if sub else "") + DRY, body, MERGE, **who)
    return status, said.get("message", "")
