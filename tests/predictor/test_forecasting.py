"""The pass and the publisher against twins of the API: nodes and pods in memory, patches applied as a server would."""

from __future__ import annotations

import msgspec
import pytest

from predictor import models
from predictor.board import Board
from predictor.fleet import Fleet
from predictor.forecasting import Forecaster
from predictor.publisher import Publisher
from predictor.settings import PredictorSettings
from slacktide import forecast as wire
from slacktide.cluster.errors import Conflict, NotFound, Unreachable
from slacktide.forecast import Amount, Freshness
from slacktide.names import BATCH_CPU, BATCH_MEMORY, FORECAST_ANNOTATION
from slacktide.objects import Node, Pod
from slacktide.settings import ResourceNames
from tests.predictor.support import make_sample

GIB = 1 << 30


class Cluster:
    """Nodes and pods; merge patches of a node's status, with the checks of the real server that matter here."""

    def __init__(self):
        self.synced = True
        self.bodies = {}
        self.pod_bodies = {}
        self.patches = []
        self.failure = None

    def add_node(self, name="n1", uid="u1", cpu="32", memory="64Gi"):
        amounts = {"cpu": cpu, "memory": memory, "pods": "110"}
        self.bodies[name] = {
            "metadata": {"name": name, "uid": uid, "annotations": {"other": "kept"}},
            "status": {"capacity": dict(amounts), "allocatable": dict(amounts)},
        }

    def add_pod(self, name, tier="ls", requests=None, phase="Running", node="n1", **metadata):
        self.pod_bodies[name] = {
            "metadata": {"name": name, "namespace": "d", "labels": {"slacktide.io/tier": tier}, **metadata},
            "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": requests or {}}}]},
            "status": {"phase": phase},
        }

    def nodes(self):
        return [msgspec.convert(body, Node) for body in self.bodies.values()]

    def pods(self):
        return [msgspec.convert(body, Pod) for body in self.pod_bodies.values()]

    def patch(self, kind, name, namespace, body, subresource=None):
        if self.failure:
            raise self.failure
        assert (kind.plural, namespace, subresource) == ("nodes", None, "status")
        if name not in self.bodies:
            raise NotFound(404, "NotFound", f"node {name} not found")
        mine = self.bodies[name]
        if body["metadata"]["uid"] != mine["metadata"]["uid"]:
            raise Conflict(409, "Conflict", "uid differs")
        mine["metadata"]["annotations"].update(body["metadata"]["annotations"])
        for part in ("capacity", "allocatable"):
            mine["status"][part].update(body["status"][part])
        self.patches.append((name, body))

    def amounts(self, name="n1"):
        status = self.bodies[name]["status"]
        assert {k: status["capacity"].get(k) for k in (BATCH_CPU, BATCH_MEMORY)} == {
            k: status["allocatable"].get(k) for k in (BATCH_CPU, BATCH_MEMORY)
        }
        return status["capacity"].get(BATCH_CPU), status["capacity"].get(BATCH_MEMORY)

    def forecast(self, name="n1"):
        return wire.decode(self.bodies[name]["metadata"]["annotations"][FORECAST_ANNOTATION])


class Stage:
    def __init__(self, cluster, clock, metrics, **changed):
        self.cluster, self.clock, self.metrics = cluster, clock, metrics
        self.settings = PredictorSettings(**{"cold_seconds": 0.0, "window_days": 1.0, **changed})
        self.leader = True
        self.woken = []
        self.sequence = 0
        self.begin()

    def begin(self):
        """A predictor that starts; what the fleet knew is gone."""
        self.fleet = Fleet(self.settings.window_days, self.settings.stale_seconds, lambda: self.woken.append(1))
        self.board = Board()
        self.forecaster = Forecaster(
            self.fleet,
            models.create(self.settings.model, self.settings.window_days),
            self.board,
            self.cluster,
            Publisher(self.cluster, ResourceNames(), self.clock, self.metrics),
            lambda: self.leader,
            self.settings,
            self.clock,
            self.metrics,
        )

    def sample(self, node="n1", closed="", **values):
        self.sequence += 1
        end = int(self.clock.wall * 1000)
        self.fleet.observe(node, make_sample(self.sequence, end, **values), self.clock.monotonic, closed)

    def turn(self):
        self.forecaster.turn()

    def run(self, seconds, step=2, **values):
        """Let time pass with a sample and a pass every `step` seconds."""
        for _ in range(int(seconds / step)):
            self.clock.advance(step)
            self.sample(**values)
            self.turn()


