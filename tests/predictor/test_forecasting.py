"""The pass and the publisher against twins of the API: nodes and pods in memory, patches applied as a server would."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from predictor.board import Board
from predictor.fleet import Fleet
from predictor.forecasting import Forecaster
from predictor.history import Window
from predictor.metrics import Metrics
from predictor.peaks import Peaks
from predictor.pods import PodUse
from predictor.published import names_of
from predictor.publisher import _WRITERS, Publisher
from predictor.settings import ForecastSettings, MidSettings, PoolSettings, PredictorSettings
from predictor.slots import slot_of
from slacktide import forecast as wire
from slacktide.cluster import Listing
from slacktide.cluster.election import ElectionSettings, next_step
from slacktide.cluster.errors import Conflict, NotFound, Unreachable
from slacktide.forecast import Amount, Freshness, Origin, Zone
from slacktide.names import BATCH_CPU, BATCH_MEMORY, FORECAST_ANNOTATION, MID_CPU, MID_MEMORY
from slacktide.objects import Lease, LeaseSpec, Node, Pod
from tests.predictor.support import FakeClock, TwinEngine, make_sample

GIB = 1 << 30


def rfc3339(wall):
    return datetime.fromtimestamp(wall, UTC).isoformat()


class Cluster:
    """Nodes and pods; merge patches of a node's status, with the checks of the real server that matter here."""

    def __init__(self):
        self.synced = True
        self.bodies = {}
        self.pod_bodies = {}
        self.patches = []
        self.asked = []
        self.failure = None

    def add_node(self, name="n1", uid="u1", cpu="32", memory="64Gi", labels=None):
        amounts = {"cpu": cpu, "memory": memory, "pods": "110"}
        self.bodies[name] = {
            "metadata": {
                "name": name,
                "uid": uid,
                "resourceVersion": "1",
                "labels": labels or {},
                "annotations": {"other": "kept"},
            },
            "status": {"capacity": dict(amounts), "allocatable": dict(amounts)},
        }

    def add_pod(self, name, tier="ls", requests=None, phase="Running", node="n1", started=None, **metadata):
        labels = {"slacktide.io/tier": tier, **metadata.pop("labels", {})}
        self.pod_bodies[name] = {
            "metadata": {"name": name, "namespace": "d", "uid": f"uid-{name}", "labels": labels, **metadata},
            "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": requests or {}}}]},
            "status": {"phase": phase, **({} if started is None else {"startTime": rfc3339(started)})},
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
        version = mine["metadata"]["resourceVersion"]
        if body["metadata"].get("resourceVersion", version) != version:
            raise Conflict(409, "Conflict", "the object has been modified")
        mine["metadata"]["resourceVersion"] = str(int(version) + 1)
        mine["metadata"]["annotations"].update(body["metadata"]["annotations"])
        for part in ("capacity", "allocatable"):
            mine["status"][part].update(body["status"][part])
        self.patches.append((name, body))

    def list(self, kind, *, field_selector):
        name = field_selector.removeprefix("metadata.name=")
        self.asked.append(name)
        return Listing((msgspec.convert(self.bodies[name], kind.view),), "1")

    def amounts(self, name="n1"):
        status = self.bodies[name]["status"]
        assert {k: status["capacity"].get(k) for k in (BATCH_CPU, BATCH_MEMORY)} == {
            k: status["allocatable"].get(k) for k in (BATCH_CPU, BATCH_MEMORY)
        }
        return status["capacity"].get(BATCH_CPU), status["capacity"].get(BATCH_MEMORY)

    def forecast(self, name="n1"):
        return wire.decode(self.bodies[name]["metadata"]["annotations"][FORECAST_ANNOTATION])


