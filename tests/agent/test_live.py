from __future__ import annotations

import math

import msgspec
from prometheus_client import CollectorRegistry

from agent.capabilities import Capabilities, Knob
from agent.counters import CpuKnobs
from agent.drill import Drill, Kind, Order
from agent.live import Live, status_of
from agent.loop import Turn
from agent.metrics import COUNTED, AgentMetrics
from agent.policy.base import Plan, Request
from agent.pressure import Pressure, Shortage
from agent.snapshot import NodeSnapshot, PodIdentity, PodSnapshot
from slacktide.status import AgentStatus, Usage
from slacktide.tier import Tier

ABLE = Capabilities(mode="v1", cpu_version=1, writable=frozenset(Knob), skipped={"psi": "cgroup v1 has none"})
BE = PodSnapshot(
    identity=PodIdentity(namespace="d", name="be", uid="u", tier=Tier.BE),
    group="kubepods/be",
    usage=Usage(cpu_millis=700),
    throttled_ratio=0.5,
    knobs=CpuKnobs(idle=False),
)


def turn(number=1, held="", limit=300, pressure=None, shortage=None, **tiers):
    settings = {
        ("kubepods/be", knob): Request(policy="p", group="kubepods/be", knob=knob, value=value, reason="r")
        for knob, value in ((Knob.IDLE, 1), (Knob.QUOTA, limit))
    }
    return Turn(
        number=number,
        wall=1e9,
        seconds=0.002,
        snapshot=NodeSnapshot(
            at=5.0,
            window_seconds=1.0,
            capacity=Usage(cpu_millis=2000),
            tiers={Tier(name): usage for name, usage in tiers.items()},
            pods=(BE,),
            pressure=pressure,
            shortage=shortage,
            unmatched=3,
        ),
        plan=Plan(settings=settings, reasons={"suppress": "because"}, be_limit_millis=limit),
        held=held,
        line="a sentence",
    )


def test_status_says_what_is_known_and_done():
    live = Live()
    assert live.body() == b"{}"
    live.set(lambda: status_of("n1", turn(BE=Usage(cpu_millis=700)), ABLE, {"writes": 2}))
    status = msgspec.json.decode(live.body(), type=AgentStatus)
    (pod,) = status.pods
    assert (pod.quota_millis, pod.idle, pod.throttled_ratio, pod.usage.memory_bytes) == (300, True, 0.5, None)
    assert (status.be_quota_millis, status.reasons, status.counters) == (300, {"suppress": "because"}, {"writes": 2})
    assert status.tiers[Tier.BE].cpu_millis == 700
    assert status.tiers[Tier.LS] == Usage()
    assert status.ls_pressure is None
    assert status.skipped == {"psi": "cgroup v1 has none"}


def test_status_of_a_held_turn_and_of_a_node_that_only_observes():
    assert status_of("n1", turn(held="the API has not answered yet"), ABLE, {}).reasons == {
        "held": "the API has not answered yet"
    }
    observing = Capabilities(mode="v1", cpu_version=1)
    (pod,) = status_of("n1", turn(), observing, {}).pods
    assert (pod.quota_millis, pod.idle) == (None, False)


def test_metrics_leave_unknown_figures_out_and_count_what_was_added():
    registry = CollectorRegistry()
    metrics = AgentMetrics(registry, ABLE)
    pressure = Pressure(kind="run-delay", value=0.7, window_seconds=0.25)
    metrics.turn(turn(pressure=pressure, LS=Usage(cpu_millis=900)), {"writes": 2, "other": 9}, 512, connected=True)
    metrics.turn(turn(), {"writes": 5}, 0, connected=False)

    def value(name, **labels):
        return registry.get_sample_value(f"slacktide_agent_{name}", labels)

    assert value("writes_total") == 5
    assert value("turn_seconds_count") == 2
    assert value("be_quota_millis") == 300
    assert math.isnan(value("ls_short"))
    metrics.turn(turn(shortage=Shortage(short=True, calm=False, reason="it waits")), {}, 0, connected=False)
    assert value("ls_short") == 1
    assert value("unmatched_cgroups") == 3
    assert math.isnan(value("tier_cpu_millis", tier="LS"))
    assert value("ls_pressure", kind="run-delay") is None
    assert value("skipped_info", what="psi", reason="cgroup v1 has none") == 1
    assert value("predictor_connected") == 0
    assert all(value(f"{name}_total") is not None for name in COUNTED)


def test_the_drill_is_named_with_its_kind():
    order = Order(
        id="d1", kind=Kind.BANDWIDTH, duration_seconds=1.0, dry_run=False, victims_max=0, reason="game day",
        caller="me", dead_man_seconds=5.0, recover_seconds=30.0,
    )  # fmt: skip
    told = status_of("n1", turn(), ABLE, {}, drill=Drill(order=order)).drill
    assert (told.id, told.kind, told.caller) == ("d1", "bandwidth", "me")