@pytest.fixture
def cluster():
    cluster = Cluster()
    cluster.add_node()
    return cluster


@pytest.fixture
def stage(cluster, clock, metrics):
    return Stage(cluster, clock, metrics)


CPU = 32000 - 1600 - 4500
MEMORY = 64 * GIB - 64 * GIB // 20 - 1 - (2 * GIB + GIB // 2)


def test_the_first_sample_publishes_at_once_in_one_patch_with_every_term(stage, cluster, clock):
    stage.sample()
    stage.turn()
    assert stage.woken == [1]
    assert cluster.amounts() == (str(CPU), str(MEMORY))
    assert len(cluster.patches) == 1
    forecast = cluster.forecast()
    assert wire.freshness(forecast, clock.wall) is Freshness.FRESH
    assert forecast.ttl_seconds == 60.0
    assert forecast.reclaimable == Amount(cpu_millis=CPU, memory_bytes=MEMORY)
    assert forecast.terms.capacity == Amount(cpu_millis=32000, memory_bytes=64 * GIB)
    assert forecast.terms.reserve.cpu_millis == 1600
    assert forecast.terms.peak.cpu_millis == 4500
    assert forecast.terms.now.cpu_millis == 4500
    assert forecast.terms.sold == Amount(cpu_millis=0, memory_bytes=0)
    assert (forecast.terms.model, forecast.terms.risk, forecast.closed) == ("window_max", None, "")
    assert cluster.bodies["n1"]["metadata"]["annotations"]["other"] == "kept"
    assert cluster.bodies["n1"]["status"]["capacity"]["cpu"] == "32"


def test_use_of_best_effort_pods_is_no_part_of_it(stage, cluster):
    stage.sample(be_cpu_mean=20000, be_cpu_max=25000, be_memory_max=30 * GIB)
    stage.turn()
    assert cluster.amounts() == (str(CPU), str(MEMORY))


def test_the_published_room_stays_fresh_without_a_write_every_pass(stage, cluster, clock):
    stage.sample()
    stage.turn()
    for _ in range(60):
        stage.run(2)
        assert wire.freshness(cluster.forecast(), clock.wall) is Freshness.FRESH
    assert len(cluster.patches) <= 8


def test_a_rise_of_use_is_out_with_the_next_pass(stage, cluster):
    stage.sample()
    stage.turn()
    stage.run(2, ls_cpu_mean=4300)
    assert cluster.amounts()[0] == str(CPU - 300)


@pytest.mark.parametrize("cold_seconds", [3600.0])
def test_a_cold_node_counts_with_its_requests(cluster, clock, metrics, cold_seconds):
    stage = Stage(cluster, clock, metrics, cold_seconds=cold_seconds)
    # No pod of the API says so: the agent's own sum is taken.
    stage.sample(ls_requested_cpu=8000)
    stage.turn()
    assert cluster.amounts()[0] == str(32000 - 1600 - 8500)
    assert cluster.forecast().terms.note == "cold: requests"
    # A pod that was just bound counts before the agent has seen it.
    cluster.add_pod("fresh", requests={"cpu": "12"})
    stage.run(2)
    assert cluster.amounts()[0] == str(32000 - 1600 - 12500)


def test_a_standalone_machine_without_ls_pods_sells_at_once_though_cold(cluster, clock, metrics):
    stage = Stage(cluster, clock, metrics, cold_seconds=3600.0)
    none = {"ls_cpu_mean": 0, "ls_requested_cpu": 0, "ls_memory_max": 0, "ls_requested_memory": 0}
    stage.sample(**none)
    stage.turn()
    assert cluster.amounts()[0] == str(32000 - 1600 - 500)