class Stage:
    """One predictor. Twin engines, so that a test names every peak; steps run inside the pass that asks for them."""

    def __init__(self, cluster, clock, metrics, forecast=None, known=("n1", "n2"), **changed):
        self.cluster, self.clock, self.metrics = cluster, clock, metrics
        forecast = ForecastSettings(**{"cold_seconds": 0.0, "window_days": 1.0, **(forecast or {})})
        self.settings = PredictorSettings(**{"forecast": forecast, "writes_per_second": 1000.0, **changed})
        self.leader = True
        self.woken = []
        self.events = []
        self.retired = []
        self.saved = {}
        self.sequence = 0
        self.known = known
        self.begin()

    def remember(self, names, ago_seconds=7200, cpu=1.0, memory=1.0):
        """A slot of a past that history remembers."""
        slot = np.full(len(names), slot_of(int((self.clock.wall - ago_seconds) * 1000)))
        use = [np.full(len(names), value, dtype=float) for value in (cpu, memory)]
        self.fleet.restore(Window(list(names), np.arange(len(names)), slot, *use))

    def begin(self):
        """A predictor that starts; what the fleet knew is gone."""
        forecast = self.settings.forecast
        self.fleet = Fleet(forecast.window_days, self.settings.stale_seconds, lambda: self.woken.append(1))
        self.remember(self.known)
        self.board = Board()
        self.engines = {name: TwinEngine(forecast.cold_seconds) for name in ("cpu", "memory")}
        self.peaks = Peaks(
            self.engines.__getitem__, lambda job: job(), self.saved.__setitem__, self.clock, self.metrics
        )
        self.forecaster = Forecaster(
            self.fleet,
            self.peaks,
            self.board,
            self.cluster,
            Publisher(self.cluster, names_of(self.settings), self.clock, self.metrics, self.warn),
            lambda: self.leader,
            self.retired.append,
            self.settings,
            self.clock,
            self.metrics,
        )

    def warn(self, node, reason, message):
        self.events.append((node.metadata.name, reason, message))

    def sample(self, node="n1", closed="", pods=(), **values):
        self.sequence += 1
        end = int(self.clock.wall * 1000)
        self.fleet.observe(node, make_sample(self.sequence, end, **values), self.clock.monotonic, closed, pods)

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


NOTHING = Amount(cpu_millis=0, memory_bytes=0)
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
    assert forecast.ttl_seconds == 120.0
    assert forecast.reclaimable == Amount(cpu_millis=CPU, memory_bytes=MEMORY)
    assert forecast.terms.capacity == Amount(cpu_millis=32000, memory_bytes=64 * GIB)
    assert forecast.terms.reserve.cpu_millis == 1600
    assert forecast.terms.peak.cpu_millis == 4500
    assert forecast.terms.now.cpu_millis == 4500
    assert forecast.terms.sold == Amount(cpu_millis=0, memory_bytes=0)
    assert (forecast.terms.model, forecast.terms.risk, forecast.closed) == ("twin", 0.01, "")
    assert forecast.terms.cpu == Origin(path="model", model="twin", risk=0.01, shift=0.1)
    assert forecast.terms.memory == Origin(path="model", model="twin", risk=0.001, shift=0.1)
    assert forecast.horizon_seconds == 3600.0
    assert forecast.zones == ()
    assert forecast.mid == Amount()
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
    stage = Stage(cluster, clock, metrics, {"cold_seconds": cold_seconds})
    # No pod of the API says so: the agent's own sum is taken.
    stage.sample(ls_requested_cpu=8000)
    stage.turn()
    assert cluster.amounts()[0] == str(32000 - 1600 - 8500)
    assert cluster.forecast().terms.note == "cold: requests"
    # A pod that was just bound counts before the agent has seen it, beside what is used without it.
    cluster.add_pod("fresh", requests={"cpu": "12"})
    stage.run(2)
    assert cluster.amounts()[0] == str(32000 - 1600 - 4500 - 12000)


