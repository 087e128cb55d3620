"""A usage sample as the predictor keeps it, and the judgement whether it can be believed. Pure.

Values are None when the agent did not measure them; None is stored as NULL and never becomes 0.
"""

from __future__ import annotations

import enum
import math
from typing import Final, NamedTuple

from slacktide.v1 import usage_pb2

CAPACITY_TOLERANCE: Final = 1.1
"""Use above capacity times this is a broken measurement, not a busy node."""

MAX_WINDOW_MILLIS: Final = 3_600_000
"""A longer window says nothing about a peak."""

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
    ls, system, be = (_usage(message, tier) for tier in ("ls", "system", "be"))
    ls_requested = _resources(message, "ls_requested")
    be_requested = _resources(message, "be_requested")
    return Sample(
        message.sequence,
        message.end_unix_millis,
        message.window_millis,
        *_resources(message, "capacity"),
        *ls,
        *system,
        *be,
        *ls_requested,
        *be_requested,
        message.ls_pressure if message.HasField("ls_pressure") else None,
        message.be_quota_cpu_millis if message.HasField("be_quota_cpu_millis") else None,
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


_CPU_FIELDS: Final = tuple(f"{tier}_cpu_{kind}" for tier in ("ls", "system", "be") for kind in ("mean", "max"))
_MEMORY_FIELDS: Final = tuple(f"{tier}_memory_{kind}" for tier in ("ls", "system", "be") for kind in ("mean", "max"))
_LARGEST: Final = 2**62


def _judge_values(sample: Sample) -> tuple[Refusal, str] | None:
    if sample.ls_pressure is not None and not (math.isfinite(sample.ls_pressure) and sample.ls_pressure >= 0):
        return Refusal.NOT_FINITE, f"ls_pressure is {sample.ls_pressure}"
    values: tuple[object, ...] = sample
    for name, value in zip(Sample._fields, values, strict=True):
        if isinstance(value, int) and value > _LARGEST:
            return Refusal.TOO_LARGE, f"{name} is {value}"
    return (
        _above(sample, _CPU_FIELDS, sample.capacity_cpu, "millicores")
        or _above(sample, _MEMORY_FIELDS, sample.capacity_memory, "bytes")
        or _sum_above(sample, "cpu_mean", sample.capacity_cpu, "millicores")
        or _sum_above(sample, "memory_mean", sample.capacity_memory, "bytes")
    )


def _above(sample: Sample, fields: tuple[str, ...], capacity: int | None, unit: str) -> tuple[Refusal, str] | None:
    if capacity is None:
        return None
    for name in fields:
        value = getattr(sample, name)
        if value is not None and value > capacity * CAPACITY_TOLERANCE:
            return Refusal.ABOVE_CAPACITY, f"{name} is {value} {unit} on a node of {capacity}"
    return None


def _sum_above(sample: Sample, suffix: str, capacity: int | None, unit: str) -> tuple[Refusal, str] | None:
    if capacity is None:
        return None
    total = sum(getattr(sample, f"{tier}_{suffix}") or 0 for tier in ("ls", "system", "be"))
    if total > capacity * CAPACITY_TOLERANCE:
        return Refusal.ABOVE_CAPACITY, f"LS, SYSTEM and BE together used {total} {unit} on a node of {capacity}"
    return None


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _resources(message: usage_pb2.Sample, field: str) -> tuple[int | None, int | None]:
    part = getattr(message, field)
    return _optional(part, "cpu_millis"), _optional(part, "memory_bytes")


def _usage(message: usage_pb2.Sample, field: str) -> tuple[int | None, int | None, int | None, int | None]:
    part = getattr(message, field)
    cpu, memory = _optional(part, "cpu_millis_mean"), _optional(part, "memory_bytes_mean")
    cpu_max, memory_max = _optional(part, "cpu_millis_max"), _optional(part, "memory_bytes_max")
    return cpu, _at_least(cpu_max, cpu), memory, _at_least(memory_max, memory)


def _at_least(maximum: int | None, mean: int | None) -> int | None:
    if maximum is None or mean is None:
        return mean if maximum is None else maximum
    return max(maximum, mean)


def _optional(message: usage_pb2.Resources | usage_pb2.Usage, field: str) -> int | None:
    # The two branches of the union have different field names, so the typed HasField overloads do not apply.
    return int(getattr(message, field)) if message.HasField(field) else None  # type: ignore[arg-type]
