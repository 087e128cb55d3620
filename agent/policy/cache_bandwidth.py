"""Policy *cache and bandwidth*: BE gets less of the last level cache and of memory bandwidth while LS suffers from it.

    level 0                 wide open (`schemata` None)
    level 1 .. `steps`      even steps from 100 % down to the floors, cache and bandwidth each its own
    held at `steps`         while it is needed

First cut to half the levels at once, then one level each `settle_seconds`: a mask changes new cache lines only, so what
it does shows slowly. One level back after `quiet_seconds` of calm. LS itself is in the default class, which is never
written. What decides, the first row that holds:

    nothing offered, no class for BE                          no rung on this node; told, and nothing changes
    reading older than `max_age_seconds`, shortage unknown    held
    a drill says so                                           needed
    LS's own cycles per instruction are high                  needed, where BE's share of the traffic is not small
    LS loses cache to BE and fetches more in `in_row` looks   needed
    LS is short of CPU, and memory is busy by BE              needed
    LS is short for other reasons                             held
    LS calm, no cache lost                                    calm

Memory is busy where a domain's traffic is `busy_percent` of the most that it was ever seen to give, and above
`quiet_mebibytes`, and BE's part is `be_share_percent` of it. A node that cannot measure traffic is taken for busy when
LS is short. The most counts only when two looks in a row saw it, so that a wrong count is not the measure. Limits in
absolute units need it: before it is known only the cache is cut. A restarted agent takes the level from what the class
holds, and keeps its absolute limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from msgspec import Meta

from agent.policy.base import Context, Desired
from agent.policy.rdt_shares import Highest, bandwidth_values, cache_values, no_larger, why_no_bandwidth
from agent.policy.rung import RungRules, RungState, Verdict, advance, status_of
from agent.resctrl import BandwidthUnit, RdtGroupReading, RdtInfo, RdtReading, Schemata
from agent.schemata import BANDWIDTH, open_values
from agent.snapshot import NodeSnapshot
from agent.topology import Topology
from slacktide.settings import Settings
from slacktide.tier import Tier

_MEBIBYTE: Final = 1 << 20
_FOLLOW: Final = 0.02
"""Share of a new look in what is usual for LS: 35 looks to go half the way, also for a change that stays."""

_RELOADABLE: Final = {"reloadable": True}


class CacheBandwidthSettings(Settings, frozen=True, kw_only=True):
    """Settings of the cache and bandwidth policy."""

    cache: Annotated[bool, Meta(description="divide the last level cache", extra=_RELOADABLE)] = True
    bandwidth: Annotated[bool, Meta(description="limit memory bandwidth", extra=_RELOADABLE)] = True
    steps: Annotated[int, Meta(ge=1, le=20, description="Levels from open to the floors", extra=_RELOADABLE)] = 4
    cache_floor_percent: Annotated[
        float, Meta(ge=1, le=100, description="BE's share of the cache at the last level", extra=_RELOADABLE)
    ] = 10.0
    bandwidth_floor_percent: Annotated[
        float, Meta(ge=1, le=100, description="BE's share of the bandwidth at the last level", extra=_RELOADABLE)
    ] = 20.0
    busy_percent: Annotated[
        float,
        Meta(ge=1, le=100, description="Memory is busy from this share of its highest traffic", extra=_RELOADABLE),
    ] = 60.0
    quiet_mebibytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="Memory with less traffic a second (MiB, each domain) is never busy",
            extra=_RELOADABLE,
        ),
    ] = 2000
    be_share_percent: Annotated[
        float,
        Meta(ge=1, le=100, description="BE with less of a domain's traffic is not to blame", extra=_RELOADABLE),
    ] = 20.0
    lost_percent: Annotated[
        float,
        Meta(ge=5, le=95, description="LS loses cache when it has this much less than usual", extra=_RELOADABLE),
    ] = 30.0
    fetch_percent: Annotated[
        float,
        Meta(ge=5, le=1000, description="... and its memory traffic is this much above the usual", extra=_RELOADABLE),
    ] = 20.0
    in_row: Annotated[int, Meta(ge=1, le=100, description="... in so many looks in a row", extra=_RELOADABLE)] = 3
    settle_seconds: Annotated[
        float, Meta(ge=0.5, le=600, description="How long a level may act before the next", extra=_RELOADABLE)
    ] = 4.0
    quiet_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="Calm before one level back", extra=_RELOADABLE)
    ] = 30.0
    min_dwell_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="A level stands at least this long", extra=_RELOADABLE)
    ] = 30.0
    max_age_seconds: Annotated[
        float, Meta(ge=1, le=600, description="An older reading of resctrl decides nothing", extra=_RELOADABLE)
    ] = 15.0
    read_seconds: Annotated[float, Meta(ge=0.5, le=60, description="Period of the looks at resctrl")] = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What is usual for LS: cache in bytes, memory traffic in bytes per second. `lost` counts looks in a row."""

    occupancy: float
    rate: float
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBandwidthState:
    """`looked_at` is the reading that was learned from last, `before` the traffic of each domain in it.

    `adopted` is what the class held when this agent began (None: nothing was adopted, or not looked yet).
    `wanted` is what was decided last, in force until something else is.
    """

    rung: RungState = field(default_factory=RungState)
    looked_at: float | None = None
    before: Mapping[int, float] = field(default_factory=dict)
    highest: Highest = field(default_factory=dict)
    usual: Usual | None = None
    began: bool = False
    adopted: Schemata | None = None
    wanted: Schemata | None = None


