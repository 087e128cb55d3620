"""What each rung looks at, in numbers: the figure of now and the marks at which the rung is entered and opens. Pure.

The rules are the policies' own (`agent.policy`); a test holds both together. What a rung sees in its own history (cache
that LS lost, cycles per instruction, a gap that is acted on) stands in its reason and not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from agent.policy.close import MILDER
from agent.policy.evict import EvictSettings
from agent.policy.gaps import available_bytes, be_limit, total_of
from agent.policy.io import worst_wait
from agent.policy.limit import protected_use
from agent.policy.memory import ls_waits
from agent.policy.pids import PidsSettings
from agent.policy.victims import cpu_request
from agent.settings import AgentSettings
from agent.snapshot import NodeSnapshot
from slacktide.explaining import Signal
from slacktide.tier import Tier

_USE: Final = "LS and SYSTEM use of the node's CPU"
_AVAILABLE: Final = "memory that is available"
_PERCENT: Final = "%"


def signals(name: str, snapshot: NodeSnapshot, settings: AgentSettings) -> tuple[Signal, ...]:
    """Those of the rung of that name; none for a policy that needs none."""
    found = _BY_RUNG.get(name)
    return () if found is None else found(snapshot, settings)


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else 100 * part / whole


def _used(snapshot: NodeSnapshot) -> float | None:
    return _share(protected_use(snapshot), snapshot.capacity.cpu_millis)


def _available(snapshot: NodeSnapshot) -> float | None:
    return _share(available_bytes(snapshot), snapshot.capacity.memory_bytes)


def _memory(snapshot: NodeSnapshot, enters: float, opens: float | None = None, lasts: float = 0.0) -> Signal:
    return Signal(
        what=_AVAILABLE,
        now=_available(snapshot),
        unit=_PERCENT,
        enters=enters,
        opens=opens,
        above=False,
        lasts_seconds=lasts,
    )


def _short(snapshot: NodeSnapshot, settings: AgentSettings, lasts: float = 0.0) -> tuple[Signal, ...]:
    """Whether LS is short of CPU: `agent.policy.shortage`, without CPI."""
    rules, pressure, busy = settings.shortage, snapshot.pressure, snapshot.node_busy_ratio
    kind = None if pressure is None else pressure.kind
    if kind == "drill":
        # No measurement: it counts as short, whatever the cuts are.
        return (Signal(what="a drill raises LS pressure", now=1, enters=1, opens=1, lasts_seconds=lasts),)
    cut = rules.psi_cut if kind == "psi" else rules.run_delay_cut
    waits = Signal(
        what=f"LS waits for CPU beyond what it makes itself{'' if kind is None else f' ({kind})'}",
        now=None if pressure is None else pressure.excess,
        unit="of the time" if kind == "psi" else "s per s run",
        enters=cut,
        opens=rules.release_ratio * cut,
        lasts_seconds=lasts,
    )
    busy_now = None if busy is None else 100 * busy
    return waits, Signal(what="CPUs are busy", now=busy_now, unit=_PERCENT, enters=rules.busy_percent, joint=True)


def _burst(snapshot: NodeSnapshot, settings: AgentSettings) -> tuple[Signal, ...]:
    own = settings.burst
    full = Signal(
        what=_USE,
        now=_used(snapshot),
        unit=_PERCENT,
        enters=own.overload_percent,
        opens=own.overload_percent - own.hold_percent,
    )
    return (full, *_short(snapshot, settings))


def _suppress(snapshot: NodeSnapshot, settings: AgentSettings) -> tuple[Signal, ...]:
    own = settings.suppress
    full = Signal(
        what=_USE,
        now=_used(snapshot),
        unit=_PERCENT,
        enters=own.engage_percent,
        opens=own.engage_percent - own.hold_percent,
    )
    return full, _memory(snapshot, own.memory_low_percent, own.memory_low_percent)


def _contention(snapshot: NodeSnapshot, settings: AgentSettings) -> tuple[Signal, ...]:
    return _short(snapshot, settings)


def _held_memory(snapshot: NodeSnapshot, settings: AgentSettings) -> tuple[Signal, ...]:
    own, waits = settings.memory, ls_waits(snapshot)
    return (
        _memory(snapshot, own.high_percent, own.high_percent + own.hold_percent),
        _memory(snapshot, own.reclaim_percent, own.reclaim_percent + own.hold_percent),
        Signal(
            what=f"LS waits for memory, with less than {own.psi_available_percent:g} % available",
            now=None if waits is None else 100 * waits,
            unit="% of the time",
            enters=100 * own.ls_psi_cut,
            opens=50 * own.ls_psi_cut,
        ),
    )


def _io(snapshot: NodeSnapshot, settings: AgentSettings) -> tuple[Signal, ...]:
    waits, cut = worst_wait(snapshot), settings.io.ls_psi_cut
    now = None if waits is None else 100 * waits
    return (Signal(what="LS waits for I/O", now=now, unit="% of the time", enters=100 * cut, opens=50 * cut),)


def _pids(snapshot: NodeSnapshot, settings: AgentSettings) -> tuple[Signal, ...]:
    own: PidsSettings = settings.pids
    be = total_of(pod.pids for pod in snapshot.pods_of(Tier.BE))
    share = None if snapshot.tasks_max is None else snapshot.tasks_max * own.be_percent / 100
    return (
        Signal(
            what="BE has of its share of the node's tasks",
            now=_share(be, share),
            unit=_PERCENT,
            enters=own.tighten_percent,
            opens=own.tighten_percent - own.hold_percent,
        ),
        Signal(
            what="tasks of the node, of those that it may have",
            now=_share(snapshot.tasks, snapshot.tasks_max),
            unit=_PERCENT,
            enters=own.node_percent,
            opens=own.node_percent - own.hold_percent,
        ),
    )


def _close(snapshot: NodeSnapshot, settings: AgentSettings) -> tuple[Signal, ...]:
    own = settings.close
    ends = tuple(
        Signal(
            what=f"level of {name}",
            now=rung.level,
            unit=f"of {rung.top}",
            enters=rung.top,
            opens=rung.top,
            lasts_seconds=own.exhausted_seconds,
        )
        for name in MILDER
        if (rung := snapshot.ladder.get(name)) is not None
    )
    memory = _memory(snapshot, own.memory_percent, own.memory_percent + own.memory_hold_percent)
    return (*ends, *_short(snapshot, settings, own.short_seconds), memory)


def _evict(snapshot: NodeSnapshot, settings: AgentSettings) -> tuple[Signal, ...]:
    own: EvictSettings = settings.evict
    rung = snapshot.ladder.get("memory")
    patience = own.memory_settle_seconds if rung is None or rung.exhausted else own.memory_patience_seconds
    living = [pod for pod in snapshot.pods_of(Tier.BE) if not pod.identity.terminating]
    found = [
        _memory(snapshot, own.memory_percent, own.memory_target_percent, patience),
        Signal(
            what="BE may use of the CPU that it asked for",
            now=_share(be_limit(snapshot), total_of(cpu_request(pod) for pod in living)),
            unit=_PERCENT,
            enters=own.satisfaction_lower_percent,
            opens=own.satisfaction_upper_percent,
            above=False,
            lasts_seconds=own.satisfaction_seconds,
        ),
        Signal(
            what="BE uses of what it may use",
            now=_share(snapshot.of(Tier.BE).cpu_millis, be_limit(snapshot)),
            unit=_PERCENT,
            enters=own.starved_use_percent,
            joint=True,
        ),
        *_short(snapshot, settings, own.pressure_settle_seconds),
    ]
    cut = snapshot.ladder.get("contention") or snapshot.ladder.get("suppress")
    if cut is not None:
        found.append(
            Signal(what=f"level of {cut.name}", now=cut.level, unit=f"of {cut.top}", enters=cut.top, joint=True)
        )
    return tuple(found)


def _kill(snapshot: NodeSnapshot, settings: AgentSettings) -> tuple[Signal, ...]:
    own, evictor = settings.kill, snapshot.evictor
    full = snapshot.node_psi_memory_full
    return (
        _memory(snapshot, own.emergency_percent, own.emergency_percent, own.emergency_seconds),
        _memory(snapshot, own.stalled_percent, own.stalled_percent, own.emergency_seconds),
        Signal(
            what="all wait for memory",
            now=None if full is None else 100 * full,
            unit="% of the time",
            enters=100 * own.emergency_psi,
            joint=True,
        ),
        Signal(
            what="the API has not answered",
            now=None if evictor is None else evictor.api_away_seconds or 0.0,
            unit="s",
            enters=own.api_away_seconds,
        ),
        *_short(snapshot, settings, own.hurt_seconds),
    )


_BY_RUNG: Final[Mapping[str, Callable[[NodeSnapshot, AgentSettings], tuple[Signal, ...]]]] = MappingProxyType(
    {
        "burst": _burst,
        "suppress": _suppress,
        "contention": _contention,
        "cache_bandwidth": _contention,
        "memory": _held_memory,
        "io": _io,
        "pids": _pids,
        "close": _close,
        "evict": _evict,
        "kill": _kill,
    }
)
