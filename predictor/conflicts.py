"""Whether somebody else publishes on a node too. Pure.

Another overcommit controller under the same resource names and we would overwrite each other for ever, and the
scheduler would see whichever wrote last. A single foreign change is set right; after `changes` of them within
`quiet_seconds` we give way: nothing is published on that node, until it has stood still for `quiet_seconds`. Where
the other is known for what it is, its first change is enough.
"""

from __future__ import annotations

import dataclasses

from slacktide.forecast import Amount


@dataclasses.dataclass(frozen=True, slots=True)
class ConflictRules:
    """How many foreign changes are too many, and how long is quiet; seconds."""

    changes: int
    quiet_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """What is known of the others on one node: times (monotonic) of their changes; once stopped also what they left.

    stopped  since when we publish nothing; None: we publish
    seen, moved  what stood there when last looked, and when that last changed
    """

    times: tuple[float, ...] = ()
    stopped: float | None = None
    seen: Amount | None = None
    moved: float = 0.0


NO_CONFLICT = Conflict()


def changed(conflict: Conflict, found: Amount, now: float, rules: ConflictRules) -> Conflict:
    """Somebody changed what we had published into `found`."""
    recent = (*(time for time in conflict.times if now - time < rules.quiet_seconds), now)
    if len(recent) < rules.changes:
        return Conflict(recent)
    return Conflict(recent, stopped=now, seen=found, moved=now)


def given_way(conflict: Conflict, found: Amount, now: float) -> Conflict:
    """Stop at once: who put `found` there is known to go on writing."""
    return dataclasses.replace(conflict, stopped=now, seen=found, moved=now)


def watched(conflict: Conflict, found: Amount, now: float, rules: ConflictRules) -> Conflict:
    """Look at a node on which we stopped; NO_CONFLICT when it has been quiet for long enough."""
    if found != conflict.seen:
        return dataclasses.replace(conflict, seen=found, moved=now)
    return NO_CONFLICT if now - conflict.moved >= rules.quiet_seconds else conflict
