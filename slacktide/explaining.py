"""What components tell of their decisions, as JSON of their `/debug` routes; read by `slacktide explain`.

Records are kept in memory and bounded, and so end with their process: each answer says since when it was kept. `at` and
`since` are seconds since the epoch, CPU is millicores and memory bytes; None is not known.
"""

from __future__ import annotations

from typing import Final

import msgspec

from slacktide.forecast import Amount

LADDER_ROUTE: Final = "/debug/ladder"
"""Of an agent: `Ladder`."""

POD_ROUTE: Final = "/debug/pod"
"""Of an agent, with `?uid=`: `HeldPod`."""

EVICTIONS_ROUTE: Final = "/debug/evictions"
"""Of an agent, with `?pod=NAMESPACE/NAME` or without: `Evictions`."""

PUBLISHED_ROUTE: Final = "/debug/published"
"""Of a predictor, with `?node=`: `Published`."""


class Signal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One figure that a rung looks at, and its marks.

    `above`: it speaks for the rung from `enters` upwards, else from there downwards; it must be on the other side of
    `opens` for the rung to open. A mark that is None is not one: the figure then has no say in that direction.
    `lasts_seconds` is how long it must be there. `joint`: it counts only together with the signal before it.
    """

    what: str
    now: float | None
    unit: str = ""
    enters: float | None = None
    opens: float | None = None
    above: bool = True
    lasts_seconds: float = 0.0
    joint: bool = False

    @property
    def speaks(self) -> bool | None:
        """Whether it speaks for the rung now; None where that is not known."""
        if self.now is None or self.enters is None:
            return None if self.enters is not None else False
        return self.now >= self.enters if self.above else self.now < self.enters


class RungLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One policy of the agent. `level` None: it has no levels here, or cannot be had on this node, as `reason` says.

    `for_seconds` is how long it has stood there, `quiet_seconds` and `dwell_seconds` what a way back takes.
    """

    name: str
    reason: str
    level: int | None = None
    top: int | None = None
    for_seconds: float | None = None
    opens_when: str = ""
    quiet_seconds: float | None = None
    dwell_seconds: float | None = None
    signals: tuple[Signal, ...] = ()


class RungChange(msgspec.Struct, frozen=True, kw_only=True):
    """A rung went from level `before` to `after`, of `top`."""

    at: float
    name: str
    before: int
    after: int
    top: int
    reason: str


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ladder of a node stands, mildest rung first, and its last changes, newest first, kept since `since`.

    `line` is the agent's sentence, `held` why nothing is decided now (empty: it is). `shortage` is the judgement
    whether LS is short, in words. `writes` is false where the agent only says what it would do.
    """

    node: str
    at: float
    line: str
    held: str
    writes: bool
    shortage: str
    closed: str
    be_limit_millis: int | None
    be_limit_reason: str
    rungs: tuple[RungLine, ...]
    changes: tuple[RungChange, ...]
    since: float


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A knob that the agent sets on a pod or (named) container, to which value, for which policy, and why."""

    knob: str
    value: str
    policy: str
    reason: str
    container: str = ""


class HeldPod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod as the agent sees and holds it. `known` is false where it is not on the node now.

    `quota_millis` is what the kernel has. `throttled_ratio` is the share of the last turn's periods in which the pod
    was throttled by its quota, `memory_high_rate` how often a second it was slowed down at memory.high.
    """

    node: str
    at: float
    known: bool
    tier: str = ""
    cpu_millis: int | None = None
    memory_bytes: int | None = None
    quota_millis: int | None = None
    throttled_ratio: float | None = None
    memory_high_rate: float | None = None
    frozen: bool | None = None
    holds: tuple[Hold, ...] = ()


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision that a pod shall give way, and what became of it; `numbers` decided."""

    at: float
    namespace: str
    name: str
    uid: str
    way: str
    outcome: str
    reason: str
    detail: str = ""
    numbers: dict[str, str] = {}
    drill: str = ""


class Evictions(msgspec.Struct, frozen=True, kw_only=True):
    """The last decisions of a node, newest first, and what of its budgets is used.

    `since` is the time of the oldest line that is kept, None where there is none. `lost` lines the disk refused,
    `unreadable` ones cannot be read, both since the agent started or in what was read.
    """

    node: str
    decisions: tuple[Decision, ...]
    since: float | None = None
    lost: int = 0
    unreadable: int = 0
    evicted_in_hour: int | None = None
    evictions_per_hour: int | None = None
    killed_in_hour: int | None = None
    kills_per_hour: int | None = None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A rise that is not offered yet: for how long, and the least that was computed meanwhile."""

    resource: str
    seconds: float
    least: int


class PublishedChange(msgspec.Struct, frozen=True, kw_only=True):
    """One publication: what is offered since then, what stands in the status, and what moved it, in words."""

    at: float
    cause: str
    offered: Amount
    published: Amount
    why: str
    closed: str = ""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The last changes of what a node offers, newest first, by a predictor that has published since `since`.

    `since` is None where it does not lead now. `refused` is why the last patch of the node failed, `stopped` why
    nothing is published there; both empty where all is well.
    """

    node: str
    changes: tuple[PublishedChange, ...]
    since: float | None
    waiting: tuple[Waiting, ...] = ()
    refused: str = ""
    stopped: str = ""
