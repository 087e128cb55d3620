"""A pass that looks again only at nodes of which something changed finds what a pass over all of them finds."""

from __future__ import annotations

import re

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from predictor.metrics import Metrics
from predictor.settings import PoolSettings
from slacktide.cluster.errors import Unreachable
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from tests.predictor.support import FakeClock
from tests.predictor.test_forecasting import Cluster, Stage, replica, use

NODES = ("n1", "n2", "n3")
NODE = st.sampled_from(NODES)
CPU = st.integers(0, 33_000)

STEPS = st.one_of(
    st.tuples(st.just("sample"), NODE, CPU, st.lists(st.sampled_from(["a", "b", "c"]), unique=True)),
    st.tuples(st.just("unmeasured"), NODE),
    st.tuples(st.just("closes"), NODE, st.sampled_from(["", "LS is short of CPU"])),
    st.tuples(st.just("waits"), st.sampled_from([0.5, 2.0, 4.0, 9.0, 20.0, 30.0, 61.0, 310.0, 1000.0, 3700.0])),
    st.tuples(st.just("steps"), st.sampled_from([-120.0, 40.0])),
    st.tuples(st.just("comes"), st.sampled_from(["a", "b", "c"]), NODE, st.sampled_from([0, 10, 4000])),
    st.tuples(st.just("goes"), st.sampled_from(["a", "b", "c"])),
    st.tuples(st.just("sells"), NODE, st.integers(0, 20_000)),
    st.tuples(st.just("anew"), NODE, st.sampled_from(["u1", "u2"]), st.sampled_from(["32", "16"])),
    st.tuples(st.just("gone"), NODE),
    st.tuples(st.just("leads"), st.booleans()),
    st.tuples(st.just("answers"), st.booleans()),
    st.tuples(st.just("meddles"), NODE),
    st.tuples(st.just("sets"), st.sampled_from([5.0, 10.0])),
)


class World:
    """A predictor with a cluster and a clock of its own; `whole`: nothing of a pass is kept for the next."""

    def __init__(self, whole):
        self.whole = whole
        self.clock, self.cluster, self.registry = FakeClock(), Cluster(), CollectorRegistry()
        for name in NODES:
            self.cluster.add_node(name, uid=f"u0-{name}", labels={"pool": name})
        pools = (PoolSettings(name="p", match_labels={"pool": "n2"}, cap_cpu_percent=40.0),)
        self.stage = Stage(
            self.cluster, self.clock, Metrics(self.registry), known=("n1", "n2"), pools=pools, young_seconds=25.0
        )

    def step(self, kind, *args):
        getattr(self, kind)(*args)
        if self.whole:
            self.stage.forecaster.reload(msgspec.structs.replace(self.stage.settings))
        self.stage.turn()

    def seen(self):
        board = {name: self.stage.board.get(name) for name in NODES}
        told = [
            line
            for line in generate_latest(self.registry).decode().splitlines()
            if line.startswith("slacktide_predictor_") and not re.match(r"\w+_(seconds_\w+|created)\b", line)
        ]
        return board, told, self.cluster.patches, self.stage.events

    def sample(self, node, cpu, pods):
        uses = [use(pod, cpu // 4) for pod in pods]
        # Windows of 10 s: room is left alone for 50 s, in which all that time alone does to a node can happen.
        self.stage.sample(node, ls_cpu_mean=cpu, ls_cpu_max=cpu, window_millis=10_000, pods=uses)

    def unmeasured(self, node):
        self.stage.sample(node, ls_cpu_mean=None, ls_cpu_max=None)

    def closes(self, node, why):
        self.stage.sample(node, closed=why)

    def waits(self, seconds):
        self.clock.advance(seconds)

    def steps(self, seconds):
        self.clock.wall += seconds

    def comes(self, pod, node, age):
        started = self.clock.wall - age
        self.cluster.add_pod(pod, requests={"cpu": "3"}, node=node, started=started, **replica("web", "1a"))

    def goes(self, pod):
        self.cluster.pod_bodies.pop(pod, None)

    def sells(self, node, cpu):
        self.cluster.add_pod(f"be-{node}", "be", {BATCH_CPU: str(cpu), BATCH_MEMORY: "1000"}, node=node)

    def anew(self, node, uid, cpu):
        self.cluster.add_node(node, uid=uid, cpu=cpu)

    def gone(self, node):
        self.cluster.bodies.pop(node, None)

    def leads(self, leads):
        self.stage.leader = leads

    def answers(self, answers):
        self.cluster.failure = None if answers else Unreachable("nobody answers")

    def meddles(self, node):
        if node in self.cluster.bodies:
            for part in ("capacity", "allocatable"):
                self.cluster.bodies[node]["status"][part][BATCH_CPU] = "7"

    def sets(self, percent):
        changed = msgspec.structs.replace(self.stage.settings, reserve_cpu_percent=percent)
        self.stage.settings = changed
        self.stage.forecaster.reload(changed)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, min_size=1, max_size=30))
# What time alone does: a refresh falls due, a rise has waited, a pod grows up, a node falls silent.
@example([("sample", "n1", 4000, []), ("waits", 9.0), ("waits", 20.0)])
@example([("sample", "n1", 8000, []), ("sample", "n1", 500, []), ("waits", 9.0), ("waits", 9.0), ("waits", 20.0)])
@example([("comes", "a", "n1", 10), ("sample", "n1", 4000, ["a"]), ("waits", 9.0), ("waits", 9.0)])
@example([("sample", "n1", 4000, []), ("waits", 30.0), ("waits", 30.0), ("waits", 310.0)])
def test_passes_that_look_at_what_changed_find_what_whole_passes_find(steps):
    some, whole = World(False), World(True)
    for step in steps:
        some.step(*step)
        whole.step(*step)
        assert some.seen() == whole.seen()
