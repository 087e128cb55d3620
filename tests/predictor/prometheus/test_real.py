"""Import from a real Prometheus whose past is known to the last core. Each cluster in it is one way to be scraped."""

from __future__ import annotations

import math

import numpy as np
import pytest

from predictor.history import open_history
from predictor.prometheus import queries as q
from predictor.prometheus.access import access_of
from predictor.prometheus.client import Client, Manners
from predictor.prometheus.errors import PrometheusError
from predictor.prometheus.importer import Importer, Wish
from predictor.prometheus.tiers import PodName, tiers
from predictor.samples import Sample
from slacktide.objects import ObjectMeta, Pod
from slacktide.tier import Tier, tier_of
from tests.predictor.prometheus.cluster import BEGIN, MIB, SLOT, Load, Past, PodOf, address, sum_of
from tests.predictor.prometheus.fake import Fake, Said, forwarded
from tests.predictor.prometheus.server import MISSING, Prometheus, Text

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed")

SLOTS = 24
FIRST = BEGIN // SLOT
CAPACITY = {"node-1": (8.0, 4096.0 * MIB), "node-2": (4.0, 2048.0 * MIB)}
BESIDE = (0.25, 64.0 * MIB)
"""What each node uses outside its pods."""
DOWN = range(8, 14)
"""Slots in which the cluster `gap` is not scraped."""


def waves(base, height, period):
    return [base + height * (slot % period) / period for slot in range(SLOTS)]


def flat(mib):
    return [mib * MIB * (1.0 + 0.01 * (slot % 7)) for slot in range(SLOTS)]


def some(values, first, end):
    return [value if first <= slot < end else None for slot, value in enumerate(values)]


def the_pods():
    return [
        PodOf(
            "node-1",
            "web-6d4cf56db6-aaaaa",
            Load(waves(0.5, 1.0, 5), flat(200)),
            requests={"cpu": 2, "memory": 3e8},
            owner=("ReplicaSet", "web-6d4cf56db6"),
        ),
        PodOf("node-1", "api", Load(some(waves(0.3, 0.2, 3), 4, 20), some(flat(100), 4, 20)), requests={"cpu": 1}),
        PodOf(
            "node-1",
            "job",
            Load(waves(1.0, 0.8, 4), flat(300)),
            labels={"label_slacktide_io_tier": "BE"},
            requests={"kubernetes_io_batch_cpu": 3000, "kubernetes_io_batch_memory": 4e8},
        ),
        PodOf("node-1", "over", Load([0.0] * SLOTS, [0.0] * SLOTS), requests={"cpu": 1}, phase="Succeeded"),
        PodOf(
            "node-2",
            "db-0",
            Load(waves(0.2, 0.1, 2), flat(150)),
            requests={"cpu": 0.5, "memory": 1e8},
            owner=("StatefulSet", "db"),
        ),
        PodOf(
            "node-2",
            "logs",
            Load(waves(0.1, 0.0, 2), flat(50)),
            labels={"label_slacktide_io_tier": "system"},
            requests={"cpu": 0.1},
        ),
    ]


def whole(pods):
    return {node: sum_of((pod.load for pod in pods if pod.node == node), SLOTS, *BESIDE) for node in CAPACITY}


def instance(node):
    return {"instance": f"{address(node)}:10250"}


MARKS = [
    {},
    {"label_slacktide_io_tier": "be"},
    {"label_slacktide_io_tier": "BE", "label_koordinator_sh_qos_class": "LS"},
    {"label_slacktide_io_tier": "ls", "label_koordinator_sh_qos_class": "BE"},
    {"label_slacktide_io_tier": "system"},
    {"label_slacktide_io_tier": "other", "label_koordinator_sh_qos_class": "BE"},
    {"label_koordinator_sh_qosClass": "BE"},
    {"label_koordinator_sh_qosClass": "LSR"},
    {"label_koordinator_sh_qos_class": "SYSTEM"},
]


def marked_pods():
    load = Load([0.1] * SLOTS, flat(10))
    return [PodOf("node-1", f"pod-{i}", load, labels=marks) for i, marks in enumerate(MARKS)]


