"""What the stock scheduler says of pods with volumes, ours says too: random claims, volumes, disks and CSI limits."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from typing import Any, Final

import pytest

from scheduler_plugins.framework.interfaces import Handle
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.status import SUCCESS
from scheduler_plugins.framework.unobserved import Unobserved
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.volume_kinds import CLAIMS, CSI_NODES, STORAGE_CLASSES, VOLUMES
from slacktide import names
from slacktide.cluster import NAMESPACES, NODES, PODS, Client
from tests.cluster.differential import Comparison
from tests.cluster.stock_profile import PLUGINS, WEIGHTS

VOLUME_PLUGINS: Final = ("VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone")
ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
ZONES: Final = ("one", "two", "three")
DRIVERS: Final = ("csi.example.com", "ebs.csi.aws.com")
NODE_COUNT, VOLUME_COUNT = 8, 14
Json = dict[str, Any]


class Listed:
    """Objects as the API server has them now."""

    def __init__(self, client: Client) -> None:
        kinds: tuple[Any, ...] = (CLAIMS, VOLUMES, STORAGE_CLASSES, CSI_NODES, NAMESPACES)
        self._by_kind = {
            kind: {(one.metadata.namespace, one.metadata.name): one for one in client.list(kind).items}
            for kind in kinds
        }

    def all(self, kind: Any) -> list[Any]:
        return list(self._by_kind.get(kind, {}).values())

    def get(self, kind: Any, namespace: str, name: str) -> Any:
        return self._by_kind.get(kind, {}).get((namespace, name))

    def indexed(self, *_: object) -> Sequence[Any]:
        return ()


def framework(client: Client) -> Framework:
    registry = default_registry()
    handle = Handle(
        wall_seconds=time.time,
        bind=lambda _pod, _node: SUCCESS,
        cpu_resource=names.BATCH_CPU,
        memory_resource=names.BATCH_MEMORY,
        objects=Listed(client),
    )
    return Framework(
        "stock", [registry.build(name, {}, handle) for name in (*PLUGINS, *VOLUME_PLUGINS)], WEIGHTS, Unobserved()
    )


def disk(draw: random.Random) -> Json:
    name, read_only = draw.choice("ab"), draw.random() < 0.4
    rbd = {"monitors": draw.sample(["m1:1", "m2:1", "m3:1"], 2), "image": name}
    kinds: dict[str, Json] = {
        "gcePersistentDisk": {"pdName": name},
        "awsElasticBlockStore": {"volumeID": name},
        "iscsi": {"iqn": f"iqn.2012-07.com.example:{name}", "targetPortal": "10.0.0.1:3260", "lun": draw.randint(0, 1)},
        "rbd": {**rbd, **({"pool": "x"} if draw.random() < 0.3 else {})},
    }
    kind = draw.choice(list(kinds))
    return {kind: {**kinds[kind], "readOnly": read_only}}


def pod(draw: random.Random, name: str, claims: Sequence[str], node: str = "") -> Json:
    volumes = [
        {"name": f"c{i}", "persistentVolumeClaim": {"claimName": draw.choice(claims)}}
        for i in range(draw.choice([0, 1, 1, 2, 3]))
    ]
    if draw.random() < 0.3:
        volumes.append({"name": "disk", **disk(draw)})
    spec: Json = {"containers": [{"name": "c", "image": "x"}], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name}, "spec": {**spec, "nodeName": node} if node else spec}


def volume(draw: random.Random, name: str, claim: Json) -> Json:
    labels = {ZONE: draw.choice([*ZONES, "one__two"])} if draw.random() < 0.4 else {}
    if draw.random() < 0.15:
        labels = {OLD_ZONE: draw.choice(ZONES)}
    kind = draw.choices([*DRIVERS, ""], [6, 2, 2])[0]
    source: Json = {"csi": {"driver": kind, "volumeHandle": name}} if kind else {"hostPath": {"path": "/x"}}
    spec = {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "now", "claimRef": claim,
        **source,
    }  # fmt: skip
    if draw.random() < 0.4:
        values = draw.sample("abc", draw.randint(1, 2))
        expression = {"key": "disk", "operator": draw.choice(["In", "NotIn"]), "values": values}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def claim(draw: random.Random, name: str, volume_name: str) -> Json:
    bound = {} if draw.random() < 0.05 else {"pv.kubernetes.io/bind-completed": "yes"}
    mode = "ReadWriteOncePod" if draw.random() < 0.1 else "ReadWriteOnce"
    spec = {"accessModes": [mode], "storageClassName": "now", "resources": {"requests": {"storage": "1Gi"}}}
    if volume_name:
        spec["volumeName"] = volume_name
    return {"metadata": {"name": name, "annotations": bound if volume_name else {}}, "spec": spec}


def node(draw: random.Random, name: str) -> Json:
    labels = {"kubernetes.io/hostname": name}
    if draw.random() < 0.8:
        labels["disk"] = draw.choice("abc")
    if draw.random() < 0.7:
        labels[ZONE] = draw.choice(ZONES)
    amounts = {"cpu": "8", "memory": "8Gi", "pods": "30"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"capacity": amounts, "allocatable": amounts}}


class Storage:
    """Cluster-wide objects of one test; gone when it ends."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made: list[tuple[Any, str]] = []

    def add(self, kind: Any, body: Json) -> None:
        self._made.append((kind, self._client.create(kind, body).metadata.name))

    def clear(self) -> None:
        for kind, name in self._made:
            self._client.delete(kind, name)


def fill(draw: random.Random, client: Client, namespace: str, storage: Storage) -> list[str]:
    """Claims that pods may name, most of them with a volume."""
    storage.add(STORAGE_CLASSES, {"metadata": {"name": "now"}, "provisioner": DRIVERS[0]})
    found = []
    for i in range(VOLUME_COUNT):
        name = f"{namespace}-v{i}"
        of = {"namespace": namespace, "name": f"c{i}", "apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        storage.add(VOLUMES, volume(draw, name, of))
        client.create(CLAIMS, claim(draw, f"c{i}", name), namespace)
        found.append(f"c{i}")
    client.create(CLAIMS, claim(draw, "unbound", ""), namespace)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_pods_with_volumes_get_the_verdict_of_the_stock_scheduler(
    plane: Any, client: Client, namespace: str, seed: int
) -> None:
    draw, storage = random.Random(seed), Storage(client)
    comparison = Comparison(client, namespace)
    with plane.scheduler(), contextlib.ExitStack() as ending:
        ending.callback(storage.clear)
        ending.callback(comparison._clear)
        claims = fill(draw, client, namespace, storage)
        for i in range(NODE_COUNT):
            drivers = [
                {"name": one, "nodeID": "x", "allocatable": {"count": draw.randint(1, 3)}}
                for one in DRIVERS
                if draw.random() < 0.6
            ]
            storage.add(CSI_NODES, {"metadata": {"name": f"n{i}"}, "spec": {"drivers": drivers}})
            comparison._add_node(node(draw, f"n{i}"))
        for i in range(NODE_COUNT):
            client.create(PODS, pod(draw, f"q{i}", claims[:9], f"n{draw.randrange(NODE_COUNT)}"), namespace)
        comparison._wait_seen(f"n{NODE_COUNT - 1}")
        ours = framework(client)
        for i in range(60):
            comparison._compare(ours, pod(draw, f"p{i}", [*claims * 4, "unbound", "missing"]), f"seed {seed}")
        assert len(client.list(NODES).items) == NODE_COUNT
    assert not comparison.outcome.differences, "\n".join(comparison.outcome.differences)
    assert min(comparison.outcome.placed, comparison.outcome.unschedulable) >= 5