def test_a_standalone_machine_without_ls_pods_sells_at_once_though_cold(cluster, clock, metrics):
    stage = Stage(cluster, clock, metrics, {"cold_seconds": 3600.0})
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
    assert cluster.forecast().terms.note == "LS and SYSTEM use not measured for over 15 s: room fades"
    assert 0 < int(cluster.amounts()[0]) < CPU
    stage.run(900, 10, **missing)
    assert cluster.forecast().closed == "LS and SYSTEM use not measured for over 900 s"
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
    # peer-koordinator.md, section 10, case 4: ages of 0, 3, 10 and 16 minutes, and no event of the cluster.
    cluster.add_pod("a", "be", {BATCH_CPU: "3000", BATCH_MEMORY: str(GIB)})
    stage.sample()
    stage.turn()
    published = [int(cluster.amounts()[0])]
    for _ in range(32):
        clock.advance(30)
        stage.turn()
        published.append(int(cluster.amounts()[0]))
    assert published == sorted(published, reverse=True)
    now, three, ten, sixteen = (published[2 * minutes] for minutes in (0, 3, 10, 16))
    assert now == CPU > three > ten > 3000 == sixteen
    assert wire.room(cluster.forecast(), cluster.forecast().terms.sold, clock.wall).cpu_millis == 0
    assert "no sample from the agent for over 900 s" in cluster.forecast().closed
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


def test_an_agent_that_is_away_for_a_moment_changes_nothing(stage, cluster, clock):
    stage.sample()
    stage.turn()
    clock.advance(14)
    stage.turn()
    assert cluster.amounts()[0] == str(CPU)


def test_samples_from_the_spool_bring_no_room_to_a_dead_node(stage, cluster, clock):
    stage.sample()
    stage.turn()
    clock.advance(1000)
    stage.turn()
    old = make_sample(99, int((clock.wall - 500) * 1000))
    stage.fleet.observe("n1", old, clock.monotonic - 500)
    stage.fleet.observe("n1", make_sample(100, int((clock.wall - 950) * 1000)), clock.monotonic - 950)
    for _ in range(100):
        clock.advance(2)
        stage.turn()
        assert cluster.amounts() == ("0", "0")
    assert wire.room(cluster.forecast(), cluster.forecast().terms.sold, clock.wall) == NOTHING


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
    # What was measured before was another machine.
    assert stage.retired == ["n1"]
    assert len(cluster.patches) == 1
    stage.run(2)
    assert cluster.amounts()[0] == str(CPU)
    assert cluster.patches[-1][1]["metadata"]["uid"] == "u2"


def test_a_node_that_is_gone_is_forgotten(stage, cluster, registry):
    stage.sample()
    stage.turn()
    del cluster.bodies["n1"]
    stage.turn()
    assert stage.board.get("n1") is None
    assert stage.fleet.view(stage.clock.wall).names == ["n2"]
    assert registry.get_sample_value("slacktide_predictor_published", {"node": "n1", "resource": "cpu"}) is None


def test_a_node_that_only_the_history_knows_is_forgotten_once_agents_had_time_to_speak(stage):
    stage.run(14)
    assert stage.fleet.view(stage.clock.wall).names == ["n1", "n2"]
    stage.run(4)
    assert stage.fleet.view(stage.clock.wall).names == ["n1"]


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


# Pods that are too young to know.


def use(name, cpu, memory=0):
    return PodUse(f"uid-{name}", "d", name, cpu, memory)


def owned(kind, name):
    return {"ownerReferences": [{"kind": kind, "name": name, "controller": True}]}


def replica(replica_set, template):
    return {**owned("ReplicaSet", f"{replica_set}-{template}"), "labels": {"pod-template-hash": template}}


OLD = -30 * 86400