def write_replicas(text):
    pods = the_pods()
    past = Past(text, SLOTS, "replicas")
    for replica in ("a", "b"):
        past.cadvisor(pods, {"prometheus_replica": replica})
        past.roots(whole(pods), {"prometheus_replica": replica})
    past.states(pods, CAPACITY)


def write(text):
    write_replicas(text)
    pods = the_pods()
    ls = [pod for pod in pods if not pod.labels]
    past = Past(text, SLOTS, "dishonoured")
    past.cadvisor(pods)
    past.roots(whole(pods))
    reporter = {"namespace": "monitoring", "pod": "ksm-0", "node": "node-2", "container": "ksm", "instance": "10.0.9.9"}
    past.states(pods, CAPACITY, reporter=reporter)

    past = Past(text, SLOTS, "mixed")
    past.cadvisor([pod for pod in ls if pod.node == "node-1"])
    past.cadvisor([pod for pod in ls if pod.node == "node-2"], containers=False)
    past.roots(whole(ls))

    past = Past(text, SLOTS, "two under one name")
    past.roots(whole(ls))
    past.states((), CAPACITY)
    for node in CAPACITY:
        past.use({"node": node, "id": "/", "container": "", "pod": ""}, Load([1.0] * SLOTS, flat(10)))
        past.info(node, "10.1.1.1")

    past = Past(text, SLOTS, "cgroups of pods")
    past.cadvisor(ls, containers=False)
    past.roots(whole(ls))

    past = Past(text, SLOTS, "exporter")
    past.cadvisor(pods)
    past.states(pods, CAPACITY)
    past.exporter(whole(pods), CAPACITY)

    past = Past(text, SLOTS, "instances")
    for job in ("kubelet", "cadvisor"):
        past.cadvisor(ls, {"job": job}, named=instance)
        past.roots(whole(ls), {"job": job}, named=instance)
    past.states((), CAPACITY)

    past = Past(text, SLOTS, "pods only")
    past.cadvisor(ls)

    past = Past(text, SLOTS, "exporter only")
    past.exporter(whole(ls), CAPACITY)

    past = Past(text, SLOTS, "gap", down=lambda at: DOWN.start * SLOT < at - BEGIN <= DOWN.stop * SLOT)
    past.cadvisor(ls)
    past.roots(whole(ls))

    past = Past(text, SLOTS, "slow", scrape=300)
    past.cadvisor(ls)
    past.roots(whole(ls))

    past = Past(text, SLOTS, "marks")
    past.cadvisor(marked_pods())
    past.states(marked_pods(), CAPACITY)

    restarts(Past(text, SLOTS, "restarts"))
    burst(Past(text, SLOTS, "burst"))


def restarts(past):
    """Container `old` of a pod ends, `new` (another cgroup) goes on; the counter of another pod is set back."""
    level = [1.0] * SLOTS
    memory = flat(10)
    pod = {"node": "node-1", "namespace": "default", "pod": "p", "container": "main", "image": "app"}
    past.use({**pod, "id": "/p/old"}, Load(some(level, 0, 10), some(memory, 0, 10), offset=5000.0))
    past.use({**pod, "id": "/p/new"}, Load(some(level, 10, SLOTS), some(memory, 10, SLOTS)))
    load = Load(level, memory, offset=9000.0)
    reset = BEGIN + 15 * SLOT + 45
    first, then = load.cpu_seconds, load.cpu_seconds(reset)
    load.cpu_seconds = lambda at: first(at) - (then if at >= reset else 0.0)
    past.use({**pod, "pod": "q", "id": "/q/c"}, load)
    past.roots({"node-1": Load([2.5] * SLOTS, flat(64))})


def burst(past):
    """One core, and five more for two minutes in the middle of slot 6."""
    load = Load([1.0] * SLOTS, flat(64))
    steady, begin = load.cpu_seconds, BEGIN + 6 * SLOT + 90
    load.cpu_seconds = lambda at: steady(at) + 5.0 * min(max(at - begin, 0), 120)
    past.roots({"node-1": load})


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    text = Text()
    write(text)
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), text)
    yield running
    running.stop()


def wish(cluster, **changes):
    return Wish(BEGIN, BEGIN + SLOTS * SLOT, (f"cluster={q.quoted(cluster)}",))._replace(**changes)


