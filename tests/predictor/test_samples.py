from __future__ import annotations

import pytest

from predictor.samples import Limits, Refusal, judge, judge_origin, read, read_pods, read_zones
from slacktide.v1 import usage_pb2
from tests.predictor.support import WALL_MILLIS, make_sample

LIMITS = Limits(latest_end_millis=WALL_MILLIS + 60_000, oldest_end_millis=WALL_MILLIS - 86_400_000)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"sequence": 0}, Refusal.ZERO_SEQUENCE),
        ({"window_millis": 0}, Refusal.NO_WINDOW),
        ({"window_millis": 3_600_001}, Refusal.NO_WINDOW),
        ({"end_millis": 0}, Refusal.BAD_TIME),
        ({"end_millis": WALL_MILLIS + 60_001}, Refusal.FUTURE),
        ({"end_millis": WALL_MILLIS - 86_400_001}, Refusal.TOO_OLD),
        ({"ls_pressure": float("nan")}, Refusal.NOT_FINITE),
        ({"ls_pressure": float("inf")}, Refusal.NOT_FINITE),
        ({"ls_pressure": -0.1}, Refusal.NOT_FINITE),
        ({"ls_cpu_max": 35_201}, Refusal.ABOVE_CAPACITY),
        ({"be_memory_mean": 71 << 30}, Refusal.ABOVE_CAPACITY),
        ({"ls_cpu_mean": 20_000, "be_cpu_mean": 20_000}, Refusal.ABOVE_CAPACITY),
        ({"ls_memory_max": 2**63, "capacity_memory": None}, Refusal.TOO_LARGE),
        ({"capacity_cpu": 0}, Refusal.ABOVE_CAPACITY),
    ],
)
def test_absurd_samples_are_refused(values, kind):
    values = {"sequence": 7, "end_millis": WALL_MILLIS, **values}
    verdict = judge(make_sample(**values), LIMITS)
    assert verdict is not None
    assert verdict[0] is kind
    assert verdict[1]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"ls_cpu_max": 35_200},
        {"end_millis": WALL_MILLIS + 60_000},
        {"capacity_cpu": None, "capacity_memory": None},
        {"ls_cpu_mean": None, "ls_cpu_max": None, "ls_pressure": None},
        {"ls_pressure": 3.5},
    ],
)
def test_samples_that_can_be_believed(values):
    assert judge(make_sample(**{"sequence": 7, "end_millis": WALL_MILLIS, **values}), LIMITS) is None


@pytest.mark.parametrize(
    ("node", "boot", "stream", "kind"),
    [
        ("n2", "b", "n1", Refusal.OTHER_NODE),
        ("", "b", "", Refusal.BAD_NAME),
        ("n1", "", "n1", Refusal.BAD_NAME),
        ("n" * 254, "b", "n" * 254, Refusal.BAD_NAME),
        ("n\n1", "b", "n\n1", Refusal.BAD_NAME),
    ],
)
def test_origin(node, boot, stream, kind):
    assert judge_origin(node, boot, stream)[0] is kind
    assert judge_origin("n1", "b", "n1") is None


def test_missing_values_stay_missing():
    # crane #889, volcano#5788: a missing statistic is not 0.
    sample = read(usage_pb2.Sample(sequence=1, end_unix_millis=5, window_millis=1000, ls=usage_pb2.Usage()))
    assert set(sample[3:]) == {None}
    assert sample.protected_cpu_mean is None


def test_zero_that_was_measured_stays_zero():
    part = usage_pb2.Usage(cpu_millis_mean=0, cpu_millis_max=0, memory_bytes_mean=0, memory_bytes_max=0)
    sample = read(usage_pb2.Sample(sequence=1, ls=part, system=part))
    assert sample.protected_cpu_mean == 0
    assert sample.protected_memory_max == 0


def test_pods_are_read_alike_with_and_without_those_of_the_sample_before():
    def told(*uids):
        return usage_pb2.Sample(
            pods=[
                usage_pb2.PodUsage(uid=uid, namespace="d", name=f"n-{uid}", usage=usage_pb2.Usage(cpu_millis_mean=at))
                for at, uid in enumerate(uids)
            ]
        )

    before = read_pods(told("a", "b", "c"))
    for uids in (("a", "b", "c"), ("b", "a"), ("a", "", "c", "d"), ()):
        assert read_pods(told(*uids), before) == read_pods(told(*uids))


@pytest.mark.parametrize("value", [None, 0, 5])
def test_use_and_requests_of_a_pod_are_what_was_said_also_when_that_is_zero(value):
    usage = usage_pb2.Usage(cpu_millis_mean=value, memory_bytes_max=value)
    requested = usage_pb2.Resources(cpu_millis=value, memory_bytes=value)
    told = usage_pb2.PodUsage(
        uid="u", namespace="d", name="n", tier=usage_pb2.TIER_LS, usage=usage, requested=requested
    )
    (pod,) = read_pods(usage_pb2.Sample(pods=[told]))
    assert pod[3:7] == (value,) * 4
    highest = usage_pb2.Usage(memory_bytes_mean=value)
    (pod,) = read_pods(usage_pb2.Sample(pods=[usage_pb2.PodUsage(uid="u", usage=highest)]))
    assert pod.memory_max == value


def test_a_maximum_below_its_mean_is_the_mean():
    part = usage_pb2.Usage(cpu_millis_mean=9, cpu_millis_max=5, memory_bytes_mean=7)
    sample = read(usage_pb2.Sample(sequence=1, ls=part))
    assert (sample.ls_cpu_max, sample.ls_memory_max) == (9, 7)


def test_use_of_one_tier_that_is_missing_makes_the_sum_missing():
    assert make_sample(1, system_cpu_mean=None).protected_cpu_mean is None
    assert make_sample(1).protected_cpu_mean == 4500


def test_zones_are_read_once_each_and_absurd_ones_are_none():
    def message(*zones):
        return usage_pb2.Sample(
            zones=[usage_pb2.Zone(id=zone, capacity=usage_pb2.Resources(cpu_millis=cpu)) for zone, cpu in zones]
        )

    assert read_zones(message()) == ()
    zones = read_zones(message((1, 8000), (0, 24000), (1, 9000)))
    assert [(zone.id, zone.capacity.cpu_millis, zone.capacity.memory_bytes) for zone in zones] == [
        (0, 24000, None),
        (1, 9000, None),
    ]
    assert read_zones(message(*((zone, 1) for zone in range(65)))) == ()
    assert read_zones(message((0, 1), (1, 2**63))) == ()