class CacheBandwidth:
    """See the module."""

    name = "cache_bandwidth"
    urgent = False

    def start(self, context: Context) -> CacheBandwidthState:  # noqa: ARG002 - what was there is in the first reading
        """What the class holds is adopted with the first reading."""
        return CacheBandwidthState()

    def decide(
        self,
        snapshot: NodeSnapshot,
        state: CacheBandwidthState,
        settings: CacheBandwidthSettings,
        context: Context,  # noqa: ARG002 - what the node can do with resctrl is in the reading, and may change
    ) -> tuple[Desired, CacheBandwidthState]:
        """The values of BE's class."""
        rdt = snapshot.rdt
        cannot = _cannot(rdt, settings, snapshot.topology)
        if rdt is None or cannot:
            return Desired(reason=cannot, schemata=state.wanted), state
        if not state.began:
            state = _begun(state, rdt, settings, snapshot.topology)
        stale = rdt.at is None or snapshot.at - rdt.at > settings.max_age_seconds
        if not stale:
            state = _learned(state, rdt, settings)
        verdict = _stale(snapshot, rdt) if stale else _judge(snapshot, rdt, state, settings)
        rules = RungRules(
            top=settings.steps, quiet_seconds=settings.quiet_seconds, min_dwell_seconds=settings.min_dwell_seconds
        )
        rung = advance(state.rung, verdict, snapshot.at, rules)
        wanted, limits = _values(rdt.info, rung.level, state, settings, snapshot.topology)
        state = replace(state, rung=rung, wanted=wanted, adopted=state.adopted if rung.level else None)
        return _desired(self.name, rung, wanted, f"{verdict.reason}; {limits}", settings), state


def _cannot(rdt: RdtReading | None, settings: CacheBandwidthSettings, topology: Topology | None) -> str:
    """Why nothing can be done here; empty when something can."""
    if rdt is None:
        return "resctrl was not read yet"
    if rdt.held is None and rdt.problem:
        return f"nothing can be controlled: {rdt.problem}"
    why_no_cache = "" if settings.cache and rdt.info.caches else "the cache is not divided (mount or settings)"
    why_not = _why_no_bandwidth(rdt.info, settings, topology)
    return f"{why_no_cache}; {why_not}" if why_no_cache and why_not else ""


def _why_no_bandwidth(info: RdtInfo, settings: CacheBandwidthSettings, topology: Topology | None) -> str:
    return why_no_bandwidth(info, topology) if settings.bandwidth else "memory bandwidth is left alone by the settings"


def _begun(
    state: CacheBandwidthState, rdt: RdtReading, settings: CacheBandwidthSettings, topology: Topology | None
) -> CacheBandwidthState:
    """Begin at the lowest level that gives nowhere more than what an earlier agent left in force."""
    state = replace(state, began=True)
    if rdt.held is None or no_larger(open_values(rdt.info), rdt.held):
        return state
    levels = {level: _values(rdt.info, level, state, settings, topology)[0] for level in range(1, settings.steps + 1)}
    fitting = [
        level
        for level, values in levels.items()
        if values and any(values.values.values()) and no_larger(values, rdt.held)
    ]
    level = min(fitting, default=settings.steps)
    return replace(
        state, rung=RungState(level=level, since=rdt.at, reason="adopted from before the restart"), adopted=rdt.held
    )


