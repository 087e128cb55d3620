"""A usage sample as the predictor keeps it, and the judgement whether it can be believed. Pure.

Values are None when the agent did not measure them; None is stored as NULL and never becomes 0.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from predictor.pods import PodUse
from slacktide.forecast import Amount, Zone
from slacktide.v1 import usage_pb2

CAPACITY_TOLERANCE: Final = 1.1
"""Use above capacity times this is a broken measurement, not a busy node."""

MAX_WINDOW_MILLIS: Final = 3_600_000
"""A longer window says nothing about a peak."""

MAX_ZONES: Final = 64
"""NUMA zones of one machine that are believed; more would burst the annotation."""

MAX_NAME_LENGTH: Final = 253
"""Longest node name that the Kubernetes API allows."""


class Sample(NamedTuple):
    """One node over one window: CPU in millicores, memory in bytes, None = not measured.

    `end_millis` is the end of the window in milliseconds since the epoch by the node's clock.
    """

    sequence: int
    end_millis: int
    window_millis: int
    capacity_cpu: int | None
    capacity_memory: int | None
    ls_cpu_mean: int | None
    ls_cpu_max: int | None
    ls_memory_mean: int | None
    ls_memory_max: int | None
    system_cpu_mean: int | None
    system_cpu_max: int | None
    system_memory_mean: int | None
    system_memory_max: int | None
    be_cpu_mean: int | None
    be_cpu_max: int | None
    be_memory_mean: int | None
    be_memory_max: int | None
    ls_requested_cpu: int | None
    ls_requested_memory: int | None
    be_requested_cpu: int | None
    be_requested_memory: int | None
    ls_pressure: float | None
    be_quota: int | None

    @property
    def protected_cpu_mean(self) -> int | None:
        """LS + SYSTEM CPU use over the window; None unless both are known."""
        return _sum(self.ls_cpu_mean, self.system_cpu_mean)

    @property
    def protected_memory_max(self) -> int | None:
        """Highest LS + SYSTEM working set; None unless both are known."""
        return _sum(self.ls_memory_max, self.system_memory_max)


class Refusal(enum.StrEnum):
    """Why a sample was refused for good: the label of the metric."""

    OTHER_NODE = "other_node"
    BAD_NAME = "bad_name"
    ZERO_SEQUENCE = "zero_sequence"
    NO_WINDOW = "no_window"
    BAD_TIME = "bad_time"
    FUTURE = "future"
    TOO_OLD = "too_old"
    NOT_FINITE = "not_finite"
    ABOVE_CAPACITY = "above_capacity"
    TOO_LARGE = "too_large"


class Limits(NamedTuple):
    """What a sample's end may be, in milliseconds since the epoch."""

    latest_end_millis: int
    oldest_end_millis: int


def read(message: usage_pb2.Sample) -> Sample:
    """The sample in `message`. A maximum that is missing or below its mean is taken as the mean."""
    # A thousand of these come in a second: fields are named one by one rather than looped over.
    return Sample(
        message.sequence,
        message.end_unix_millis,
        message.window_millis,
        *_resources(message.capacity),
        *_usage(message.ls),
        *_usage(message.system),
        *_usage(message.be),
        *_resources(message.ls_requested),
        *_resources(message.be_requested),
        message.ls_pressure if message.HasField("ls_pressure") else None,
        message.be_quota_cpu_millis if message.HasField("be_quota_cpu_millis") else None,
    )


_BEST_EFFORT: Final = usage_pb2.TIER_BE
_SYSTEM: Final = usage_pb2.TIER_SYSTEM