class Run:
    """One import into `folder`, and what the history holds afterwards."""

    def __init__(self, folder, url, asked, measured=None):
        self.client = Client(access_of(url), Manners(per_second=1000.0))
        history = open_history(str(folder))
        try:
            if measured is not None:
                measured(history)
            importer = Importer(self.client, history, asked)
            self.plan = importer.plan()
            self.outcome = importer.run(self.plan, lambda _: None)
            cursor = history._connection.execute(
                "SELECT nodes.name AS at, node_slots.* FROM node_slots JOIN nodes ON node_slots.node = nodes.id"
            )
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            self.rows = {(row["at"], row["slot"] - FIRST): row for row in rows}
            self.hours = list(history.pod_hours(0))
        finally:
            history.close()
            self.client.close()


@pytest.fixture
def run(server, tmp_path):
    return lambda cluster, **changes: Run(tmp_path, server.url, wish(cluster, **changes))


def cores(pods, node, slot):
    return 1000 * sum(pod.load.cores[slot] or 0.0 for pod in pods if pod.node == node)


def held(pods, node, slot):
    return sum(pod.load.memory[slot] or 0.0 for pod in pods if pod.node == node)


def close(millis):
    return pytest.approx(millis, abs=2)


EVERY = {(node, slot) for node in CAPACITY for slot in range(SLOTS)}


@pytest.mark.parametrize("cluster", ["replicas", "exporter", "dishonoured"])
def test_imported_use_is_the_known_use(run, cluster):
    found = run(cluster)
    survey = found.plan.survey
    assert found.outcome.problems == []
    assert survey.form is q.Form.CONTAINERS
    assert survey.total_cpu is (q.Total.EXPORTER if cluster == "exporter" else q.Total.ROOT)
    assert (survey.step_seconds, survey.window_seconds) == (30, 90)
    assert set(found.rows) == EVERY
    pods = the_pods()
    jobs, logs = [pods[2]], [pods[5]]
    for (node, slot), row in found.rows.items():
        be, others, every = (cores(some_of, node, slot) for some_of in (jobs, logs, pods))
        assert row["protected_cpu_p90"] == row["protected_cpu_mean"] == close(250 + every - be), (node, slot)
        assert row["ls_cpu_p90"] == close(every - be - others)
        assert row["be_cpu_p90"] == close(be)
        assert row["system_cpu_p90"] == close(250 + others)
        assert row["protected_memory_max"] == pytest.approx(
            BESIDE[1] + held(pods, node, slot) - held(jobs, node, slot), abs=16
        )
        assert (row["capacity_cpu"], row["capacity_memory"]) == (1000 * CAPACITY[node][0], CAPACITY[node][1])
        assert row["covered_millis"] == 300_000
        assert row["imported"]


@pytest.mark.parametrize("cluster", ["replicas", "dishonoured"])
def test_requests_are_those_of_ls_pods_that_are_not_over(run, cluster):
    rows = run(cluster).rows
    for slot in range(SLOTS):
        api = 1000 if 4 <= slot < 20 else 0
        assert rows["node-1", slot]["ls_requested_cpu"] == 2000 + api
        assert rows["node-1", slot]["ls_requested_memory"] == 300_000_000
        assert rows["node-1", slot]["be_requested_cpu"] == 3000
        assert rows["node-1", slot]["be_requested_memory"] == 400_000_000
        assert rows["node-2", slot]["ls_requested_cpu"] == 500