def _percent(level: int, steps: int, floor: float) -> float:
    """100 at level 0, `floor` at the last, even steps between."""
    return 100.0 - min(level, steps) * (100.0 - floor) / steps


def _learned(state: CacheBandwidthState, rdt: RdtReading, settings: CacheBandwidthSettings) -> CacheBandwidthState:
    """With a new reading: the highest traffic of each domain, and what is usual for LS."""
    if rdt.at == state.looked_at:
        return state
    now = _traffic(rdt)
    highest = dict(state.highest)
    for domain, rate in now.items():
        seen = min(rate, state.before.get(domain, 0.0))
        if seen > 0 and (domain in highest or state.adopted is None):
            highest[domain] = max(seen, highest.get(domain, 0.0))
    return replace(state, looked_at=rdt.at, before=now, highest=highest, usual=_usual(state, rdt, settings))


def _traffic(rdt: RdtReading) -> dict[int, float]:
    """Bytes per second of LS and BE together, in each domain where both are known."""
    if rdt.be is None or rdt.ls is None:
        return {}
    return {
        domain: mine + rate
        for domain, rate in rdt.ls.rates.items()
        if rate is not None and (mine := rdt.be.rates.get(domain)) is not None
    }


def _usual(state: CacheBandwidthState, rdt: RdtReading, settings: CacheBandwidthSettings) -> Usual | None:
    occupancy, rate, usual = rdt.ls_occupancy_bytes, rdt.ls_bandwidth_rate, state.usual
    if occupancy is None or rate is None:
        return replace(usual, lost=0) if usual else None
    if usual is None:
        return Usual(occupancy=occupancy, rate=rate)
    gone = usual.occupancy - occupancy
    lost = (
        gone > usual.occupancy * settings.lost_percent / 100
        and rate > usual.rate * (1 + settings.fetch_percent / 100)
        and rdt.be_occupancy_bytes is not None
        and rdt.be_occupancy_bytes > gone / 2
    )
    return Usual(
        occupancy=usual.occupancy + _FOLLOW * (occupancy - usual.occupancy),
        rate=usual.rate + _FOLLOW * (rate - usual.rate),
        lost=usual.lost + 1 if lost else 0,
    )


def _stale(snapshot: NodeSnapshot, rdt: RdtReading) -> Verdict:
    age = "of unknown age" if rdt.at is None else f"{snapshot.at - rdt.at:.0f} s old"
    return Verdict(needed=None, calm=False, reason=f"held: the reading of resctrl is {age}")


def _judge(
    snapshot: NodeSnapshot, rdt: RdtReading, state: CacheBandwidthState, settings: CacheBandwidthSettings
) -> Verdict:
    """See the table of the module."""
    shortage = snapshot.shortage
    if shortage is None or shortage.short is None:
        why = shortage.reason if shortage else "nobody judged whether LS is short"
        return Verdict(needed=None, calm=False, reason=f"held: {why}")
    if not snapshot.pods_of(Tier.BE):
        return Verdict(needed=0, calm=shortage.calm, reason="no BE pod is here")
    if snapshot.drill is not None and snapshot.drill.takes_bandwidth:
        return _needed(state, settings, snapshot.at, "a drill says that LS loses cache and bandwidth to BE")
    busy, where = _busy(rdt, state, settings)
    if busy is None:
        return Verdict(needed=None, calm=False, reason=f"held: {where}")
    lost = state.usual is not None and state.usual.lost >= settings.in_row
    disturbed = shortage.disturbed and _share(rdt) >= settings.be_share_percent
    if lost:
        return _needed(state, settings, snapshot.at, "LS loses cache to BE and fetches more from memory")
    if disturbed or (shortage.short and busy):
        return _needed(state, settings, snapshot.at, f"{shortage.reason}; {where}")
    if shortage.short:
        return Verdict(needed=0, calm=False, reason=f"held: LS is short, but not of memory: {where}")
    return Verdict(needed=0, calm=shortage.calm, reason=f"{shortage.reason}; {where}")


