"""How a node whose samples stop loses its room, by the clock alone. Pure.

Up to `hold` seconds of silence nothing changes: a glitch is no news. Then the room (what is offered beyond what is
sold) fades evenly and is gone at `expire` seconds, when the node closes. No event of the cluster is needed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from slacktide.forecast import Amount


@dataclasses.dataclass(frozen=True, slots=True)
class Silence:
    """`share` of the room that is left, 1 to 0, and why it is less than all in words; `closed` once nothing is."""

    share: float = 1.0
    words: str = ""

    @property
    def closed(self) -> bool:
        """Whether nothing may be sold any more."""
        return self.share <= 0.0


HEARD: Final = Silence()
"""Of a node that speaks."""


@dataclasses.dataclass(frozen=True, slots=True)
class SilenceRules:
    """Seconds after which room fades, and after which none is left."""

    hold: float
    expire: float


def silence(since_heard: float, since_measured: float, rules: SilenceRules) -> Silence:
    """Judge a node that was last heard, and last measured LS and SYSTEM, so many seconds ago."""
    age = max(since_heard, since_measured)
    if age <= rules.hold:
        return HEARD
    expire = max(rules.hold, rules.expire)
    what = "no sample from the agent" if since_heard > rules.hold else "LS and SYSTEM use not measured"
    if age >= expire:
        return Silence(0.0, f"{what} for over {expire:g} s")
    return Silence((expire - age) / (expire - rules.hold), f"{what} for over {rules.hold:g} s: room fades")


def unchanged_seconds(since_heard: float, since_measured: float, rules: SilenceRules) -> float:
    """How long `silence` will say the same of a node of which nothing more is heard; 0 while its room fades."""
    age = max(since_heard, since_measured)
    if age <= rules.hold:
        return rules.hold - age
    return math.inf if age >= max(rules.hold, rules.expire) and since_heard > rules.hold else 0.0


def faded(reclaimable: int | None, sold: int | None, share: float) -> int | None:
    """What is left of `reclaimable` beside `sold`; None of either stays not known."""
    if reclaimable is None or sold is None or share >= 1.0:
        return reclaimable
    return min(reclaimable, sold) + int(max(0, reclaimable - sold) * max(0.0, share))


def faded_amount(reclaimable: Amount, sold: Amount, share: float) -> Amount:
    """The same for both resources."""
    return Amount(
        cpu_millis=faded(reclaimable.cpu_millis, sold.cpu_millis, share),
        memory_bytes=faded(reclaimable.memory_bytes, sold.memory_bytes, share),
    )
