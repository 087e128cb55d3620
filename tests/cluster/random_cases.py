"""Random clusters and pods, in API-style JSON, that use what the stock plugins judge. All drawn from one generator."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

ZONE: Final = "topology.kubernetes.io/zone"
HOST: Final = "kubernetes.io/hostname"
APPS: Final = ("web", "db", "cache")
TIERS: Final = ("front", "back")
BATCH: Final = "kubernetes.io/batch-cpu"
DEVICE: Final = "example.com/gpu"
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One cluster: nodes, pods that are placed already (spec.nodeName set), and pods to be judged one by one."""

    nodes: list[Json]
    placed: list[Json]
    probes: list[Json]


def case(draw: random.Random, nodes: int, placed: int, probes: int, *, apart: bool = False) -> Case:
    """A cluster of that size; with `apart` no pod asks about other pods."""
    zones = [f"zone-{i}" for i in range(draw.randint(2, 4))]
    made = [_node(draw, index, zones) for index in range(nodes)]
    names = [one["metadata"]["name"] for one in made]
    placed_pods = [_pod(draw, f"placed-{i}", names, placed=True, apart=apart) for i in range(placed)]
    for one in placed_pods:
        one["spec"]["nodeName"] = draw.choice(names)
    asking = [_pod(draw, f"probe-{i}", names, placed=False, apart=apart) for i in range(probes)]
    return Case(made, placed_pods, asking)


def some(draw: random.Random, share: float) -> bool:
    """True in that share of cases."""
    return draw.random() < share


def _node(draw: random.Random, index: int, zones: list[str]) -> Json:
    name = f"node-{index}"
    labels = {HOST: name, "disk": draw.choice(["ssd", "hdd"]), "cores": str(draw.randint(1, 9))}
    if some(draw, 0.85):
        labels[ZONE] = draw.choice(zones)
    if some(draw, 0.3):
        labels["special"] = draw.choice(["yes", "no"])
    allocatable = {
        "cpu": f"{draw.choice([1000, 2000, 4000, 8000])}m",
        "memory": f"{draw.choice([1, 2, 4, 8])}Gi",
        "pods": str(draw.choice([2, 4, 10, 30])),
        "ephemeral-storage": "10Gi",
    }
    if some(draw, 0.5):
        allocatable[BATCH] = str(draw.choice([0, 1000, 4000]))
    if some(draw, 0.3):
        allocatable[DEVICE] = str(draw.randint(0, 4))
    spec: Json = {"unschedulable": True} if some(draw, 0.05) else {}
    taints = [_taint(draw) for _ in range(draw.choice([0, 0, 0, 1, 2]))]
    if taints:
        spec["taints"] = list({(t["key"], t["effect"]): t for t in taints}.values())
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": allocatable, "capacity": allocatable, "images": _images(draw)},
    }


def _images(draw: random.Random) -> list[Json]:
    return [
        {"names": [f"registry.example/image-{i}:v1"], "sizeBytes": size * _MIB}
        for i, size in enumerate((40, 300, 2000))
        if some(draw, 0.4)
    ]


def _taint(draw: random.Random) -> Json:
    return {
        "key": draw.choice(["dedicated", "spot"]),
        "value": draw.choice(["a", "b"]),
        "effect": draw.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"]),
    }


def _pod(draw: random.Random, name: str, nodes: list[str], *, placed: bool, apart: bool) -> Json:
    labels = {"app": draw.choice(APPS)} | ({"tier": draw.choice(TIERS)} if some(draw, 0.6) else {})
    spec: Json = {
        "containers": [_container(draw, f"c{i}", placed=placed) for i in range(draw.choice([1, 1, 2]))],
        "terminationGracePeriodSeconds": 0,
        # Nobody deletes placed pods for a taint here, and the API server adds two tolerations to every pod anyway.
        "tolerations": [_toleration(draw) for _ in range(draw.choice([0, 0, 1, 2]))],
    }
    if some(draw, 0.25):
        spec["initContainers"] = [
            _container(draw, f"i{i}", placed=placed, init=True) for i in range(draw.choice([1, 2]))
        ]
    affinity: Json = {}
    if not placed:
        if some(draw, 0.2):
            spec["nodeSelector"] = draw.choice([{"disk": "ssd"}, {"special": "yes"}, {"disk": "hdd", "special": "no"}])
        if some(draw, 0.3):
            affinity["nodeAffinity"] = _node_affinity(draw, nodes)
        if not apart and some(draw, 0.35):
            spec["topologySpreadConstraints"] = _spread(draw)
    if not apart and some(draw, 0.3):
        affinity["podAffinity"] = _pod_affinity(draw, required=0.4)
    if not apart and some(draw, 0.3):
        affinity["podAntiAffinity"] = _pod_affinity(draw, required=0.25 if placed else 0.5)
    if affinity:
        spec["affinity"] = {key: value for key, value in affinity.items() if value}
    _drop_repeated_ports(spec)
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def _drop_repeated_ports(spec: Json) -> None:
    """The API refuses a pod that asks for one host port twice."""
    seen = set()
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        for port in container.get("ports", []):
            known = (port["hostPort"], port["protocol"])
            if known in seen:
                del container["ports"]
            seen.add(known)


