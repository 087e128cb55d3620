"""Plugins for volumes: what kube-scheduling.md section 3 (Volumes) and 3.1 say, case by case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from scheduler_plugins.framework import events
from scheduler_plugins.framework.events import Action, ClusterEvent, Hint
from scheduler_plugins.framework.status import Code
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.plugins.volume_kinds import (
    CLAIMS,
    CSI_NODES,
    STORAGE_CLASSES,
    VOLUMES,
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from slacktide.errors import SettingsError
from slacktide.objects import Pod
from tests.scheduler_plugins.build import READER, handle, info, node, pod
from tests.scheduler_plugins.plugins.cases import FITS, LATER, NEVER, Judged, Objects, handle_with, hint
from tests.scheduler_plugins.plugins.preempting import HIGH, LOW, SMALL, World, sized, small_node
from tests.scheduler_plugins.rig import Rig

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
BOUND = {"pv.kubernetes.io/bind-completed": "yes"}


def claim(name: str = "c", volume: str = "", storage: str | None = "fast", **fields: Any) -> PersistentVolumeClaim:
    metadata = {
        "name": name, "namespace": "default", "annotations": BOUND if volume else {}, **fields.pop("metadata", {}),
    }  # fmt: skip
    status = fields.pop("status", {"phase": "Bound" if volume else "Pending"})
    spec = {"volumeName": volume, "accessModes": ["ReadWriteOnce"], **fields}
    if storage is not None:
        spec["storageClassName"] = storage
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, PersistentVolumeClaim)


def volume(name: str = "v", labels: Mapping[str, str] | None = None, on: Sequence[str] = (), **spec: Any) -> Any:
    """A volume; `on` are values of the label `disk` of nodes that reach it."""
    if on:
        terms = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": list(on)}]}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return msgspec.convert({"metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec}, PersistentVolume)


def storage(name: str = "fast", mode: str = "Immediate", provisioner: str = "csi.example.com") -> StorageClass:
    body = {"metadata": {"name": name}, "volumeBindingMode": mode, "provisioner": provisioner}
    return msgspec.convert(body, StorageClass)


def csi_node(name: str, **limits: int | None) -> CsiNode:
    drivers = [
        {"name": driver.replace("_", "."), "allocatable": None if count is None else {"count": count}}
        for driver, count in limits.items()
    ]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"drivers": drivers}}, CsiNode)


def uses(*names: str, name: str = "p", **spec: Any) -> Pod:
    volumes = [{"name": f"v{i}", "persistentVolumeClaim": {"claimName": one}} for i, one in enumerate(names)]
    return pod(name, volumes=volumes, **spec)


def with_disk(kind: str, name: str = "p", **source: Any) -> Pod:
    return pod(name, volumes=[{"name": "v", kind: source}])


def objects(*given: Any) -> Objects:
    kinds = {
        PersistentVolumeClaim: CLAIMS, PersistentVolume: VOLUMES, StorageClass: STORAGE_CLASSES, CsiNode: CSI_NODES,
    }  # fmt: skip
    found: dict[Any, list[Any]] = {kind: [] for kind in kinds.values()}
    for one in given:
        found[kinds[type(one)]].append(one)
    return Objects(found)


def plugin(name: str, *given: Any, **args: Any) -> Any:
    return default_registry().build(name, args, handle_with(objects(*given)))


def judged(name: str, who: Pod, nodes: list[Any], placed: Any = None, given: Sequence[Any] = ()) -> Judged:
    return Judged(plugin(name, *given), READER.read(who), nodes, placed)


@pytest.mark.parametrize("name", ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"])
def test_pods_without_volumes_that_matter_are_not_judged(name: str) -> None:
    who = pod("p", volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}])
    assert judged(name, who, [node("n")]).state.skip_filter == {name}


# VolumeBinding.


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        ([], NEVER, 'persistentvolumeclaim "c" not found'),
        ([claim(), storage()], NEVER, "pod has unbound immediate PersistentVolumeClaims"),
        ([claim()], NEVER, "pod has unbound immediate PersistentVolumeClaims"),
        ([claim(), storage(mode="WaitForFirstConsumer")], NEVER, "let the stock scheduler place the pod, with our ext"),
        (
            [claim(volume="v", metadata={"annotations": {}}), storage(mode="WaitForFirstConsumer"), volume()],
            NEVER,
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        ([claim(volume="v")], NEVER, "bound to non-existent pv(s)"),
        ([claim(volume="v", status={"phase": "Lost"})], NEVER, 'bound to non-existent persistentvolume "v"'),
        (
            [claim(volume="v", metadata={"annotations": BOUND, "deletionTimestamp": "2026-01-01T00:00:00Z"}), volume()],
            NEVER,
            "is being deleted",
        ),
        ([claim(volume="v"), volume()], FITS, ""),
        ([claim(volume="v"), volume(on=["a"])], FITS, ""),
    ],
    ids=[
        "missing", "immediate", "class unknown", "first consumer", "names a volume only", "volume missing", "lost",
        "going", "bound", "within reach",
    ],
)  # fmt: skip
def test_claims_of_a_pod(given: Sequence[Any], code: Code, words: str) -> None:
    found = judged("VolumeBinding", uses("c"), [node("n", labels={"disk": "a"})], given=given)
    assert found.codes() == {"n": code}
    assert words in (found.message() if code is not FITS else "")


def test_nodes_out_of_reach_of_any_volume() -> None:
    nodes = [node(name, labels={"disk": name}) for name in "abc"] + [node("none")]
    given = [claim("c", "v"), claim("d", "w"), volume("v", on=["a", "b"]), volume("w", on=["b", "c"])]
    found = judged("VolumeBinding", uses("c", "d"), nodes, given=given)
    assert found.codes() == {"a": NEVER, "b": FITS, "c": NEVER, "none": NEVER}
    assert found.message().count("3 node(s) didn't match PersistentVolume's node affinity") == 1


@pytest.mark.parametrize(
    ("owner", "words"),
    [("uid-p", ""), ("uid-other", "was not created for pod default/p"), (None, "waiting for ephemeral volume contr")],
)
def test_ephemeral_volumes_are_claims_of_the_pod_itself(owner: str | None, words: str) -> None:
    given: list[Any] = [volume()]
    if owner is not None:
        owners = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner}]
        given.append(claim("p-data", "v", metadata={"annotations": BOUND, "ownerReferences": owners}))
    found = judged("VolumeBinding", pod("p", volumes=[{"name": "data", "ephemeral": {}}]), [node("n")], given=given)
    assert found.codes() == {"n": NEVER if words else FITS}
    assert words in found.message()


def test_arguments_are_those_of_the_stock_scheduler() -> None:
    shape = [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}]
    assert plugin("VolumeBinding", bindTimeoutSeconds=600, shape=shape)
    with pytest.raises(SettingsError, match="bindTimeoutSeconds is -1"):
        plugin("VolumeBinding", bindTimeoutSeconds=-1)


# VolumeZone.


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({}, ""),
        ({ZONE: "one"}, "two old other"),
        ({ZONE: "one__two"}, "old other"),
        ({ZONE: "one", REGION: "far"}, "two old one other"),
        ({OLD_ZONE: "one"}, "two old other"),
        ({OLD_ZONE: "three"}, "one two other"),
        ({ZONE: ""}, ""),
        ({"zone": "one"}, ""),
    ],
)
def test_zones_of_volumes(labels: dict[str, str], wanted: str) -> None:
    """A node in no zone suits all; an old label of a volume is looked for under its new name, too."""
    nodes = [
        node("one", labels={ZONE: "one"}), node("two", labels={ZONE: "two"}), node("old", labels={OLD_ZONE: "three"}),
        node("other", labels={REGION: "near"}), node("plain"),
    ]  # fmt: skip
    found = judged("VolumeZone", uses("c"), nodes, given=[claim(volume="v"), volume(labels=labels)])
    refused = {name for name, code in found.codes().items() if code is NEVER}
    assert refused == set(wanted.split())
    assert not refused or "node(s) had no available volume zone" in found.message()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], 'persistentvolumeclaim "c" not found'),
        ([claim(storage=None)], "had no pv name and storageClass name"),
        ([claim(volume="v")], 'persistentvolume "v" not found'),
    ],
)
def test_claims_whose_zone_cannot_be_known(given: Sequence[Any], words: str) -> None:
    found = judged("VolumeZone", uses("c"), [node("n")], given=given)
    assert (found.codes(), words in found.message()) == ({"n": NEVER}, True)
    assert judged("VolumeZone", uses("c"), [node("n")], given=[claim()]).state.skip_filter == {"VolumeZone"}


# VolumeRestrictions.


@pytest.mark.parametrize(
    ("kind", "mine", "theirs", "fits"),
    [
        ("gcePersistentDisk", {"pdName": "a"}, {"pdName": "a"}, False),
        ("gcePersistentDisk", {"pdName": "a"}, {"pdName": "b"}, True),
        ("gcePersistentDisk", {"pdName": "a", "readOnly": True}, {"pdName": "a"}, False),
        ("gcePersistentDisk", {"pdName": "a", "readOnly": True}, {"pdName": "a", "readOnly": True}, True),
        ("awsElasticBlockStore", {"volumeID": "a", "readOnly": True}, {"volumeID": "a", "readOnly": True}, False),
        ("awsElasticBlockStore", {"volumeID": "a"}, {"volumeID": "b"}, True),
        ("iscsi", {"iqn": "a", "lun": 0}, {"iqn": "a", "lun": 1}, False),
        ("iscsi", {"iqn": "a", "readOnly": True}, {"iqn": "a", "readOnly": True}, True),
        ("rbd", {"monitors": ["x", "y"], "image": "i"}, {"monitors": ["y"], "image": "i", "pool": "rbd"}, False),
        ("rbd", {"monitors": ["x"], "image": "i"}, {"monitors": ["y"], "image": "i"}, True),
        ("rbd", {"monitors": ["x"], "image": "i"}, {"monitors": ["x"], "image": "i", "pool": "p"}, True),
    ],
)
def test_disks_that_cannot_be_shared(kind: str, mine: Any, theirs: Any, fits: bool) -> None:
    placed = {"n": [with_disk(kind, "q", **theirs)]}
    found = judged("VolumeRestrictions", with_disk(kind, **mine), [node("n"), node("free")], placed)
    assert found.codes() == {"n": FITS if fits else LATER, "free": FITS}
    assert found.without("n", "uid-q") is FITS
    assert fits or "1 node(s) had no available disk" in found.message()


def test_claim_for_one_pod_that_is_used_keeps_others_off_every_node_until_it_is_free() -> None:
    given = [claim("c", "v", accessModes=["ReadWriteOncePod"]), volume()]
    placed = {"n": [uses("c", name="q")]}
    found = judged("VolumeRestrictions", uses("c"), [node("n"), node("free")], placed, given)
    assert found.codes() == {"n": LATER, "free": LATER}
    assert "ReadWriteOncePod access mode" in found.message()
    assert found.without("n", "uid-q") is FITS
    assert found.after("n", ["uid-q"], [READER.read(uses("c", name="r"))], "free") is LATER
    assert judged("VolumeRestrictions", uses("c"), [node("n")], {}, given).codes() == {"n": FITS}
    shared = [claim("c", "v"), volume()]
    assert judged("VolumeRestrictions", uses("c"), [node("n")], placed, shared).state.skip_filter


def test_preemption_frees_a_claim_for_one_pod_on_the_node_of_its_user_only() -> None:
    restrictions = plugin("VolumeRestrictions", claim("c", "v", accessModes=["ReadWriteOncePod"]), volume())
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    placed = {"n1": [sized("q", SMALL, LOW, volumes=volumes)], "n2": [sized("r", SMALL, LOW)]}
    world = World([small_node("n1"), small_node("n2")], placed, restrictions)
    found = world.attempt(sized("p", SMALL, HIGH, volumes=volumes))
    assert (found.nominate, found.victims) == ("n1", ["q"])


# NodeVolumeLimits.

DRIVER = "csi.example.com"


def csi(name: str, handle: str | None = None, driver: str = DRIVER) -> Any:
    return volume(name, csi={"driver": driver, "volumeHandle": handle or name})


MANY = [claim(f"c{i}", f"v{i}") for i in range(8)] + [csi(f"v{i}") for i in range(8)]


@pytest.mark.parametrize(
    ("mine", "theirs", "limit", "fits"),
    [
        (["c0"], [["c1"], ["c2"]], 3, True),
        (["c0"], [["c1"], ["c2"]], 2, False),
        (["c0"], [["c1", "c2"]], 2, False),
        (["c0", "c1"], [["c2"]], 2, False),
        (["c0"], [["c0"], ["c1"]], 2, True),
        (["c0", "c0"], [["c1"]], 2, True),
        (["c0"], [["c1", "c2"], ["c1", "c2"]], 3, True),
        (["c0"], [["c1", "c2", "c3", "c4", "c5"]], 6, True),
        (["c0"], [["c1", "c2", "c3", "c4", "c5"]], 5, False),
        (["c0"], [["c1"]], None, True),
        (["c0"], [["unknown"]], 1, True),
        (["unknown"], [["c1"]], 1, True),
    ],
    ids=[
        "room", "full", "full by one pod", "two of one pod", "attached already", "named twice", "shared by two pods",
        "many claims", "many claims, full", "no limit", "claim of theirs unknown", "claim unknown",
    ],
)  # fmt: skip
def test_how_many_volumes_a_node_can_have(mine: Any, theirs: Any, limit: int | None, fits: bool) -> None:
    placed = {"n": [uses(*names, name=f"q{i}") for i, names in enumerate(theirs)]}
    given = [*MANY, csi_node("n", csi_example_com=limit)]
    found = judged("NodeVolumeLimits", uses(*mine), [node("n"), node("free")], placed, given)
    assert found.codes() == {"n": FITS if fits else LATER, "free": FITS}
    assert fits or "1 node(s) exceed max volume count" in found.message()


def test_volumes_of_other_drivers_do_not_count_and_in_tree_ones_count_for_theirs() -> None:
    given = [
        claim("a", "ebs"), claim("b", "in-tree"), claim("c", "other"), claim("d", storage="old"),
        csi("ebs", driver="ebs.csi.aws.com"), csi("other"), storage("old", provisioner="kubernetes.io/aws-ebs"),
        volume("in-tree", awsElasticBlockStore={"volumeID": "vol-1"}), csi_node("n", ebs_csi_aws_com=2),
    ]  # fmt: skip
    inline = with_disk("awsElasticBlockStore", "inline", volumeID="vol-1")

    def code(*placed: Pod) -> Code:
        return judged("NodeVolumeLimits", uses("a"), [node("n")], {"n": list(placed)}, given).codes()["n"]

    assert code(uses("b", name="q"), uses("c", name="r")) is FITS
    assert code(uses("b", name="q"), inline) is FITS
    assert code(uses("b", name="q"), uses("d", name="r")) is LATER
    assert code(inline, uses("d", name="r")) is LATER


def test_node_without_drivers_as_the_api_server_sends_it_has_no_limit() -> None:
    bare = msgspec.json.decode(b'{"metadata": {"name": "n"}, "spec": {"drivers": null}}', type=CsiNode)
    found = judged("NodeVolumeLimits", uses("c0"), [node("n")], {"n": [uses("c1", name="q")]}, [*MANY, bare])
    assert found.codes() == {"n": FITS}


def test_full_node_is_freed_by_removing_a_pod() -> None:
    given = [*MANY, csi_node("n", csi_example_com=1)]
    found = judged("NodeVolumeLimits", uses("c0"), [node("n")], {"n": [uses("c1", name="q")]}, given)
    assert (found.codes(), found.without("n", "uid-q")) == ({"n": LATER}, FITS)


# Hints.


def of(resource: str, action: Action = Action.ADD) -> ClusterEvent:
    return ClusterEvent(resource, action)


@pytest.mark.parametrize("name", ["VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"])
@pytest.mark.parametrize("action", [Action.ADD, Action.UPDATE_OTHER])
def test_claim_of_the_pod_wakes_it_and_others_do_not(name: str, action: Action) -> None:
    who, event = READER.read(uses("c")), of(events.PERSISTENT_VOLUME_CLAIM, action)
    assert hint(plugin(name), who, event, None, claim("c")) is Hint.QUEUE
    assert hint(plugin(name), who, event, None, claim("d")) is Hint.SKIP
    with pytest.raises(TypeError, match="not a PersistentVolumeClaim"):
        hint(plugin(name), who, event, None, node("n"))


def test_what_wakes_a_pod_that_waits_for_its_volume() -> None:
    binding, who = plugin("VolumeBinding", claim("c", "v")), READER.read(uses("c"))
    assert hint(binding, who, of(events.PERSISTENT_VOLUME), None, volume("v")) is Hint.QUEUE
    assert hint(binding, who, of(events.PERSISTENT_VOLUME), None, volume("w")) is Hint.SKIP
    assert hint(binding, who, events.NODE_ADD, None, node("n")) is Hint.QUEUE
    label = of(events.NODE, Action.UPDATE_NODE_LABEL)
    assert hint(binding, who, label, node("n"), node("n", labels={"disk": "a"})) is Hint.QUEUE
    assert hint(binding, who, label, node("n"), node("n")) is Hint.SKIP
    assert {str(e.resource) for e in (r.event for r in binding.events_to_register())} >= {events.STORAGE_CLASS}


def test_what_wakes_a_pod_in_the_wrong_zone() -> None:
    zone, who = plugin("VolumeZone"), READER.read(uses("c"))
    label = of(events.NODE, Action.UPDATE_NODE_LABEL)
    assert hint(zone, who, label, node("n"), node("n", labels={ZONE: "a"})) is Hint.QUEUE
    assert hint(zone, who, label, node("n"), node("n", labels={"x": "a"})) is Hint.SKIP


def test_what_wakes_a_pod_that_waits_for_a_disk_or_a_claim() -> None:
    restrictions, gone = plugin("VolumeRestrictions"), events.ASSIGNED_POD_DELETE
    who = READER.read(with_disk("gcePersistentDisk", pdName="a"))
    assert (
        hint(restrictions, who, gone, READER.read(with_disk("gcePersistentDisk", "q", pdName="a")), None) is Hint.QUEUE
    )
    assert (
        hint(restrictions, who, gone, READER.read(with_disk("gcePersistentDisk", "q", pdName="b")), None) is Hint.SKIP
    )
    assert hint(restrictions, READER.read(uses("c")), gone, READER.read(uses("c", name="q")), None) is Hint.QUEUE
    assert hint(restrictions, READER.read(uses("c")), gone, READER.read(uses("d", name="q")), None) is Hint.SKIP


def test_what_wakes_a_pod_that_waits_for_a_place_for_its_volume() -> None:
    limits, who = plugin("NodeVolumeLimits", *MANY), READER.read(uses("c0"))
    few, more, none = (csi_node("n", csi_example_com=count) for count in (1, 2, None))
    for old, new, wanted in (
        (None, few, Hint.QUEUE), (few, more, Hint.QUEUE), (few, none, Hint.QUEUE), (more, few, Hint.SKIP),
        (few, few, Hint.SKIP),
    ):  # fmt: skip
        action = Action.ADD if old is None else Action.UPDATE_OTHER
        assert hint(limits, who, of(events.CSI_NODE, action), old, new) is wanted
    gone = events.ASSIGNED_POD_DELETE
    assert hint(limits, who, gone, READER.read(uses("c1", name="q", nodeName="n")), None) is Hint.QUEUE
    assert hint(limits, who, gone, info("q", nodeName="n"), None) is Hint.SKIP


def test_every_event_of_these_plugins_is_of_a_kind_that_they_have_listed() -> None:
    from scheduler_plugins.framework.event_names import event_resource

    for name in ("VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"):
        made: Any = default_registry().build(name, {}, handle())
        listed = {event_resource(kind) for kind in made.kinds()} | {events.NODE, events.ASSIGNED_POD}
        assert {r.event.resource for r in made.events_to_register()} <= listed


@pytest.mark.parametrize("kind", ["persistentVolumeClaim", "ephemeral", "rbd", "awsElasticBlockStore"])
@pytest.mark.parametrize("source", [[], "x", 1], ids=str)
def test_a_placed_pod_whose_volumes_cannot_be_read_ends_no_cycle_of_others(kind: str, source: Any) -> None:
    rig = Rig()
    rig.offer(4000)
    rig.server.put(pod("odd", nodeName="n", volumes=[{"name": "v", kind: source}]))
    volumes = [{"name": "v", "rbd": {"image": "i", "monitors": "m"}}, {"name": "w", "awsElasticBlockStore": {}}]
    rig.server.put(pod("p", volumes=volumes))
    rig.settle()
    assert rig.where("p") == "n"