def test_the_node_object_bounds_capacity(stage, cluster):
    # Also on an oversold node never above allocatable - peak.
    cluster.add_node(cpu="10")
    stage.sample()
    stage.turn()
    assert cluster.amounts()[0] == str(10000 - 500 - 4500)


def test_sold_counts_bound_and_terminating_pods_and_not_those_that_ended(stage, cluster):
    batch = {BATCH_CPU: "1000", BATCH_MEMORY: str(GIB)}
    cluster.add_pod("a", "be", batch)
    cluster.add_pod("b", "be", batch, phase="Pending")
    cluster.add_pod("leaving", "be", batch, deletionTimestamp="2026-01-01T00:00:00Z")
    cluster.add_pod("done", "be", batch, phase="Succeeded")
    cluster.add_pod("failed", "be", batch, phase="Failed")
    cluster.add_pod("elsewhere", "be", batch, node="n2")
    stage.sample()
    stage.turn()
    assert cluster.forecast().terms.sold == Amount(cpu_millis=3000, memory_bytes=3 * GIB)


def test_published_is_never_below_what_is_sold_and_the_node_says_that_it_is_full(stage, cluster):
    cluster.add_pod("a", "be", {BATCH_CPU: "20000", BATCH_MEMORY: str(GIB)})
    stage.sample()
    stage.turn()
    stage.run(2, ls_cpu_mean=29000)
    assert cluster.amounts()[0] == "20000"
    assert cluster.forecast().reclaimable.cpu_millis == 32000 - 1600 - 29500
    assert wire.room(cluster.forecast(), cluster.forecast().terms.sold, stage.clock.wall).cpu_millis == 0


MISSING = [({"ls_cpu_max": None, "ls_cpu_mean": None}, "cpu"), ({"system_memory_max": None}, "memory")]


@pytest.mark.parametrize(("missing", "resource"), MISSING)
def test_an_agent_that_never_measured_sells_nothing_and_never_reads_as_idle(stage, cluster, missing, resource):
    stage.sample(**missing)
    stage.turn()
    assert stage.board.get("n1").forecast.closed == f"{resource}: LS and SYSTEM use is not measured"
    assert cluster.patches == []
    stage.run(2)
    assert cluster.amounts() == (str(CPU), str(MEMORY))


@pytest.mark.parametrize(("missing", "resource"), MISSING)
def test_a_measurement_that_stops_closes_after_a_while_and_one_glitch_does_not(stage, cluster, missing, resource):
    stage.sample()
    stage.turn()
    stage.run(14, **missing)
    assert (cluster.amounts()[0], cluster.forecast().closed) == (str(CPU), "")
    stage.run(4, **missing)
    assert cluster.forecast().closed == "LS and SYSTEM use not measured for over 15 s"
    assert cluster.amounts() == ("0", "0")


@pytest.mark.parametrize("hole", [{}, {"ls_cpu_mean": None, "ls_cpu_max": None}])
def test_an_agent_that_closes_its_node_is_heard_at_once_also_with_a_hole_in_its_sample(stage, cluster, hole):
    stage.sample()
    stage.turn()
    woken = len(stage.woken)
    stage.clock.advance(1)
    stage.sample(closed="LS is short of CPU", **hole)
    assert len(stage.woken) == woken + 1
    stage.turn()
    assert cluster.forecast().closed == "closed by the agent: LS is short of CPU"
    stage.clock.advance(1)
    stage.sample()
    stage.turn()
    assert cluster.forecast().closed == ""


def test_an_old_sample_from_the_spool_does_not_close_a_node(stage, cluster, clock):
    stage.sample()
    old = make_sample(99, int((clock.wall - 100) * 1000))
    stage.fleet.observe("n1", old, clock.monotonic - 100, "LS was short of CPU")
    stage.turn()
    assert cluster.forecast().closed == ""


