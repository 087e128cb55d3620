"""Another agent on a node, and another writer of batch resources: nothing is sold, and who it is is said."""

from __future__ import annotations

import pytest

from slacktide.names import BATCH_CPU, BATCH_MEMORY, FORECAST_ANNOTATION
from tests.predictor.test_forecasting import CPU, GIB, Cluster, Stage

DAEMON = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "koordlet", "uid": "d", "controller": True}]


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.add_node()
    return cluster


@pytest.fixture
def stage(cluster, clock, metrics):
    return Stage(cluster, clock, metrics)


def rival(cluster, name="koordlet-x", image="example/koordlet:v1.8.0", owners=DAEMON, volumes=({"hostPath": {}},)):
    cluster.add_pod(name, "system", ownerReferences=owners)
    spec = cluster.pod_bodies[name]["spec"]
    spec["volumes"] = list(volumes)
    spec["containers"][0]["image"] = image


def wrote(cluster, manager, amount=31000, name="n1", at="2026-01-01T00:00:02Z"):
    """Another manager writes batch resources, as the API server would note it."""
    body = cluster.bodies[name]
    for part in ("capacity", "allocatable"):
        body["status"][part].update({BATCH_CPU: str(amount), BATCH_MEMORY: str(GIB)})
    fields = {"f:status": {"f:capacity": {f"f:{BATCH_CPU}": {}}, "f:allocatable": {f"f:{BATCH_CPU}": {}}}}
    kubelet = {"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:00:09Z", "fieldsV1": fields}
    entry = {"manager": manager, "operation": "Update", "time": at, "fieldsV1": fields, "subresource": "status"}
    body["metadata"]["managedFields"] = [entry, kubelet]


def test_beside_another_agent_the_node_is_closed_once_and_its_status_left_alone(stage, cluster):
    stage.run(3)
    assert cluster.amounts()[0] == str(CPU)
    rival(cluster)
    count = len(cluster.patches)
    stage.run(120)
    name, body = cluster.patches[count]
    assert (name, body["status"]) == ("n1", {"capacity": {}, "allocatable": {}})
    assert len(cluster.patches) == count + 1
    assert cluster.forecast().reclaimable.cpu_millis is None
    assert "Koordinator (pod d/koordlet-x)" in cluster.forecast().closed
    assert [(node, reason) for node, reason, _ in stage.events] == [("n1", "AnotherAgent")]
    assert "uninstall it, or keep the Slacktide agent off this node" in stage.events[0][2]


def test_when_the_other_agent_is_gone_selling_begins_again_without_a_restart(stage, cluster):
    stage.run(3)
    rival(cluster)
    stage.run(30)
    del cluster.pod_bodies["koordlet-x"]
    stage.run(1500, 10)
    assert cluster.forecast().closed == ""
    # It rises as after any closing: in steps, up to the dead band of 1 %.
    assert CPU - 320 < cluster.forecast().reclaimable.cpu_millis <= CPU


def test_a_node_that_was_never_ours_gets_nothing_at_all_beside_another_agent(stage, cluster):
    rival(cluster)
    stage.run(60)
    assert cluster.patches == []
    assert "Koordinator" in stage.board.get("n1").forecast.closed


@pytest.mark.parametrize(
    "what",
    [
        pytest.param({"owners": [{**DAEMON[0], "kind": "ReplicaSet"}]}, id="any tenant may deploy a pod of that name"),
        pytest.param({"volumes": ()}, id="without files of the node it is no agent"),
        pytest.param({"image": "example/koordlet-exporter:1"}, id="another program"),
    ],
)
def test_what_only_looks_like_an_agent_closes_nothing(stage, cluster, what):
    rival(cluster, **what)
    stage.run(3)
    assert cluster.forecast().closed == ""


def test_what_another_system_wrote_before_us_is_left_alone_as_long_as_it_runs(stage, cluster):
    wrote(cluster, "koord-manager")
    cluster.add_pod("manager", "system", node="elsewhere")
    cluster.pod_bodies["manager"]["spec"]["containers"][0]["image"] = "example/koord-manager:v1.8.0@sha256:0"
    stage.run(5)
    assert cluster.patches == []
    assert cluster.asked == ["n1"]
    assert [(node, reason) for node, reason, _ in stage.events] == [("n1", "ForecastConflict")]
    assert "koord-manager (Koordinator)" in stage.events[0][2]
    assert "koord-manager (Koordinator) publishes batch resources on 1 nodes" in stage.forecaster.problem()
    # It stands still for long, but its controller runs: it would only write again.
    stage.run(1000, 10)
    assert cluster.patches == []
    del cluster.pod_bodies["manager"]
    stage.run(1000, 10)
    assert cluster.amounts()[0] == str(CPU)
    assert FORECAST_ANNOTATION in cluster.bodies["n1"]["metadata"]["annotations"]
    assert stage.forecaster.problem() is None


def test_a_node_that_the_other_took_its_amounts_off_is_ours_though_it_runs_elsewhere(stage, cluster):
    wrote(cluster, "koord-manager")
    cluster.add_pod("manager", "system", node="elsewhere")
    cluster.pod_bodies["manager"]["spec"]["containers"][0]["image"] = "example/koord-manager:v1.8.0"
    stage.run(5)
    for part in ("capacity", "allocatable"):
        for name in (BATCH_CPU, BATCH_MEMORY):
            del cluster.bodies["n1"]["status"][part][name]
    stage.run(500, 10)
    assert cluster.patches == []
    stage.run(300, 10)
    assert cluster.amounts()[0] == str(CPU)


def test_one_write_of_a_known_system_is_enough_to_give_way(stage, cluster):
    stage.run(3)
    count = len(cluster.patches)
    wrote(cluster, "volcano-agent")
    stage.run(10)
    assert len(cluster.patches) == count
    assert "volcano-agent (Volcano)" in stage.events[0][2]


def test_a_single_change_by_hand_is_still_set_right(stage, cluster):
    stage.run(3)
    wrote(cluster, "kubectl-edit")
    stage.run(10)
    assert cluster.amounts()[0] == str(CPU)
    assert stage.events == []


def test_what_the_kubelet_copied_is_nobodys_writing(stage, cluster):
    wrote(cluster, "slacktide-predictor", 1000)
    stage.run(3)
    assert FORECAST_ANNOTATION in cluster.bodies["n1"]["metadata"]["annotations"]
