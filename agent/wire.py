"""Domain values to messages of `slacktide.v1` and back: the only module of the agent that knows both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from agent.window import PodWindow, Sample, WindowUsage
from slacktide.forecast import Amount
from slacktide.status import Usage
from slacktide.tier import Tier
from slacktide.v1 import usage_pb2 as pb

_CLOSED_CHARACTERS: Final = 512
"""The reason ends up in an annotation of the node, which people read."""

TIERS: Final = {Tier.LS: pb.TIER_LS, Tier.BE: pb.TIER_BE, Tier.SYSTEM: pb.TIER_SYSTEM}


def encode_sample(sample: Sample) -> bytes:
    """A sample as it is spooled: everything but the sequence, which the spool gives it."""
    message = pb.Sample(
        end_unix_millis=round(sample.end * 1000),
        window_millis=round(sample.window_seconds * 1000),
        capacity=_resources(sample.capacity),
        ls=_usage(sample.tiers.get(Tier.LS)),
        be=_usage(sample.tiers.get(Tier.BE)),
        system=_usage(sample.tiers.get(Tier.SYSTEM)),
        ls_requested=_resources(sample.requested.get(Tier.LS)),
        be_requested=_resources(sample.requested.get(Tier.BE)),
        pods=[_pod(pod) for pod in sample.pods],
        ls_pressure=sample.ls_pressure,
        be_quota_cpu_millis=sample.be_limit_millis,
        closed=sample.closed[:_CLOSED_CHARACTERS],
        zones=_zones(sample.zones),
    )
    return message.SerializeToString()


def _zones(cpus: Mapping[int, int]) -> list[pb.Zone]:
    """A machine of one zone is the node itself. Memory of a zone is not read, so it is absent."""
    if len(cpus) < 2:
        return []
    return [pb.Zone(id=zone, capacity=pb.Resources(cpu_millis=1000 * count)) for zone, count in cpus.items()]


def request_of(
    node: str, boot_id: str, samples: Iterable[tuple[int, bytes]], sent_unix_millis: int
) -> pb.ReportRequest:
    """One message of the stream from spooled (sequence, payload) pairs, oldest first."""
    messages = []
    for sequence, payload in samples:
        message = pb.Sample.FromString(payload)
        message.sequence = sequence
        messages.append(message)
    return pb.ReportRequest(node=node, boot_id=boot_id, samples=messages, sent_unix_millis=sent_unix_millis)


def _resources(amount: Amount | Usage | None) -> pb.Resources:
    if amount is None:
        return pb.Resources()
    return pb.Resources(cpu_millis=amount.cpu_millis, memory_bytes=amount.memory_bytes)


def _usage(usage: WindowUsage | None) -> pb.Usage:
    if usage is None:
        return pb.Usage()
    return pb.Usage(
        cpu_millis_mean=usage.cpu_millis_mean,
        cpu_millis_max=usage.cpu_millis_max,
        memory_bytes_mean=usage.memory_bytes_mean,
        memory_bytes_max=usage.memory_bytes_max,
    )


def _pod(pod: PodWindow) -> pb.PodUsage:
    identity = pod.identity
    return pb.PodUsage(
        namespace=identity.namespace,
        name=identity.name,
        uid=identity.uid,
        tier=TIERS[identity.tier],
        usage=_usage(pod.usage),
        requested=_resources(identity.requested),
        throttled_ratio=pod.throttled_ratio,
    )