def test_a_dead_agent_is_aged_by_the_clock_alone(stage, cluster, clock):
    # Koordinator waits for an unrelated event of the node.
    cluster.add_pod("a", "be", {BATCH_CPU: "3000", BATCH_MEMORY: str(GIB)})
    stage.sample()
    stage.turn()
    published = [int(cluster.amounts()[0])]
    for _ in range(30):
        clock.advance(1)
        stage.turn()
        published.append(int(cluster.amounts()[0]))
    assert published == sorted(published, reverse=True)
    assert published[-1] == 3000
    assert "no sample from the agent for over 15 s" in cluster.forecast().closed
    # Closed is desired state and stays fresh, so that nobody takes it for a dead predictor.
    for _ in range(100):
        clock.advance(1)
        stage.turn()
    assert wire.freshness(cluster.forecast(), clock.wall) is Freshness.FRESH
    # The agent is back: the node reopens from what is sold, and rises by steps.
    stage.run(2)
    assert cluster.forecast().closed == ""
    assert int(cluster.amounts()[0]) == 3000
    stage.run(34)
    assert int(cluster.amounts()[0]) == 3000 + 6400


def test_samples_from_the_spool_do_not_reopen_a_dead_node(stage, cluster, clock):
    stage.sample()
    stage.turn()
    clock.advance(600)
    stage.turn()
    old = make_sample(99, int((clock.wall - 500) * 1000))
    stage.fleet.observe("n1", old, clock.monotonic - 500)
    clock.advance(2)
    stage.turn()
    assert "no sample" in cluster.forecast().closed


def test_a_restart_leaves_what_stands_until_the_agents_have_spoken(stage, cluster, clock):
    stage.sample()
    stage.turn()
    before = cluster.amounts()
    count = len(cluster.patches)
    stage.begin()
    stage.turn()
    clock.advance(14)
    stage.turn()
    assert (cluster.amounts(), len(cluster.patches)) == (before, count)
    clock.advance(2)
    stage.turn()
    assert cluster.amounts() == ("0", "0")
    assert cluster.forecast().closed == "no sample from the agent yet"


def test_a_restart_is_no_jump_upwards(stage, cluster, clock):
    stage.sample(ls_cpu_mean=20000)
    stage.turn()
    low = int(cluster.amounts()[0])
    stage.begin()
    stage.run(2)
    assert int(cluster.amounts()[0]) == low
    stage.run(34)
    assert int(cluster.amounts()[0]) == low + 6400


def test_history_that_was_read_back_bounds_the_first_forecast(stage, cluster, clock, tmp_path):
    from predictor.history import Batch, open_history

    history = open_history(str(tmp_path))
    history.append([Batch("n1", "b", [make_sample(1, int((clock.wall - 7200) * 1000), ls_cpu_mean=15000)])])
    stage.fleet.restore(history.window(0))
    history.close()
    stage.sample()
    stage.turn()
    assert cluster.amounts()[0] == str(32000 - 1600 - 15500)


def test_only_the_leader_writes_and_a_new_leader_reads_what_the_old_one_wrote(cluster, clock, metrics):
    one, other = Stage(cluster, clock, metrics), Stage(cluster, clock, metrics)
    other.leader = False
    one.sample(ls_cpu_mean=20000)
    other.sample()
    one.turn()
    other.turn()
    low = int(cluster.amounts()[0])
    assert low == 32000 - 1600 - 20500
    assert other.board.get("n1").forecast.reclaimable.cpu_millis == CPU
    one.leader, other.leader = False, True
    count = len(cluster.patches)
    one.run(2)
    assert len(cluster.patches) == count
    other.run(2)
    assert int(cluster.amounts()[0]) == low


def test_nothing_is_published_before_nodes_and_pods_are_known(stage, cluster):
    cluster.synced = False
    stage.sample()
    stage.turn()
    assert cluster.patches == []
    assert stage.board.get("n1").forecast.closed == "what is sold here is not known"
    cluster.synced = True
    stage.turn()
    assert cluster.amounts()[0] == str(CPU)


def test_a_node_without_an_agent_is_left_alone(stage, cluster, clock):
    clock.advance(100)
    stage.turn()
    assert cluster.patches == []