def _needed(state: CacheBandwidthState, settings: CacheBandwidthSettings, now: float, reason: str) -> Verdict:
    """Half of the levels at once, then one more each time the last has had time to act, or when calm ended."""
    level, since = state.rung.level, state.rung.since
    if level == 0:
        return Verdict(needed=-(-settings.steps // 2), calm=False, reason=reason)
    released = state.rung.quiet_since is not None
    settled = released or since is None or now - since >= settings.settle_seconds
    return Verdict(needed=level + 1 if settled else level, calm=False, reason=reason)


def _busy(rdt: RdtReading, state: CacheBandwidthState, settings: CacheBandwidthSettings) -> tuple[bool | None, str]:
    """Whether memory is busy by BE, and the figures in words; None when it is measured, but not known now."""
    if not any(name.startswith("mbm_") for name in rdt.info.monitors):
        return True, "memory traffic is not measured on this node, and taken for busy"
    if not state.before or rdt.be is None:
        return None, "the traffic of LS and BE is not known yet"
    blamed = [domain for domain in state.before if _blamed(domain, rdt.be, state, settings)]
    worst = max(blamed or state.before, key=lambda domain: state.before[domain] / state.highest.get(domain, 1.0))
    most = state.highest.get(worst)
    known = "whose limit is not known" if most is None else f"of at most {most / _MEBIBYTE:.0f} seen"
    moved, mine = state.before[worst] / _MEBIBYTE, (rdt.be.rates.get(worst) or 0.0) / _MEBIBYTE
    return bool(blamed), f"domain {worst} moves {moved:.0f} MiB/s {known}, BE {mine:.0f} of it"


def _blamed(domain: int, be: RdtGroupReading, state: CacheBandwidthState, settings: CacheBandwidthSettings) -> bool:
    """Whether this domain's memory is busy, and BE has a part in it."""
    total, most, mine = state.before[domain], state.highest.get(domain), be.rates.get(domain) or 0.0
    loaded = most is None or 100 * total >= settings.busy_percent * most
    return loaded and total >= settings.quiet_mebibytes * _MEBIBYTE and 100 * mine >= settings.be_share_percent * total


def _share(rdt: RdtReading) -> float:
    """BE's percent of all traffic; all of it where that is not measured."""
    be, ls = rdt.be_bandwidth_rate, rdt.ls_bandwidth_rate
    if be is None or ls is None:
        return 100.0
    return 100 * be / (be + ls) if be + ls > 0 else 0.0


def _values(
    info: RdtInfo, level: int, state: CacheBandwidthState, settings: CacheBandwidthSettings, topology: Topology | None
) -> tuple[Schemata | None, str]:
    """Values of the class at a level (None: open), and in words what they limit."""
    if level == 0:
        return None, "BE has all of the cache and of the bandwidth"
    values: dict[str, dict[int, int]] = {}
    told = []
    if settings.cache and info.caches:
        percent = _percent(level, settings.steps, settings.cache_floor_percent)
        values.update(cache_values(info, percent))
        told.append(f"BE has {percent:.0f} % of the cache")
    why_not = _why_no_bandwidth(info, settings, topology)
    if not why_not and info.bandwidth is not None:
        percent = _percent(level, settings.steps, settings.bandwidth_floor_percent)
        limits = bandwidth_values(info.bandwidth, percent, state.highest)
        values[BANDWIDTH] = {**_kept(info, state), **limits}
        told.append(f"{percent:.0f} % of the bandwidth" if limits else "its bandwidth's maximum is not measured yet")
    return Schemata(values=values), ", ".join([*told, why_not] if why_not else told)


def _kept(info: RdtInfo, state: CacheBandwidthState) -> dict[int, int]:
    """Absolute limits that an earlier agent left, for domains whose highest traffic this one has not seen."""
    control = info.bandwidth
    if control is None or control.unit is BandwidthUnit.PERCENT or state.adopted is None:
        return {}
    held = state.adopted.values.get(BANDWIDTH, {})
    return {domain: value for domain, value in held.items() if domain in control.domains}


def _desired(
    name: str, rung: RungState, wanted: Schemata | None, reason: str, settings: CacheBandwidthSettings
) -> Desired:
    status = status_of(
        name,
        rung,
        settings.steps,
        f"LS is calm for {settings.quiet_seconds:g} s, and one level at a time" if rung.level else "",
    )
    return Desired(reason=reason, schemata=wanted, rung=status)
