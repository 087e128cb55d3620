from __future__ import annotations

import json
import time

import pytest

from slacktide import names
from tests.scheduler_plugins.build import GI, forecast

ZONE = "topology.kubernetes.io/zone"


def node(name, zone, cpu=4000, **spec):
    offered = {"cpu": "8", "memory": "32Gi", "pods": "110", names.BATCH_CPU: str(cpu)}
    labels = {ZONE: zone, "kubernetes.io/hostname": name}
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"capacity": offered, "allocatable": offered},
    }


def pod(name, where="", cpu=1000, **spec):
    requests = {names.BATCH_CPU: str(cpu)}
    owner = {"kind": "Job", "name": "train", "uid": "u", "controller": True}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "batch",
            "uid": f"uid-{name}",
            "labels": {"app": "train"},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": where, "containers": [{"name": "c", "resources": {"requests": requests}}], **spec},
        "status": {"phase": "Running" if where else "Pending"},
    }


@pytest.fixture
def dump(tmp_path):
    def write(*items):
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(items)}))
        return str(path)

    return write


def found(command, out, *arguments):
    assert command("placement-check", *arguments, "-o", "json") == 0
    return json.loads(out.text)


def by_question(document):
    return {one["question"]: one for one in document["findings"]}


def test_a_lopsided_placement_is_told_by_resource_and_by_domain(command, out, err, dump):
    path = dump(
        node("a", "north"),
        node("b", "south"),
        *(pod(f"p{i}", "a") for i in range(4)),
    )
    document = found(command, out, path)
    findings = by_question(document)
    fullest = findings[f"fullest node, {names.BATCH_CPU}"]
    assert (fullest["now"], fullest["best"], fullest["gap"], fullest["exact"]) == (100, 50, 50, True)
    zones = findings[f"Job/batch/train over {ZONE}"]
    assert (zones["now"], zones["best"], zones["exact"]) == (4, 0, True)
    assert (document["pods"], document["nodes"], document["unplaced"], document["possible"]) == (4, 2, 0, True)


def test_packing_asks_for_as_few_nodes_as_can_be(command, out, err, dump):
    path = dump(
        node("a", "north"), node("b", "south"), node("c", "south"), *(pod(f"p{i}", n) for i, n in enumerate("abc"))
    )
    nodes = by_question(found(command, out, path, "--aim", "pack"))["nodes in use"]
    assert (nodes["now"], nodes["best"], nodes["exact"]) == (3, 1, True)


def test_cordoned_and_tainted_nodes_take_nothing(command, out, err, dump):
    taint = {"key": "k", "effect": "NoSchedule"}
    path = dump(
        node("a", "north"),
        node("b", "south", unschedulable=True),
        node("c", "south", taints=[taint]),
        *(pod(f"p{i}", "a") for i in range(4)),
    )
    fullest = by_question(found(command, out, path))[f"fullest node, {names.BATCH_CPU}"]
    assert (fullest["best"], fullest["exact"]) == (100, True)


def test_pods_of_other_tiers_stay_and_take_their_room(command, out, err, dump):
    online = pod("online", "a", cpu=3000)
    online["metadata"]["labels"] = {names.TIER_LABEL: "ls"}
    path = dump(node("a", "north"), node("b", "south"), online, pod("p0", "a"), pod("p1", "b"))
    fullest = by_question(found(command, out, path))[f"fullest node, {names.BATCH_CPU}"]
    assert (fullest["now"], fullest["best"]) == (100, 75)


def test_what_can_never_fit_is_said(command, out, err, dump):
    path = dump(node("a", "north"), *(pod(f"p{i}") for i in range(5)))
    assert command("placement-check", path) == 0
    assert "not even a new placement would hold all of them" in err.text


def test_rules_that_the_solver_does_not_know_are_named(command, out, err, dump):
    term = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "other"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    path = dump(node("a", "north"), pod("p0", "a", affinity=affinity))
    assert command("placement-check", path) == 0
    assert "bound" in out.text
    assert "required pod anti-affinity over rack" in err.text


@pytest.mark.parametrize("tier", ["be", "ls"])
def test_a_pod_of_several_files_counts_once_as_the_last_one_has_it(command, out, err, tmp_path, tier):
    """Also one that stays where it is, and pods that were written by hand without a uid."""
    paths = []
    for where in ("a", "b"):
        pods = [pod("p0", where), pod("p1", where)]
        for one in pods:
            del one["metadata"]["uid"]
        path = tmp_path / f"{where}.json"
        path.write_text(json.dumps({"kind": "List", "items": [node("a", "north"), node("b", "south"), *pods]}))
        paths.append(str(path))
    document = found(command, out, *paths, "--tier", tier)
    assert (document["nodes"], document["pods"]) == (2, 2 if tier == "be" else 0)
    if tier == "be":
        assert by_question(document)[f"fullest node, {names.BATCH_CPU}"]["detail"].startswith("b;")


@pytest.mark.parametrize(("older_seconds", "best"), [(0, 50), (3600, 100)])
def test_a_dump_of_yesterday_is_judged_as_of_then(command, out, err, dump, older_seconds, best):
    """What has expired at that time counts for nothing."""
    at = time.time() - 86_400
    nodes = [node("a", "north"), node("b", "south")]
    for one, made in zip(nodes, (at, at - older_seconds), strict=True):
        one["metadata"]["annotations"] = {names.FORECAST_ANNOTATION: forecast(4000, 32 * GI, at=made)}
    document = found(command, out, dump(*nodes, *(pod(f"p{i}", "a") for i in range(4))))
    assert document["possible"]
    assert by_question(document)[f"fullest node, {names.BATCH_CPU}"]["best"] == best


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not the JSON that kubectl get -o json writes"),
        ('{"kind": "List", "items": [{"kind": "Node", "metadata": 3}]}', "item 0 (Node)"),
        ('{"kind": "List", "items": []}', "there is no node"),
    ],
)
def test_bad_files_are_named(command, err, tmp_path, text, said):
    path = tmp_path / "broken.json"
    path.write_text(text)
    assert command("placement-check", str(path)) != 0
    assert said in err.text


def test_the_running_slacktide_is_asked_where_no_file_is_named(command, out, err, twin):
    twin.nodes = [node("a", "north")]
    document = found(command, out)
    assert (document["nodes"], document["pods"]) == (1, 0)


@pytest.mark.parametrize(
    "spec",
    [{"affinity": {"podAffinity": "x"}}, {"topologySpreadConstraints": [{"topologyKey": ZONE, "maxSkew": "x"}]}],
    ids=str,
)
def test_rules_that_cannot_be_read_make_it_a_bound_and_are_named(command, out, err, dump, spec):
    path = dump(node("a", "north"), node("b", "south"), pod("p0", "a"), pod("p1", "a", **spec))
    fullest = by_question(found(command, out, path))[f"fullest node, {names.BATCH_CPU}"]
    assert (fullest["now"], fullest["exact"]) == (50, False)
    assert "affinity or spread that cannot be read" in out.text + err.text