def test_a_pod_that_was_just_placed_counts_with_its_request_before_anybody_measures_it(stage, cluster, clock):
    # Koordinator 2.6.1: advertised too high right after an LS pod was scheduled.
    cluster.add_pod("old", requests={"cpu": "6"}, started=clock.wall + OLD)
    stage.sample(pods=[use("old", 4000)])
    stage.turn()
    assert cluster.amounts()[0] == str(CPU)
    cluster.add_pod("new", requests={"cpu": "4", "memory": "1Gi"}, started=clock.wall)
    stage.turn()
    assert cluster.amounts() == (str(CPU - 4000), str(MEMORY - GIB))
    terms = cluster.forecast().terms
    assert (terms.newcomers.cpu_millis, terms.newcomer_pods) == (4000, 1)
    assert terms.note == "young LS pods: 1"
    # It runs and is measured: what it uses is no more news, the rest of its request is.
    stage.run(2, ls_cpu_mean=5000, pods=[use("old", 4000), use("new", 1000)])
    assert cluster.amounts()[0] == str(32000 - 1600 - 4500 - 4000)
    clock.advance(3600)
    stage.sample(ls_cpu_mean=5000, pods=[use("old", 4000), use("new", 1000)])
    stage.turn()
    assert cluster.forecast().terms.newcomer_pods == 0


def test_a_pod_that_cannot_be_measured_counts_with_its_request_for_ever(stage, cluster, clock):
    # peers.md, row 28 (Katalyst issue 953): one container without metrics took the whole headroom.
    cluster.add_pod("old", requests={"cpu": "6"}, started=clock.wall + OLD)
    cluster.add_pod("unmeasured", requests={"cpu": "4"}, started=clock.wall + OLD)
    stage.sample(pods=[use("old", 4000)])
    stage.turn()
    assert cluster.amounts()[0] == str(CPU - 4000)


def test_a_roll_out_counts_the_workload_once(stage, cluster, clock):
    # Koordinator issue 1906, and case 2: what goes is still measured, what comes counts by request.
    cluster.add_pod("web-1", requests={"cpu": "4"}, started=clock.wall + OLD, **replica("web", "1a"))
    stage.run(900, 60, pods=[use("web-1", 3500)])
    assert cluster.amounts()[0] == str(CPU)
    cluster.add_pod("web-2", requests={"cpu": "4"}, started=clock.wall, **replica("web", "2b"))
    cluster.pod_bodies["web-1"]["metadata"]["deletionTimestamp"] = rfc3339(clock.wall)
    stage.turn()
    # The group is known: its pods need 3.5 cores, and those are in use and peak already.
    assert stage.board.get("n1").forecast.terms.newcomers.cpu_millis == 0
    assert cluster.amounts()[0] == str(CPU)
    del cluster.pod_bodies["web-1"]
    stage.turn()
    assert cluster.amounts()[0] == str(CPU)
    # The old one is gone from the samples too; the peak still has its 3.5 cores, for the new one.
    stage.run(2, ls_cpu_mean=600, pods=[use("web-2", 100)])
    forecast = stage.board.get("n1").forecast
    assert (forecast.terms.newcomer_pods, forecast.terms.newcomers.cpu_millis) == (1, 0)
    assert forecast.reclaimable.cpu_millis == CPU
    # The next peak rests on rows without it: now the new one counts, with what its like need.
    stage.engines["cpu"].peaks = 1000.0
    stage.run(600, 60, ls_cpu_mean=600, pods=[use("web-2", 100)])
    forecast = stage.board.get("n1").forecast
    assert forecast.terms.newcomers.cpu_millis == 3500
    assert forecast.reclaimable.cpu_millis == 32000 - 1600 - 1100 - 3500


def test_a_scale_out_counts_every_new_pod(stage, cluster, clock):
    cluster.add_pod("web-1", requests={"cpu": "4"}, started=clock.wall + OLD, **replica("web", "1a"))
    stage.run(900, 60, pods=[use("web-1", 3500)])
    for number in (2, 3):
        cluster.add_pod(f"web-{number}", requests={"cpu": "4"}, started=clock.wall, **replica("web", "1a"))
    stage.turn()
    assert cluster.amounts()[0] == str(CPU - 2 * 3500)


