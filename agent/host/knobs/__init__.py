"""Adapters of all knobs, by knob. A new knob is a class of `base.Adapter` and its line in `ADAPTERS`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from agent.capabilities import Knob
from agent.host.knobs.base import Adapter, Change, Held, Original, Phase
from agent.host.knobs.cpu import Burst, Bvt, Idle, Quota, Weight, quota_us
from agent.host.knobs.cpuset import Cpuset
from agent.host.knobs.freezer import Freeze
from agent.host.knobs.io import IoMax, IoWeight
from agent.host.knobs.memory import MemoryHigh, MemoryMax
from agent.host.knobs.pids import PidsMax
from slacktide.kernel.hierarchy import Hierarchy, Mount

# In the order in which they are set on one group: an idle group takes no weight.
_ALL: Final = (
    *(Weight(), Idle(), Quota(), Burst(), Bvt(), Cpuset()),
    *(MemoryHigh(), MemoryMax(), IoWeight(), IoMax(), PidsMax(), Freeze()),
)

ADAPTERS: Final[Mapping[Knob, Adapter]] = MappingProxyType({adapter.knob: adapter for adapter in _ALL})

_V1_NAME: Final = {"io": "blkio"}


def mount_of(hierarchy: Hierarchy, knob: Knob) -> Mount | None:
    """Where the controller of a knob is mounted; None where it is not."""
    name = knob.controller
    return hierarchy.controllers.get(name) or hierarchy.controllers.get(_V1_NAME.get(name, name))


__all__ = ["ADAPTERS", "Adapter", "Change", "Held", "Original", "Phase", "mount_of", "quota_us"]