def read_pods(message: usage_pb2.Sample, before: Sequence[PodUse] = ()) -> list[PodUse]:
    """The LS and SYSTEM pods in `message`.

    `before` are those of the sample before: of a pod that comes in the same place the names are taken from there, since
    those of one uid never change.
    """
    pods: list[PodUse] = []
    for pod in message.pods:
        tier, uid = pod.tier, pod.uid
        if tier == _BEST_EFFORT or not uid:
            continue
        usage, requested = pod.usage, pod.requested
        # Ten thousand of these come in a second. What is not 0 is there: only of a 0 it must be asked.
        cpu = usage.cpu_millis_mean or _zero(usage, "cpu_millis_mean")
        memory = usage.memory_bytes_max or _zero(usage, "memory_bytes_max")
        if memory is None:
            memory = usage.memory_bytes_mean or _zero(usage, "memory_bytes_mean")
        place = len(pods)
        if place < len(before) and before[place][0] == uid:
            uid, namespace, name, *_ = before[place]
        else:
            namespace, name = pod.namespace, pod.name
        pods.append(
            PodUse(
                uid,
                namespace,
                name,
                cpu,
                memory,
                requested.cpu_millis or _zero(requested, "cpu_millis"),
                requested.memory_bytes or _zero(requested, "memory_bytes"),
                "system" if tier == _SYSTEM else "ls",
            )
        )
    return pods


def read_zones(message: usage_pb2.Sample) -> tuple[Zone, ...]:
    """The NUMA zones of the node by id, each once; none where a machine has one or more than anybody builds."""
    if not message.zones:
        return ()
    sizes = {zone.id: _resources(zone.capacity) for zone in message.zones[:MAX_ZONES]}
    if len(message.zones) > MAX_ZONES or any((part or 0) > _LARGEST for size in sizes.values() for part in size):
        return ()
    return tuple(
        Zone(id=zone, capacity=Amount(cpu_millis=cpu, memory_bytes=memory))
        for zone, (cpu, memory) in sorted(sizes.items())
    )


def judge(sample: Sample, limits: Limits) -> tuple[Refusal, str] | None:
    """Why `sample` is refused for good, as a kind and in words; None when it can be believed."""
    return _judge_time(sample, limits) or _judge_values(sample)


def judge_origin(node: str, boot_id: str, stream_node: str) -> tuple[Refusal, str] | None:
    """Why samples said to be of `node` are refused on a stream that began as `stream_node`."""
    if not node or len(node) > MAX_NAME_LENGTH or not node.isprintable():
        return Refusal.BAD_NAME, f"node name {node[:64]!r} is not a node name"
    if not boot_id or len(boot_id) > MAX_NAME_LENGTH or not boot_id.isprintable():
        return Refusal.BAD_NAME, f"boot id {boot_id[:64]!r} is not a boot id"
    if node != stream_node:
        return Refusal.OTHER_NODE, f"this stream is of node {stream_node!r}, the sample says {node!r}"
    return None


def _judge_time(sample: Sample, limits: Limits) -> tuple[Refusal, str] | None:
    if sample.sequence == 0:
        return Refusal.ZERO_SEQUENCE, "sequence is 0; sequences start at 1 with every boot"
    if sample.window_millis == 0:
        return Refusal.NO_WINDOW, "window_millis is missing"
    if sample.window_millis > MAX_WINDOW_MILLIS:
        return Refusal.NO_WINDOW, f"window of {sample.window_millis} ms is longer than {MAX_WINDOW_MILLIS} ms"
    if sample.end_millis <= 0:
        return Refusal.BAD_TIME, f"end_unix_millis is {sample.end_millis}"
    if sample.end_millis > limits.latest_end_millis:
        ahead = (sample.end_millis - limits.latest_end_millis) / 1000
        return Refusal.FUTURE, f"the window ends {ahead:.1f} s beyond the allowed skew: set the clock of the node"
    if sample.end_millis < limits.oldest_end_millis:
        return Refusal.TOO_OLD, "the window is older than the history that is kept"
    return None


_USES: Final = Sample._fields.index("ls_cpu_mean")
_TIERS: Final = ("ls", "system", "be")
_LARGEST: Final = 2**60


