"""Policy *close*: nothing more is sold here while what is here already gets too little, or nobody can say.

    exhausted     a milder rung (suppress, contention, memory, io, cache_bandwidth) can do no more, for
                  `exhausted_seconds`
    short         LS is short of CPU for `short_seconds`
    memory        available memory is below `memory_percent` of the node's
    evicting      eviction, freezing or killing is on, or a pod that was evicted has not gone yet
    blind         use of LS or SYSTEM, or the node's memory, is not measured for `blind_seconds`
    rival         the agent of another such system runs on the node (slacktide.rivals)

Any of them closes at once when its time is over. It opens after `quiet_seconds` in which none of them showed even a
sign (memory must be `memory_hold_percent` above the mark), and not before `min_dwell_seconds`. A rung or a signal
that this node does not have closes nothing; one that is there and cannot be read keeps a closed node closed.

Closed is a state and not a message: the reason goes into every sample, and the predictor offers 0 as long as the last
one has it (caelus e8f0bda: "closed" was sent once, and lost). After a restart that finds BE limited the node begins
closed. Cordoned nodes are the scheduler's to see: BE that runs here is protected from nothing by a cordon.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from msgspec import Meta

from agent.capabilities import Capabilities
from agent.policy.base import Context, Desired
from agent.policy.gaps import available_bytes
from agent.policy.rung import RungRules, RungState, Verdict, advance, status_of
from agent.policy.victims import begun_attempts
from agent.snapshot import NodeSnapshot
from slacktide.rivals import advice
from slacktide.settings import Settings
from slacktide.tier import Tier

MILDER: Final = ("suppress", "contention", "cache_bandwidth", "memory", "io")
SEVERER: Final = ("evict", "kill")


class CloseSettings(Settings, frozen=True, kw_only=True):
    """Settings of the close policy."""

    exhausted_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="A milder rung may do all it can for this long", extra={"reloadable": True}),
    ] = 10.0
    short_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="LS may be short of CPU for this long", extra={"reloadable": True})
    ] = 5.0
    memory_percent: Annotated[
        float,
        Meta(ge=0, le=90, description="Closed with less of the node's memory available", extra={"reloadable": True}),
    ] = 10.0
    memory_hold_percent: Annotated[
        float,
        Meta(ge=0, le=50, description="Memory must be this far above the mark to open", extra={"reloadable": True}),
    ] = 2.0
    blind_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="Measurements may be missing for this long", extra={"reloadable": True}),
    ] = 5.0
    quiet_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400, description="Nothing may speak for closing for this long", extra={"reloadable": True}),
    ] = 30.0
    min_dwell_seconds: Annotated[
        float, Meta(ge=0, le=86_400, description="A closed node stays so at least", extra={"reloadable": True})
    ] = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseState:
    """`since` is when each sign showed first, in monotonic seconds; a sign that went away is forgotten.

    `causes` are the signs that the reason of the rung was made of: the same causes keep their reason, whatever their
    numbers are by now, since each change goes out to the cluster.
    """

    rung: RungState = field(default_factory=RungState)
    causes: frozenset[str] = frozenset()
    since: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """Something that speaks for closing once it has lasted `patience_seconds`; infinite for one that only holds."""

    name: str
    patience_seconds: float
    reason: str


_ONLY_HOLDS: Final = float("inf")


class Close:
    """See the module."""

    name = "close"
    urgent = False

    def start(self, context: Context) -> CloseState:
        """Closed where an earlier agent left BE limited, else open."""
        if context.adopted_be_limit_millis is None:
            return CloseState()
        return CloseState(rung=RungState(level=1, reason="BE was limited before the agent started again"))

    def decide(
        self, snapshot: NodeSnapshot, state: CloseState, settings: CloseSettings, context: Context
    ) -> tuple[Desired, CloseState]:
        """Why nothing more may be sold here, if so."""
        signs = tuple(_signs(snapshot, settings, context.capabilities))
        since = {sign.name: state.since.get(sign.name, snapshot.at) for sign in signs}
        ripe = [sign for sign in signs if snapshot.at - since[sign.name] >= sign.patience_seconds]
        reason = "; ".join(sign.reason for sign in ripe) or "; ".join(sign.reason for sign in signs)
        verdict = Verdict(needed=1 if ripe else 0, calm=not signs, reason=reason)
        rules = RungRules(top=1, quiet_seconds=settings.quiet_seconds, min_dwell_seconds=settings.min_dwell_seconds)
        rung = advance(state.rung, verdict, snapshot.at, rules)
        causes = frozenset(sign.name for sign in ripe or signs)
        if rung.level and state.rung.level and causes == state.causes:
            rung = replace(rung, reason=state.rung.reason)
        elif rung.level and ripe:
            rung = replace(rung, reason=reason)
        status = status_of(self.name, rung, 1, f"none of its causes shows for {settings.quiet_seconds:g} s")
        closed = rung.reason if rung.level else ""
        said = f"closed: {closed}" if closed else "open"
        return Desired(reason=said, rung=status, closed=closed), CloseState(rung=rung, since=since, causes=causes)


def _signs(snapshot: NodeSnapshot, settings: CloseSettings, capabilities: Capabilities) -> Iterator[Sign]:
    yield from _rivals(snapshot)
    yield from _rungs(snapshot, settings)
    yield from _shortage(snapshot, settings, capabilities)
    yield from _memory(snapshot, settings)
    yield from _blind(snapshot, settings)


def _rivals(snapshot: NodeSnapshot) -> Iterator[Sign]:
    pods = {pod.identity.rival: f"pod {pod.label}" for pod in snapshot.pods if pod.identity.rival}
    if snapshot.rivals is None:
        yield Sign(name="rivals unknown", patience_seconds=_ONLY_HOLDS, reason="other agents are not looked for yet")
    for system, where in sorted({**(snapshot.rivals or {}), **pods}.items()):
        yield Sign(name=f"rival {system}", patience_seconds=0.0, reason=advice(system, where))


def _rungs(snapshot: NodeSnapshot, settings: CloseSettings) -> Iterator[Sign]:
    for name in MILDER:
        status = snapshot.ladder.get(name)
        if status is not None and status.engaged and status.exhausted:
            yield Sign(
                name=name,
                patience_seconds=settings.exhausted_seconds,
                reason=f"{name} can do no more: {status.reason}",
            )
    for name in SEVERER:
        status = snapshot.ladder.get(name)
        if status is not None and status.engaged:
            yield Sign(name=name, patience_seconds=0.0, reason=f"{name} is on: {status.reason}")
    here = {pod.identity.uid: pod.label for pod in snapshot.pods}
    going = [here[attempt.uid] for attempt in begun_attempts(snapshot) if attempt.uid in here]
    if going:
        yield Sign(name="going", patience_seconds=0.0, reason=f"evicted and not gone yet: {', '.join(going)}")


def _shortage(snapshot: NodeSnapshot, settings: CloseSettings, capabilities: Capabilities) -> Iterator[Sign]:
    shortage = snapshot.shortage
    if shortage is None or shortage.short is None:
        if capabilities.psi or capabilities.run_delay:
            yield Sign(name="shortage unknown", patience_seconds=_ONLY_HOLDS, reason="LS pressure is not known")
    elif shortage.short:
        yield Sign(
            name="short",
            patience_seconds=settings.short_seconds,
            reason=f"LS is short of CPU: {shortage.reason}",
        )


def _memory(snapshot: NodeSnapshot, settings: CloseSettings) -> Iterator[Sign]:
    available, total = available_bytes(snapshot), snapshot.capacity.memory_bytes
    if available is None or not total:
        return
    percent = 100 * available / total
    reason = f"{percent:.1f} % of memory is available, closed below {settings.memory_percent:g} %"
    if percent < settings.memory_percent:
        yield Sign(name="memory", patience_seconds=0.0, reason=reason)
    elif percent < settings.memory_percent + settings.memory_hold_percent:
        yield Sign(name="memory near", patience_seconds=_ONLY_HOLDS, reason=reason)


def _blind(snapshot: NodeSnapshot, settings: CloseSettings) -> Iterator[Sign]:
    missing = [
        what
        for what, value in (
            ("CPU of the node", snapshot.capacity.cpu_millis),
            ("use of LS", snapshot.of(Tier.LS).cpu_millis),
            ("use of SYSTEM", snapshot.of(Tier.SYSTEM).cpu_millis),
            ("available memory", snapshot.memory_available_bytes),
        )
        if value is None
    ]
    if missing:
        yield Sign(
            name="blind",
            patience_seconds=settings.blind_seconds,
            reason=f"not measured: {', '.join(missing)}",
        )