def _container(draw: random.Random, name: str, *, placed: bool, init: bool = False) -> Json:
    requests: Json = {}
    if some(draw, 0.7):
        requests["cpu"] = f"{draw.choice([0, 50, 100, 300, 1000] if placed else [0, 100, 500, 1500, 5000])}m"
    if some(draw, 0.6):
        requests["memory"] = f"{draw.choice([16, 64, 256] if placed else [64, 512, 1500, 6000])}Mi"
    if some(draw, 0.15):
        requests[BATCH] = str(draw.choice([100, 900, 3000]))
    limits: Json = {}
    if some(draw, 0.08):
        requests[DEVICE] = limits[DEVICE] = str(draw.choice([1, 2]))
    image = f"registry.example/image-{draw.randint(0, 3)}:v1"
    container: Json = {"name": name, "image": image, "resources": {"requests": requests, "limits": limits}}
    if init and some(draw, 0.4):
        container["restartPolicy"] = "Always"
    if some(draw, 0.12):
        port: Json = {
            "containerPort": 80,
            "hostPort": draw.choice([8080, 9090]),
            "protocol": draw.choice(["TCP", "UDP"]),
        }
        if some(draw, 0.3):
            port["hostIP"] = "127.0.0.1"
        container["ports"] = [port]
    return container


def _toleration(draw: random.Random) -> Json:
    toleration: Json = {"operator": draw.choice(["Exists", "Equal"])}
    if toleration["operator"] == "Equal" or some(draw, 0.7):
        toleration["key"] = draw.choice(["dedicated", "spot"])
    if toleration["operator"] == "Equal":
        toleration["value"] = draw.choice(["a", "b"])
    if some(draw, 0.6):
        toleration["effect"] = draw.choice(["NoSchedule", "PreferNoSchedule", "NoExecute"])
    return toleration


def _requirement(draw: random.Random) -> Json:
    kind = draw.choice(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
    if kind in {"Gt", "Lt"}:
        return {"key": "cores", "operator": kind, "values": [str(draw.randint(1, 8))]}
    key, values = draw.choice([("disk", ["ssd", "hdd"]), ("special", ["yes", "no"]), (ZONE, ["zone-0", "zone-1"])])
    if kind in {"Exists", "DoesNotExist"}:
        return {"key": key, "operator": kind}
    return {"key": key, "operator": kind, "values": draw.sample(values, draw.randint(1, len(values)))}


def _node_term(draw: random.Random, nodes: list[str]) -> Json:
    term: Json = {}
    if some(draw, 0.85):
        term["matchExpressions"] = [_requirement(draw) for _ in range(draw.choice([1, 1, 2]))]
    if some(draw, 0.2) or not term:
        chosen = draw.choice(nodes)
        term["matchFields"] = [{"key": "metadata.name", "operator": draw.choice(["In", "NotIn"]), "values": [chosen]}]
    return term


def _node_affinity(draw: random.Random, nodes: list[str]) -> Json:
    affinity: Json = {}
    if some(draw, 0.6):
        terms = [_node_term(draw, nodes) for _ in range(draw.choice([1, 2]))]
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if some(draw, 0.6):
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": draw.randint(1, 100), "preference": {"matchExpressions": [_requirement(draw)]}}
            for _ in range(draw.choice([1, 2]))
        ]
    return affinity


def selector(draw: random.Random) -> Json:
    """A label selector about some of the pods."""
    if some(draw, 0.6):
        return {"matchLabels": {"app": draw.choice(APPS)}}
    kind = draw.choice(["In", "NotIn", "Exists", "DoesNotExist"])
    requirement: Json = {"key": "tier", "operator": kind}
    if kind in {"In", "NotIn"}:
        requirement["values"] = draw.sample(TIERS, draw.randint(1, 2))
    return {"matchExpressions": [requirement]}


def _pod_term(draw: random.Random) -> Json:
    term: Json = {"topologyKey": draw.choice([ZONE, HOST, "disk"]), "labelSelector": selector(draw)}
    if some(draw, 0.15):
        term["namespaceSelector"] = {}
    return term


def _pod_affinity(draw: random.Random, required: float) -> Json:
    affinity: Json = {}
    if some(draw, required):
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = [_pod_term(draw)]
    if some(draw, 0.6):
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": draw.randint(1, 100), "podAffinityTerm": _pod_term(draw)} for _ in range(draw.choice([1, 2]))
        ]
    return affinity


def _spread(draw: random.Random) -> list[Json]:
    constraints = {}
    for _ in range(draw.choice([1, 1, 2])):
        hard = some(draw, 0.6)
        constraint: Json = {
            "topologyKey": draw.choice([ZONE, HOST]),
            "maxSkew": draw.randint(1, 3),
            "whenUnsatisfiable": "DoNotSchedule" if hard else "ScheduleAnyway",
            "labelSelector": selector(draw),
        }
        if hard and some(draw, 0.2):
            constraint["minDomains"] = draw.randint(1, 5)
        if some(draw, 0.2):
            constraint["nodeTaintsPolicy"] = draw.choice(["Honor", "Ignore"])
        if some(draw, 0.2):
            constraint["nodeAffinityPolicy"] = draw.choice(["Honor", "Ignore"])
        constraints[constraint["topologyKey"], constraint["whenUnsatisfiable"]] = constraint
    return list(constraints.values())
