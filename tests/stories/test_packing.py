"""Story: best-effort pods packed onto few nodes, or spread, as the profile says."""

from __future__ import annotations

from collections import Counter

from tests.scheduler_plugins.build import GI, be
from tests.scheduler_plugins.rig import Rig
from tests.stories.examples import story


def places(rig: Rig, scheduler: str) -> list[int]:
    """How many of eight pods each node got, most first."""
    for name in ("a", "b", "c", "d"):
        rig.offer(4000, name)
    for i in range(8):
        rig.server.put(be(f"p{i}", 1000, GI, schedulerName=scheduler))
    rig.settle()
    found = Counter(rig.where(f"p{i}") for i in range(8))
    assert "" not in found
    return sorted(found.values(), reverse=True)


def test_packed_where_the_profile_says_so() -> None:
    assert places(story("packing-scheduler"), "packing-scheduler") == [4, 4]


def test_spread_otherwise() -> None:
    assert places(Rig(), "slacktide-scheduler") == [2, 2, 2, 2]
