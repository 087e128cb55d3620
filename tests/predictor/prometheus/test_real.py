"""Import from a real Prometheus whose past is known to the last core."""

from __future__ import annotations

import pytest

from predictor.history import open_history
from predictor.prometheus.access import access_of
from predictor.prometheus.client import Client, Manners
from predictor.prometheus.importer import Importer, Wish
from predictor.prometheus.queries import Form, Total
from tests.predictor.prometheus.cluster import BEGIN, MIB, SLOT, Load, PodOf, cadvisor, exporter, roots, states
from tests.predictor.prometheus.server import MISSING, Prometheus, Text

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed")

SLOTS = 24
CAPACITY = {"node-1": (8.0, 4096.0 * MIB), "node-2": (4.0, 2048.0 * MIB)}


def waves(base: float, height: float, period: int) -> list[float | None]:
    return [base + height * (slot % period) / period for slot in range(SLOTS)]


def flat(mib: float) -> list[float | None]:
    return [mib * MIB * (1.0 + 0.01 * (slot % 7)) for slot in range(SLOTS)]


def some(values: list[float | None], first: int, end: int) -> list[float | None]:
    return [value if first <= slot < end else None for slot, value in enumerate(values)]


def the_pods() -> list[PodOf]:
    return [
        PodOf("node-1", "web-6d4cf56db6-aaaaa", Load(waves(0.5, 1.0, 5), flat(200)), requests={"cpu": 2, "memory": 3e8},
              owner=("ReplicaSet", "web-6d4cf56db6")),
        PodOf("node-1", "api", Load(some(waves(0.3, 0.2, 3), 4, 20), some(flat(100), 4, 20)), requests={"cpu": 1}),
        PodOf("node-1", "job", Load(waves(1.0, 0.8, 4), flat(300)), labels={"label_slacktide_io_tier": "BE"},
              requests={"kubernetes_io_batch_cpu": 3000, "kubernetes_io_batch_memory": 4e8}),
        PodOf("node-1", "over", Load([0.0] * SLOTS, [0.0] * SLOTS), requests={"cpu": 1}, phase="Succeeded"),
        PodOf("node-2", "db-0", Load(waves(0.2, 0.1, 2), flat(150)), requests={"cpu": 0.5},
              owner=("StatefulSet", "db")),
        PodOf("node-2", "logs", Load(waves(0.1, 0.0, 2), flat(50)), labels={"label_slacktide_io_tier": "system"}),
    ]  # fmt: skip


def totals(pods: list[PodOf]) -> dict[str, Load]:
    """Each node has 0.25 cores and 64 MiB beside its pods."""
    found = {}
    for node in CAPACITY:
        mine = [pod.load for pod in pods if pod.node == node]
        found[node] = Load(
            [0.25 + sum(load.cores[slot] or 0.0 for load in mine) for slot in range(SLOTS)],
            [64 * MIB + sum(load.memory[slot] or 0.0 for load in mine) for slot in range(SLOTS)],
        )
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    text, pods = Text(), the_pods()
    cadvisor(text, pods, SLOTS, {"prometheus_replica": "a"})
    cadvisor(text, pods, SLOTS, {"prometheus_replica": "b"})
    roots(text, totals(pods), SLOTS, {"prometheus_replica": "a"})
    roots(text, totals(pods), SLOTS, {"prometheus_replica": "b"})
    states(text, pods, SLOTS, CAPACITY)
    exporter(text, totals(pods), SLOTS, CAPACITY)
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), text)
    yield running
    running.stop()


def wish(**changes) -> Wish:
    return Wish(BEGIN, BEGIN + SLOTS * SLOT)._replace(**changes)


def imported(folder, url, asked=None):
    """(plan, outcome, rows by (node, slot)) of an import."""
    client = Client(access_of(url), Manners(per_second=1000.0))
    history = open_history(str(folder))
    try:
        importer = Importer(client, history, asked or wish())
        plan = importer.plan()
        outcome = importer.run(plan, lambda _: None)
        cursor = history._connection.execute(
            "SELECT nodes.name AS at, node_slots.* FROM node_slots JOIN nodes ON node_slots.node = nodes.id"
        )
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        hours = list(history.pod_hours(0))
        return plan, outcome, {(row["at"], row["slot"] - BEGIN // SLOT): row for row in rows}, hours
    finally:
        history.close()
        client.close()


def test_imported_use_is_the_known_use(server, tmp_path):
    plan, outcome, rows, _ = imported(tmp_path, server.url)
    assert outcome.problems == []
    assert plan.survey.form is Form.CONTAINERS
    assert plan.survey.total_cpu is Total.ROOT
    assert (plan.survey.step_seconds, plan.survey.window_seconds) == (30, 90)
    pods, whole = the_pods(), totals(the_pods())
    assert set(rows) == {(node, slot) for node in CAPACITY for slot in range(SLOTS)}
    for (node, slot), row in rows.items():
        be = sum((p.load.cores[slot] or 0.0) for p in pods if p.node == node and p.name == "job")
        others = sum((p.load.cores[slot] or 0.0) for p in pods if p.node == node and p.name == "logs")
        every = sum((p.load.cores[slot] or 0.0) for p in pods if p.node == node)
        total = whole[node].cores[slot]
        assert row["protected_cpu_p90"] == pytest.approx(1000 * (total - be), abs=2), (node, slot)
        assert row["protected_cpu_mean"] == pytest.approx(1000 * (total - be), abs=2)
        assert row["ls_cpu_p90"] == pytest.approx(1000 * (every - be - others), abs=2)
        assert row["be_cpu_p90"] == pytest.approx(1000 * be, abs=2)
        assert row["system_cpu_p90"] == pytest.approx(1000 * (total - every + others), abs=2)
        held = [p.load.memory[slot] or 0.0 for p in pods if p.node == node]
        be_held = sum((p.load.memory[slot] or 0.0) for p in pods if p.node == node and p.name == "job")
        assert row["protected_memory_max"] == pytest.approx(64 * MIB + sum(held) - be_held, abs=16)
        assert (row["capacity_cpu"], row["capacity_memory"]) == (1000 * CAPACITY[node][0], CAPACITY[node][1])
        assert row["covered_millis"] == 300_000
        assert row["imported"]
