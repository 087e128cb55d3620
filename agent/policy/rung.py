"""One rung of the ladder as a state machine: cut at once, hold, release slowly. Pure; all graded policies use it.

A rung has levels 0 (open) to `top`. A look at the node gives a `Verdict`: the level that is needed now, or that it
is not known, and whether all is calm.

    needed above the level   -> that level, at once
    not known, not calm,
    or needed at the level   -> hold; the quiet time begins anew
    calm for quiet_seconds,
    and dwelt min_dwell      -> one level down; the quiet time begins anew
    else                     -> hold

So a rung never falls while its level is needed, never for lack of data, and moves down no faster than one level in
max(quiet_seconds, min_dwell_seconds): up and down again takes at least that long. Up again after down may follow at
once, since LS comes first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRules:
    """`top` is the highest level; times are seconds."""

    top: int
    quiet_seconds: float
    min_dwell_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RungState:
    """`since` is when the level last changed, `quiet_since` when it became calm (None: it is not), both monotonic."""

    level: int = 0
    since: float | None = None
    quiet_since: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one look says. `needed` None is "not known"; `calm` must only be true when the signals were all there."""

    needed: int | None
    calm: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RungStatus:
    """A rung for status, other rungs and `explain`. `opens_when` says in words what lets go of it.

    `since` is monotonic seconds of the last change of level, None while it was never engaged.
    """

    name: str
    level: int
    top: int
    since: float | None
    reason: str
    opens_when: str = ""

    @property
    def engaged(self) -> bool:
        """Whether it does anything now."""
        return self.level > 0

    @property
    def exhausted(self) -> bool:
        """Whether it can do no more."""
        return self.level >= self.top


def status_of(name: str, state: RungState, top: int, opens_when: str) -> RungStatus:
    """Where a rung stands that shows its state as it is."""
    return RungStatus(
        name=name, level=state.level, top=top, since=state.since, reason=state.reason, opens_when=opens_when
    )


def advance(state: RungState, verdict: Verdict, now: float, rules: RungRules) -> RungState:
    """The next state; see the module."""
    level = min(state.level, rules.top)
    if verdict.needed is not None and verdict.needed > level:
        raised = min(verdict.needed, rules.top)
        if raised > level:
            return RungState(level=raised, since=now, quiet_since=None, reason=verdict.reason)
    if verdict.needed is None or (level and verdict.needed >= level) or not verdict.calm:
        return replace(state, level=level, quiet_since=None, reason=verdict.reason if level else "")
    if level == 0:
        return replace(state, level=0, quiet_since=None, reason="")
    quiet_since = now if state.quiet_since is None else state.quiet_since
    dwelt = state.since is None or now - state.since >= rules.min_dwell_seconds
    if not dwelt or now - quiet_since < rules.quiet_seconds:
        return replace(state, level=level, quiet_since=quiet_since)
    return RungState(level=level - 1, since=now, quiet_since=now, reason=state.reason if level > 1 else "")