def judge_pods(pods: Sequence[PodUse], sample: Sample) -> tuple[Refusal, str] | None:
    """Why a sample is refused for what it says of single pods."""
    most_cpu = _LARGEST if sample.capacity_cpu is None else sample.capacity_cpu * CAPACITY_TOLERANCE
    most_memory = _LARGEST if sample.capacity_memory is None else sample.capacity_memory * CAPACITY_TOLERANCE
    for uid, namespace, name, cpu, memory, *_ in pods:
        if len(uid) > MAX_NAME_LENGTH or len(name) > MAX_NAME_LENGTH or len(namespace) > MAX_NAME_LENGTH:
            return Refusal.BAD_NAME, f"pod {name[:64]!r} has a name of over {MAX_NAME_LENGTH} characters"
        if cpu is not None and cpu > most_cpu:
            return Refusal.ABOVE_CAPACITY, f"pod {namespace}/{name} used {cpu} millicores"
        if memory is not None and memory > most_memory:
            return Refusal.ABOVE_CAPACITY, f"pod {namespace}/{name} used {memory} bytes"
    return None


def _judge_values(sample: Sample) -> tuple[Refusal, str] | None:
    pressure = sample.ls_pressure
    if pressure is not None and not (math.isfinite(pressure) and pressure >= 0):
        return Refusal.NOT_FINITE, f"ls_pressure is {pressure}"
    if max(filter(None, sample)) > _LARGEST:
        values: tuple[object, ...] = sample
        named = zip(Sample._fields, values, strict=True)
        name, value = next((name, v) for name, v in named if isinstance(v, int) and v > _LARGEST)
        return Refusal.TOO_LARGE, f"{name} is {value}"
    uses = sample[_USES : _USES + 12]
    return _above("cpu", uses[0:2] + uses[4:6] + uses[8:10], sample.capacity_cpu, "millicores") or _above(
        "memory", uses[2:4] + uses[6:8] + uses[10:12], sample.capacity_memory, "bytes"
    )


def _above(resource: str, uses: Sequence[float | None], capacity: int | None, unit: str) -> tuple[Refusal, str] | None:
    """`uses` are mean and maximum of each tier in turn."""
    if capacity is None:
        return None
    most = capacity * CAPACITY_TOLERANCE
    if max(filter(None, uses), default=0) > most:
        index = next(index for index, value in enumerate(uses) if value is not None and value > most)
        name = f"{_TIERS[index // 2]}_{resource}_{'max' if index % 2 else 'mean'}"
        return Refusal.ABOVE_CAPACITY, f"{name} is {uses[index]} {unit} on a node of {capacity}"
    total = sum(filter(None, uses[::2]))
    if total > most:
        return Refusal.ABOVE_CAPACITY, f"LS, SYSTEM and BE together used {total} {unit} on a node of {capacity}"
    return None


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _zero(part: usage_pb2.Resources | usage_pb2.Usage, field: str) -> int | None:
    """What a field that reads as 0 says: 0, or nothing when it is not there."""
    # The stubs have the names of the fields as literals.
    return 0 if part.HasField(field) else None  # type: ignore[arg-type]


def _resources(part: usage_pb2.Resources) -> tuple[int | None, int | None]:
    return (part.cpu_millis or _zero(part, "cpu_millis"), part.memory_bytes or _zero(part, "memory_bytes"))


def _usage(part: usage_pb2.Usage) -> tuple[int | None, int | None, int | None, int | None]:
    cpu = part.cpu_millis_mean or _zero(part, "cpu_millis_mean")
    memory = part.memory_bytes_mean or _zero(part, "memory_bytes_mean")
    cpu_max = part.cpu_millis_max or _zero(part, "cpu_millis_max")
    memory_max = part.memory_bytes_max or _zero(part, "memory_bytes_max")
    return cpu, _at_least(cpu_max, cpu), memory, _at_least(memory_max, memory)


def _at_least(maximum: int | None, mean: int | None) -> int | None:
    if maximum is None or mean is None:
        return mean if maximum is None else maximum
    return max(maximum, mean)