def test_the_pods_of_a_cron_job_count_with_what_its_runs_needed(stage, cluster, clock):
    cluster.add_pod("night-1", requests={"cpu": "8"}, started=clock.wall - 7200, **owned("Job", "night-28900000"))
    stage.run(900, 60, pods=[use("night-1", 2000)])
    del cluster.pod_bodies["night-1"]
    stage.run(900, 60, ls_cpu_mean=0)
    cluster.add_pod("night-2", requests={"cpu": "8"}, started=clock.wall, **owned("Job", "night-28900060"))
    stage.turn()
    assert cluster.forecast().terms.newcomers.cpu_millis == 2000


def test_mid_pods_hold_what_they_ask_for(stage, cluster, clock):
    # peer-koordinator.md, 2.6.2 and case 7 (issue 1729): invisible to the batch formula there.
    stage.sample()
    stage.turn()
    cluster.add_pod("mid", requests={MID_CPU: "3000", MID_MEMORY: str(GIB)}, started=clock.wall)
    stage.turn()
    assert cluster.amounts() == (str(CPU - 3000), str(MEMORY - GIB))


def test_pods_that_ended_are_in_no_sum(stage, cluster, clock):
    # peer-koordinator.md, section 10, case 11.
    for number, phase in enumerate(("Succeeded", "Failed")):
        cluster.add_pod(f"ended-{number}", requests={"cpu": "9"}, phase=phase, started=clock.wall)
    stage.sample()
    stage.turn()
    assert cluster.amounts()[0] == str(CPU)


# Settings by node.