def test_a_node_that_was_created_anew_is_published_whole(stage, cluster):
    stage.sample(ls_cpu_mean=20000)
    stage.turn()
    cluster.add_node(uid="u2")
    stage.run(2)
    assert cluster.amounts()[0] == str(32000 - 1600 - 20500)
    assert cluster.patches[-1][1]["metadata"]["uid"] == "u2"


def test_a_node_that_is_gone_is_forgotten(stage, cluster, registry):
    stage.sample()
    stage.turn()
    del cluster.bodies["n1"]
    stage.turn()
    assert stage.board.get("n1") is None
    assert stage.fleet.view(stage.clock.wall).names == []
    assert registry.get_sample_value("slacktide_predictor_published", {"node": "n1", "resource": "cpu"}) is None


def test_one_node_that_is_refused_does_not_stop_the_others(stage, cluster):
    cluster.add_node("n2", uid="u2")
    stage.sample("n1")
    stage.sample("n2")
    nodes = cluster.nodes()
    cluster.bodies["n1"]["metadata"]["uid"] = "another"
    cluster.nodes = lambda: nodes
    stage.turn()
    assert [name for name, _ in cluster.patches] == ["n2"]


def test_an_api_that_is_away_is_said_and_the_newest_wins_afterwards(stage, cluster):
    cluster.failure = Unreachable("connection refused")
    stage.sample()
    stage.turn()
    assert "connection refused" in stage.forecaster.problem()
    assert stage.board.get("n1").forecast.reclaimable.cpu_millis == CPU
    cluster.failure = None
    stage.run(2, ls_cpu_mean=10000)
    assert cluster.amounts()[0] == str(32000 - 1600 - 10500)
    assert stage.forecaster.problem() is None


@pytest.mark.parametrize("what", ["amount", "annotation", "one half"])
def test_what_somebody_else_wrote_is_set_right(stage, cluster, what):
    stage.sample()
    stage.turn()
    body = cluster.bodies["n1"]
    if what == "annotation":
        del body["metadata"]["annotations"][FORECAST_ANNOTATION]
    else:
        body["status"]["allocatable"][BATCH_CPU] = "31000"
        if what == "amount":
            body["status"]["capacity"][BATCH_CPU] = "31000"
    stage.run(6)
    assert cluster.amounts()[0] == str(CPU)
    assert cluster.forecast().reclaimable.cpu_millis == CPU


def test_an_annotation_that_cannot_be_read_starts_from_the_status(cluster, clock, metrics):
    cluster.bodies["n1"]["metadata"]["annotations"][FORECAST_ANNOTATION] = "{broken"
    for part in ("capacity", "allocatable"):
        cluster.bodies["n1"]["status"][part].update({BATCH_CPU: "1000", BATCH_MEMORY: str(GIB)})
    stage = Stage(cluster, clock, metrics)
    stage.sample()
    stage.turn()
    assert cluster.amounts()[0] == "1000"
    assert cluster.forecast().reclaimable.cpu_millis == 1000


def test_a_pod_that_cannot_be_read_closes_its_node_alone(stage, cluster, registry):
    cluster.add_node("n2", uid="u2")
    cluster.add_pod("bad", "be", {BATCH_CPU: "1.5.2"})
    stage.sample("n1")
    stage.sample("n2")
    stage.turn()
    assert stage.board.get("n1").forecast.closed == "what is sold here is not known"
    assert cluster.amounts("n2")[0] == str(CPU)
    assert registry.get_sample_value("slacktide_predictor_skipped_pods_total") == 1


def test_metrics_of_a_node(stage, registry):
    stage.sample()
    stage.turn()
    cpu = {"node": "n1", "resource": "cpu"}
    assert registry.get_sample_value("slacktide_predictor_reclaimable", cpu) == CPU
    assert registry.get_sample_value("slacktide_predictor_published", cpu) == CPU
    assert registry.get_sample_value("slacktide_predictor_closed", {"node": "n1"}) == 0
    assert registry.get_sample_value("slacktide_predictor_leader") == 1
    assert registry.get_sample_value("slacktide_predictor_publications_total", {"cause": "first"}) == 1
