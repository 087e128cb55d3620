"""Names of policies. A new policy is one file with a class, and one line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from agent.policy.base import Policy
from agent.policy.batch_limits import BatchLimits
from agent.policy.burst import Burst
from agent.policy.cache_bandwidth import CacheBandwidth
from agent.policy.close import Close
from agent.policy.contention import Contention
from agent.policy.evict import Evict
from agent.policy.io import Io
from agent.policy.kill import Kill
from agent.policy.memory import Memory
from agent.policy.pids import Pids
from agent.policy.spread import Spread
from agent.policy.suppress import Suppress
from agent.policy.weight import Weight
from slacktide.errors import SettingsError

POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    BatchLimits.name: BatchLimits,
    Weight.name: Weight,
    Spread.name: Spread,
    Pids.name: Pids,
    Burst.name: Burst,
    Suppress.name: Suppress,
    Contention.name: Contention,
    CacheBandwidth.name: CacheBandwidth,
    Memory.name: Memory,
    Io.name: Io,
    Close.name: Close,
    Evict.name: Evict,
    Kill.name: Kill,
}
"""In the order of the ladder: the mildest first."""


def build(names: Iterable[str]) -> tuple[Policy, ...]:
    """The named policies in the order of the ladder. Raises SettingsError naming those that are known."""
    asked = list(names)
    unknown = [name for name in asked if name not in POLICIES]
    if unknown:
        known = ", ".join(POLICIES)
        raise SettingsError([f"policies: no policy is called {name!r}; known: {known}" for name in unknown])
    return tuple(make() for name, make in POLICIES.items() if name in asked)