def test_pools_zones_and_the_mid_tier(cluster, clock, metrics):
    cluster.add_node("n2", uid="u2", labels={"pool": "gold"})
    gold = PoolSettings(name="gold", match_labels={"pool": "gold"}, reserve_cpu_percent=25.0, cap_memory_percent=10.0)
    stage = Stage(cluster, clock, metrics, pools=(gold,))
    stage.sample("n1")
    stage.sample("n2")
    stage.turn()
    assert cluster.amounts("n1") == (str(CPU), str(MEMORY))
    assert cluster.amounts("n2") == (str(32000 - 8000 - 4500), str(64 * GIB // 10))
    assert (cluster.forecast("n1").terms.pool, cluster.forecast("n2").terms.pool) == ("", "gold")


def test_zones_of_unlike_size_share_what_is_needed_by_size_and_a_pinned_pod_burdens_its_own(stage, cluster, clock):
    # peers.md, row 26 (Katalyst cccc115a): split equally, the small zone was sold far too much.
    zones = (
        Zone(id=0, capacity=Amount(cpu_millis=24000)),
        Zone(id=1, capacity=Amount(cpu_millis=8000)),
    )
    placed = '{"cpuset":"24-27","numaNodeResources":[{"node":1,"resources":{"cpu":"4"}}]}'
    cluster.add_pod(
        "db",
        requests={"cpu": "4"},
        started=clock.wall + OLD,
        annotations={"scheduling.koordinator.sh/resource-status": placed},
    )
    end = int(clock.wall * 1000)
    stage.fleet.observe("n1", make_sample(1, end), clock.monotonic, "", [use("db", 4000)], zones)
    stage.turn()
    found = {zone.id: zone.reclaimable.cpu_millis for zone in cluster.forecast().zones}
    # 500 of SYSTEM and 1600 of reserve by size, db where it is.
    assert found == {0: 24000 - 1575, 1: 8000 - 4000 - 525}
    assert sum(found.values()) == CPU
    assert [zone.reclaimable.memory_bytes for zone in cluster.forecast().zones] == [None, None]


def test_the_mid_tier_gets_what_ls_asked_for_and_will_not_use_when_it_is_on(cluster, clock, metrics):
    stage = Stage(cluster, clock, metrics, mid=MidSettings(enabled=True, cap_percent=50.0))
    cluster.add_pod("old", requests={"cpu": "20", "memory": "10Gi"}, started=clock.wall + OLD)
    stage.sample(pods=[use("old", 4000)])
    stage.turn()
    status = cluster.bodies["n1"]["status"]
    # Requests of 20 and SYSTEM of 0.5 against a need of 4.5 cores, and half of the node at most.
    assert status["capacity"][MID_CPU] == status["allocatable"][MID_CPU] == "16000"
    assert cluster.forecast().mid.cpu_millis == 16000
    stage.run(2, ls_cpu_mean=9000, pods=[use("old", 9000)])
    assert status["capacity"][MID_CPU] == str(20500 - 9500)
    # Never below what mid pods hold.
    cluster.add_pod("mid", requests={MID_CPU: "13000"}, started=clock.wall + OLD)
    stage.run(2, ls_cpu_mean=25000, pods=[use("old", 12000), use("mid", 13000)])
    assert status["capacity"][MID_CPU] == "13000"


# What stands in the way of publishing.


def test_drops_go_first_when_writes_are_few_and_the_newest_of_the_rest_follow(cluster, clock, metrics, registry):
    names = [f"n{number}" for number in range(1, 7)]
    for number, name in enumerate(names):
        cluster.add_node(name, uid=f"u{number}")
    stage = Stage(cluster, clock, metrics, known=names, writes_per_second=1.0, writes_burst=6, rise_wait_seconds=0.0)
    for name in names:
        stage.sample(name, ls_cpu_mean=10000)
    stage.turn()
    assert len(cluster.patches) == 6
    clock.advance(2)
    for name in names[:4]:
        stage.sample(name, ls_cpu_mean=1000)
    stage.engines["cpu"].peaks = 1.0
    stage.sample("n5", ls_cpu_mean=11000)
    stage.sample("n6", ls_cpu_mean=20000)
    stage.turn()
    assert [name for name, _ in cluster.patches[6:]] == ["n6", "n5"]
    assert registry.get_sample_value("slacktide_predictor_waiting_writes") == 0


def test_an_api_that_is_away_is_tried_again_with_growing_pauses(stage, cluster):
    calls = []
    patch = cluster.patch

    def counting(*arguments, **more):
        calls.append(stage.clock.monotonic)
        return patch(*arguments, **more)

    cluster.patch = counting
    cluster.failure = Unreachable("connection refused")
    stage.run(60)
    assert 4 <= len(calls) <= 12
    assert "connection refused" in stage.forecaster.problem()
    assert max(later - earlier for earlier, later in pairwise(calls)) >= 8
    cluster.failure = None
    stage.run(40, ls_cpu_mean=10000)
    assert cluster.amounts()[0] == str(32000 - 1600 - 10500)
    assert stage.forecaster.problem() is None


def test_another_controller_under_the_same_names_makes_us_give_way_and_say_so(stage, cluster, registry):
    stage.sample()
    stage.turn()

    def meddle(amount):
        for part in ("capacity", "allocatable"):
            cluster.bodies["n1"]["status"][part][BATCH_CPU] = str(amount)

    for _ in range(3):
        meddle(31000)
        stage.run(8)
    count = len(cluster.patches)
    assert [(name, reason) for name, reason, _ in stage.events] == [("n1", "ForecastConflict")]
    assert "somebody else publishes batch resources on 1 nodes (such as n1)" in stage.forecaster.problem()
    assert registry.get_sample_value("slacktide_predictor_conflicting_nodes") == 1
    assert registry.get_sample_value("slacktide_predictor_foreign_changes_total") == 3
    stage.run(300, 10)
    meddle(29000)
    stage.run(590, 10)
    assert len(cluster.patches) == count
    # It has stood still for long enough: from what stands there we go on, and a drop is due at once.
    stage.run(30, 10)
    assert cluster.amounts()[0] == str(CPU)
    assert stage.forecaster.problem() is None
    assert registry.get_sample_value("slacktide_predictor_conflicting_nodes") == 0


def test_the_lag_from_sample_to_patch_is_measured(stage, registry, clock):
    stage.sample()
    clock.advance(1.5)
    stage.turn()
    clock.advance(8.5)
    stage.sample(ls_cpu_mean=9000)
    clock.advance(0.5)
    stage.turn()

    def lag(cause, part):
        return registry.get_sample_value(f"slacktide_predictor_publish_lag_seconds_{part}", {"cause": cause})

    assert (lag("first", "count"), lag("first", "sum")) == (1, 1.5)
    assert (lag("drop", "count"), lag("drop", "sum")) == (1, 0.5)


# Fail-over.


def test_a_follower_steps_its_engines_and_is_warm(cluster, clock, metrics):
    follower = Stage(cluster, clock, metrics)
    follower.leader = False
    follower.run(900, 10, ls_cpu_mean=15000)
    assert cluster.patches == []
    assert len(follower.engines["cpu"].asked) >= 3
    assert follower.board.get("n1").forecast.terms.cpu.path == "model"
    follower.leader = True
    follower.run(10, 10, ls_cpu_mean=1000)
    assert cluster.amounts()[0] == str(32000 - 1600 - 15500)


def test_a_leader_that_is_deposed_within_a_pass_writes_no_more(cluster, clock, metrics):
    names = [f"n{number}" for number in range(1, 21)]
    for number in range(2, 21):
        cluster.add_node(f"n{number}", uid=f"u{number}")
    stage = Stage(cluster, clock, metrics, known=tuple(names))
    patch = cluster.patch

    def last(*arguments, **more):
        stage.leader = False
        return patch(*arguments, **more)

    cluster.patch = last
    for name in names:
        stage.sample(name)
    stage.turn()
    # What is under way at that moment still arrives.
    assert 1 <= len(cluster.patches) <= _WRITERS


def test_a_fail_over_raises_no_number_though_the_new_leader_looks_at_an_old_node(cluster, clock, metrics):
    one, other = Stage(cluster, clock, metrics), Stage(cluster, clock, metrics)
    one.sample()
    one.turn()
    stale = cluster.nodes()
    # A drop that the follower's cache has not heard of yet; it has not heard of the use behind it either.
    one.run(2, ls_cpu_mean=20000)
    low = cluster.amounts()[0]
    assert low == str(32000 - 1600 - 20500)
    one.leader = False
    other.leader = True
    fresh, cluster.nodes = cluster.nodes, lambda: stale
    other.run(2)
    assert cluster.amounts()[0] == low
    cluster.nodes = fresh
    other.run(2)
    assert cluster.amounts()[0] == low


PASSES = st.lists(st.tuples(st.integers(0, 8000), st.integers(0, 8000), st.integers(0, 3000)), min_size=1, max_size=6)
"""Use of an old pod, use of a young one, and what is added to one of them."""


def computed(passes, more=None, hide=False):
    """What is reclaimable after each pass; `more` names the pod that uses more, `hide` leaves the young one out."""
    cluster, clock = Cluster(), FakeClock()
    cluster.add_node()
    stage = Stage(cluster, clock, Metrics(CollectorRegistry()), known=("n1",))
    cluster.add_pod("old", requests={"cpu": "4"}, started=clock.wall + OLD, **replica("web", "1a"))
    found = []
    for number, (old, young, extra) in enumerate(passes):
        if number == 1:
            cluster.add_pod("young", requests={"cpu": "3"}, started=clock.wall, **replica("web", "1a"))
        old, young = old + extra * (more == "old"), young * (number > 0) + extra * (more == "young" and number > 0)
        pods = [use("old", old)] + [use("young", young)] * (number > 0 and not (hide and number == len(passes) - 1))
        stage.sample(ls_cpu_mean=old + young, pods=pods)
        stage.turn()
        found.append(stage.board.get("n1").forecast.reclaimable.cpu_millis)
        clock.advance(100)
    return found


@settings(max_examples=10, deadline=None)
@given(PASSES, st.sampled_from(["old", "young"]))
def test_more_use_of_any_ls_pod_never_leaves_more_for_sale(passes, pod):
    assert all(after <= before for before, after in zip(computed(passes), computed(passes, more=pod), strict=True))


@settings(max_examples=10, deadline=None)
@given(PASSES)
def test_a_pod_that_a_sample_leaves_out_never_leaves_more_for_sale(passes):
    """What was never seen cannot count: in the sample that leaves it out the pod uses what it used before."""
    passes = [*passes, (0, 1, 0), passes[-1], passes[-1]]
    assert computed(passes, hide=True)[-1] <= computed(passes)[-1]


class LeaseTwin:
    """A lease that replicas hold by the real rules and a clock that only the test moves."""

    def __init__(self, clock):
        self.clock = clock
        self.lease = None
        self.observed = {}
        self.renewed = {}

    def try_for(self, name):
        """One try of a replica that reaches the API server."""
        now = self.clock.monotonic
        step = next_step(self.lease, self.observed.get(name), now, name, ElectionSettings())
        self.observed[name] = step.observed
        if step.action != "wait":
            self.lease = Lease(spec=LeaseSpec(holder_identity=name, lease_duration_seconds=15, renew_time=str(now)))
            self.renewed[name] = now

    def leads(self, name):
        """As a replica knows it: by its own clock it gives up before another can take over."""
        renewed = self.renewed.get(name, -1e9)
        held = self.lease is not None and self.lease.spec.holder_identity == name
        return held and self.clock.monotonic - renewed < ElectionSettings().renew_seconds


def test_a_fail_over_by_the_lease_leaves_a_pause_and_raises_nothing(cluster, clock, metrics):
    lease = LeaseTwin(clock)
    one, other = Stage(cluster, clock, metrics), Stage(cluster, clock, metrics)
    stages = {"one": one, "other": other}
    published, leaders = [], []
    for second in range(0, 80, 2):
        clock.advance(2)
        # The leader dies after 20 s: it neither renews nor runs; its agents' samples reach the follower all along.
        alive = ["other"] if second >= 20 else ["one", "other"]
        for name in alive:
            lease.try_for(name)
            stages[name].leader = lease.leads(name)
            stages[name].sample(ls_cpu_mean=10000 if second < 30 else 2000)
        leaders.append([name for name in stages if lease.leads(name)])
        for name in alive:
            stages[name].turn()
        published.append(int(cluster.amounts()[0]))
    assert max(len(names) for names in leaders) == 1
    assert leaders[0] == ["one"]
    assert leaders[-1] == ["other"]
    assert [] in leaders
    # Use fell after the first leader had died: the second goes on from what stands there, and its rise waits.
    assert set(published[:-1]) == {32000 - 1600 - 10500}


TURN = st.tuples(st.integers(1, 40), st.integers(0, 30000), st.sampled_from(["none", "one", "other"]))


@settings(max_examples=15, deadline=None)
@given(st.lists(TURN, min_size=1, max_size=15))
def test_no_change_of_leader_raises_a_number_faster_than_the_rules(turns):
    cluster, clock = Cluster(), FakeClock()
    cluster.add_node()
    stages = {name: Stage(cluster, clock, Metrics(CollectorRegistry())) for name in ("one", "other")}
    before, last_rise = None, -1e9
    for seconds, use_now, leader in turns:
        clock.advance(seconds)
        for name, stage in stages.items():
            stage.leader = name == leader
            stage.sample(ls_cpu_mean=use_now)
        written = len(cluster.patches)
        for stage in stages.values():
            stage.turn()
        if leader == "none":
            assert len(cluster.patches) == written
            continue
        now = cluster.forecast().reclaimable.cpu_millis
        assert now <= max(0, 32000 - 1600 - (use_now + 500))
        if before is not None and now > before:
            assert now - before <= 6400
            assert clock.monotonic - last_rise >= 30
            last_rise = clock.monotonic
        before = now
