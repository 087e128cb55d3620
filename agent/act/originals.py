"""What a BE pod's cgroups hold by the kubelet's rules: stands in for a journal that was lost.

Shares = request * 1024 / 1000, at least 2; v2 weight by the linear map (runtimes differ; it is the smaller one). CPU
list: the parent's, which holds unless the kubelet's static CPU manager gives lists, and it then writes its own again
within 10 s. Source: kubernetes pkg/kubelet/cm (helpers_linux.go, cpumanager), reference/kernel.md 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from agent.capabilities import Knob
from agent.host.knobs import Held, Original, quota_us
from agent.snapshot import PodIdentity
from slacktide.kernel.hierarchy import Version
from slacktide.weights import kernel_weight

_OFF: Final = Original(value=0)
_NO_LIMIT: Final = Original()
_USUAL_IO_WEIGHT: Final = {"io.weight": 100, "io.bfq.weight": 100, "blkio.weight": 500, "blkio.bfq.weight": 100}


def expected_original(
    knob: Knob, identity: PodIdentity, held: Held, version: Version, *, container: bool = False
) -> Original | None:
    """The original of one knob; None where these rules do not tell, as for requests of single containers."""
    known = _ALIKE.get(knob)
    if known is not None:
        return known(held, version)
    if container:
        return _of_container(knob, version) if identity.batch_only else None
    return _of_pod(knob, identity, held, version)


def _of_pod(knob: Knob, identity: PodIdentity, held: Held, version: Version) -> Original | None:
    weight = kernel_weight(identity.cpu_request_millis, v2=version is Version.V2)
    if knob is Knob.IDLE:
        return Original(value=0, weight=weight)
    if knob is Knob.WEIGHT:
        return Original(value=weight)
    if knob is Knob.QUOTA:
        limit = identity.cpu_limit_millis
        return Original(value=None if limit is None else quota_us(limit, held.period_us))
    return Original(value=identity.memory_limit_bytes) if knob is Knob.MEMORY_MAX else None


def _of_container(knob: Knob, version: Version) -> Original | None:
    """A container that asks for batch resources only has the smallest weight, and is limited by nobody but us."""
    if knob is Knob.WEIGHT:
        return Original(value=2 if version is Version.V1 else 1)
    return _NO_LIMIT if knob in {Knob.QUOTA, Knob.MEMORY_MAX} else None


def _cpuset(held: Held, version: Version) -> Original:
    return Original(value=held.within or held.value if version is Version.V1 else None)


_ALIKE: Final[Mapping[Knob, Callable[[Held, Version], Original]]] = {
    Knob.BURST: lambda _held, _version: _OFF,
    Knob.BVT: lambda _held, _version: _OFF,
    Knob.FREEZE: lambda _held, _version: _OFF,
    Knob.CPUSET: _cpuset,
    Knob.MEMORY_HIGH: lambda _held, _version: _NO_LIMIT,
    Knob.IO_MAX: lambda _held, _version: _NO_LIMIT,
    Knob.IO_WEIGHT: lambda held, _version: Original(value=_USUAL_IO_WEIGHT.get(held.name)),
}
"""Knobs that the kubelet sets alike, if at all, on pods and containers of BE."""