@pytest.mark.parametrize("cluster", ["replicas", "dishonoured"])
def test_pods_are_imported_by_hours_with_uid_and_group(run, cluster):
    found = run(cluster)
    table = {}
    for part in found.hours:
        for place, hour, slots, mean, highest in zip(
            part.pod, part.hour, part.slots, part.cpu_mean, part.cpu_max, strict=True
        ):
            pod = part.pods[place]
            table[pod.name, hour - BEGIN // 3600] = (pod, slots, mean, highest)
    assert {name for name, _ in table} == {"web-6d4cf56db6-aaaaa", "api", "over", "db-0"}
    pods = {pod.name: pod for pod in the_pods()}
    for (name, hour), (pod, slots, mean, highest) in table.items():
        known = [c for c in pods[name].load.cores[12 * hour : 12 * hour + 12] if c is not None]
        assert pod.uid == f"uid-{name}"
        assert slots >= len(known)
        assert highest == close(1000 * max(known))
        if slots == len(known) == 12:
            assert mean == close(1000 * sum(known) / 12)
    assert table["web-6d4cf56db6-aaaaa", 0][0].group == "Deployment/default/web"
    assert table["db-0", 1][0].group == "StatefulSet/default/db"
    assert table["api", 0][0].group == ""


@pytest.mark.parametrize("cluster", ["cgroups of pods", "instances", "mixed"])
def test_pods_without_containers_and_nodes_by_instance(run, cluster):
    found = run(cluster)
    assert found.outcome.problems == []
    assert set(found.rows) == EVERY
    forms = {"cgroups of pods": q.Form.PODS, "instances": q.Form.CONTAINERS, "mixed": q.Form.BOTH}
    assert found.plan.survey.form is forms[cluster]
    ls = [pod for pod in the_pods() if not pod.labels]
    for (node, slot), row in found.rows.items():
        assert row["ls_cpu_p90"] == close(cores(ls, node, slot))
        assert row["system_cpu_p90"] == close(250)
        assert row["protected_cpu_p90"] == close(250 + cores(ls, node, slot))
        assert row["be_cpu_p90"] is None


def test_without_the_whole_node_nothing_is_protected_and_this_is_said(run):
    found = run("pods only")
    assert {row["protected_cpu_p90"] for row in found.rows.values()} == {None}
    assert {row["system_cpu_p90"] for row in found.rows.values()} == {None}
    assert found.rows["node-1", 3]["ls_cpu_p90"] == close(cores([the_pods()[0]], "node-1", 3))
    said = " ".join(found.plan.survey.remarks)
    assert 'container_cpu_usage_seconds_total{id="/"}' in said
    assert "node-exporter" in said
    assert "kube-state-metrics" in said


def test_without_pods_all_use_is_protected(run):
    found = run("exporter only")
    ls = [pod for pod in the_pods() if not pod.labels]
    assert {node for node, _ in found.rows} == {address(node) for node in CAPACITY}
    for slot in range(SLOTS):
        row = found.rows[address("node-1"), slot]
        assert row["protected_cpu_p90"] == close(250 + cores(ls, "node-1", slot))
        assert row["ls_cpu_p90"] is None
        assert row["capacity_cpu"] == 8000
    assert "names its nodes by `instance` only" in " ".join(found.plan.survey.remarks)


def test_a_time_that_was_not_scraped_is_a_gap(run):
    found = run("gap")
    measured = {slot for node, slot in found.rows if node == "node-1"}
    assert measured == set(range(SLOTS)) - set(DOWN)
    ls = [pod for pod in the_pods() if not pod.labels]
    for slot in measured:
        assert found.rows["node-1", slot]["protected_cpu_p90"] == close(250 + cores(ls, "node-1", slot))


def test_slow_scrapes_give_wide_windows_and_a_remark(run):
    found = run("slow")
    assert found.plan.survey.window_seconds >= 600
    assert any("peaks shorter than" in remark for remark in found.plan.survey.remarks)
    level = [row["protected_cpu_p90"] for (node, slot), row in found.rows.items() if node == "node-1" and slot > 2]
    assert max(level) <= 1000 * max(whole([p for p in the_pods() if not p.labels])["node-1"].cores)
    assert min(level) > 250


def test_restarts_and_resets_of_counters_are_no_peaks_and_no_holes(run):
    found = run("restarts")
    for slot in range(SLOTS):
        row = found.rows["node-1", slot]
        assert row["ls_cpu_mean"] == pytest.approx(2000, rel=0.12), slot
        assert 1700 <= row["ls_cpu_p90"] <= 2100
        assert row["protected_cpu_p90"] == pytest.approx(2500, abs=100)


def test_a_burst_counts_in_its_slot_and_in_no_other(run):
    found = run("burst")
    for slot in range(SLOTS):
        row = found.rows["node-1", slot]
        assert row["protected_cpu_p90"] == close(6000 if slot == 6 else 1000), slot
    assert found.rows["node-1", 6]["protected_cpu_mean"] == pytest.approx(3000, abs=700)


def test_promql_finds_the_same_tiers_as_the_rules_for_live_pods(server):
    client = Client(access_of(server.url), Manners(per_second=1000.0))
    match = q.Match(('cluster="marks"',))
    found = tiers(
        [s.metric for s in client.instant(q.marks_by_label(match, 3600), BEGIN + 3600).series],
        [s.metric for s in client.instant(q.marks_by_request(match, 3600), BEGIN + 3600).series],
    )
    client.close()
    for i, marks in enumerate(MARKS):
        qos = next((value for name, value in marks.items() if "koordinator" in name), "")
        labels = {"slacktide.io/tier": marks.get("label_slacktide_io_tier", ""), "koordinator.sh/qosClass": qos}
        right = tier_of(Pod(metadata=ObjectMeta(labels=labels)))
        assert found.get(PodName("default", f"pod-{i}"), Tier.LS) is right, marks


def test_series_of_two_clusters_do_not_mix(server, tmp_path):
    with pytest.raises(PrometheusError, match="--match"):
        Run(tmp_path, server.url, wish("gap", extra=()))


def test_nodes_of_two_clusters_under_one_name_do_not_mix(server, tmp_path):
    with pytest.raises(PrometheusError, match="2 nodes have two addresses each"):
        Run(tmp_path, server.url, wish("two under one name"))


def test_a_server_that_ends_early_is_looked_at_where_it_has_something(run):
    found = run("gap", to_second=BEGIN + SLOTS * SLOT + 3000)
    assert found.outcome.complete
    assert max(slot for _, slot in found.rows) == SLOTS - 1


def test_a_time_of_which_nothing_is_there_stays_open(run, monkeypatch):
    monkeypatch.setattr("predictor.prometheus.importer._POINTS", 0)  # pieces of an hour
    found = run("gap", from_second=BEGIN - 2 * 3600)
    assert found.outcome.complete
    assert found.outcome.empty_slots == 24
    assert run("gap", from_second=BEGIN - 2 * 3600).plan.nodes == [(FIRST - 24, FIRST)]


def test_a_wrong_node_label_is_refused_with_the_names(server, tmp_path):
    with pytest.raises(PrometheusError, match=r"does not name the nodes.*--node-label"):
        Run(tmp_path, server.url, wish("replicas", node_label="namespace"))


def test_a_time_without_any_samples_is_refused(server, tmp_path):
    with pytest.raises(PrometheusError, match=r"from 2023-11-14T21:15Z to .* has neither"):
        Run(tmp_path, server.url, wish("gap", from_second=1_700_000_000 - 3600, to_second=1_700_000_000))


def test_a_second_run_does_nothing_and_again_does_it_anew(run):
    first = run("gap")
    second = run("gap")
    assert (second.plan.nodes, second.plan.pods, second.outcome.stored) == ([], [], 0)
    assert second.rows == first.rows
    third = run("gap", again=True)
    assert third.outcome.stored == first.outcome.stored
    assert third.rows == first.rows


def test_what_slacktide_measured_stays(server, tmp_path):
    from predictor.history import Batch

    ends = [(FIRST + 5) * SLOT * 1000 + 10_000 * i for i in range(1, 31)]
    names = {"ls_cpu_mean": 7, "ls_cpu_max": 7, "system_cpu_mean": 0, "system_cpu_max": 0}
    empty = dict.fromkeys(Sample._fields)
    samples = [
        Sample(**{**empty, **names, "sequence": i + 1, "end_millis": end, "window_millis": 10_000})
        for i, end in enumerate(ends)
    ]

    def measured(history):
        history.append([Batch("node-1", "boot", samples)])
        history.fold(ends[-1])

    found = Run(tmp_path, server.url, wish("gap"), measured)
    assert found.outcome.measured == 1
    assert found.rows["node-1", 5]["protected_cpu_p90"] == 7
    assert not found.rows["node-1", 5]["imported"]
    assert found.rows["node-1", 4]["imported"]


def test_a_server_with_little_memory_is_asked_for_halves(server, tmp_path_factory, tmp_path, run):
    text = Text()
    write_replicas(text)
    small = Prometheus(tmp_path_factory.mktemp("small"), text, "--query.max-samples=700")
    try:
        found = Run(tmp_path / "small", small.url, wish("replicas"))
    finally:
        small.stop()
    assert found.outcome.problems == []
    assert found.client.queries > 60
    assert found.rows == run("replicas").rows


@pytest.fixture
def front(server):
    """A proxy before the server that a test teaches to spoil answers."""
    spoil = []

    def answer(asked):
        for rule in spoil:
            said = rule(asked)
            if said is not None:
                return said
        return forwarded(asked, server.url)

    fake = Fake(answer)
    fake.spoil = spoil
    yield fake
    fake.stop()


def test_partial_answers_are_not_stored_and_come_with_the_next_run(front, server, tmp_path, monkeypatch):
    monkeypatch.setattr("predictor.prometheus.importer._POINTS", 0)  # pieces of an hour
    bad = BEGIN + 3600

    def partial(asked):
        if asked.form.get("end") and float(asked.form["start"]) < bad and "namespace" in asked.form["query"]:
            said = forwarded(asked, server.url)
            said.body = said.body.replace(b'"data":', b'"warnings":["store-7: deadline exceeded"],"data":', 1)
            return said
        return None

    front.spoil.append(partial)
    first = Run(tmp_path, front.url, wish("gap"))
    assert not first.outcome.complete
    assert "in part only: store-7: deadline exceeded" in first.outcome.problems[0]
    assert {slot for _, slot in first.rows} == set(range(14, SLOTS))
    front.spoil.clear()
    second = Run(tmp_path, front.url, wish("gap"))
    assert second.outcome.complete
    assert second.plan.nodes == [(FIRST, FIRST + 12)]
    assert {slot for _, slot in second.rows} == set(range(SLOTS)) - set(DOWN)


def test_too_many_series_means_fewer_nodes_at_once(front, run, tmp_path):
    def greedy(asked):
        query = asked.form["query"]
        if (
            "start" in asked.form
            and "container_cpu_usage" in query
            and "group by" not in query
            and "node=~" not in query
        ):
            return Said(
                422, b'{"status":"error","errorType":"execution","error":"exceeded the maximum number of series"}'
            )
        return None

    front.spoil.append(greedy)
    found = Run(tmp_path / "front", front.url, wish("replicas"))
    assert found.outcome.problems == []
    assert found.rows == run("replicas").rows
    assert any('node=~"node' in asked.form["query"] for asked in front.asked)


def test_a_server_that_goes_away_leaves_what_was_done(front, tmp_path, monkeypatch):
    monkeypatch.setattr("predictor.prometheus.importer._POINTS", 0)
    monkeypatch.setattr("predictor.prometheus.client._LONGEST_PAUSE", 0.01)
    gone = []

    def away(asked):
        if gone or (
            asked.form.get("end") and float(asked.form["end"]) <= BEGIN + 3600 and "rate" in asked.form["query"]
        ):
            gone.append(True)
            return Said(503, b"")
        return None

    front.spoil.append(away)
    first = Run(tmp_path, front.url, wish("gap"))
    assert not first.outcome.complete
    assert "gave up" in first.outcome.problems[0]
    assert {slot for _, slot in first.rows} == set(range(14, SLOTS))
    front.spoil.clear()
    assert Run(tmp_path, front.url, wish("gap")).outcome.complete


def test_values_beyond_the_machine_are_left_out(front, server, tmp_path):
    def absurd(asked):
        if 'id="/"' in asked.form["query"] and "rate" in asked.form["query"] and "start" in asked.form:
            said = forwarded(asked, server.url)
            said.body = said.body.replace(b'"0.', b'"1e12').replace(b'"1.', b'"1e12')
            return said
        return None

    front.spoil.append(absurd)
    found = Run(tmp_path, front.url, wish("replicas"))
    assert found.outcome.refused > 0
    highest = np.nanmax([row["protected_cpu_p90"] or math.nan for row in found.rows.values()])
    assert highest <= 8800
