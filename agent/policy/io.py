"""Policy *io*: BE's disk I/O comes last, and is bounded while LS waits for the disk.

    always      io.weight `weight` on every BE pod, where a scheduler on this node takes weights; costs BE nothing
                that nobody else wants
    always      io.max by `read_max_bytes`, `write_max_bytes`, if set: for BE as a whole, an equal part a pod
    level 1..n  LS waits for I/O more than `ls_psi_cut` of the time while BE does I/O: io.max of each BE pod is half
                of its rate at entry, and half again each `settle_seconds`, down to `be_pod_min_bytes` a second

io.max is set on whole disks: those in `devices`, or all that the node has. A pod that was not measured at entry gets
the least. Release: a level after `quiet_seconds` below half of the cut. Where pods have no PSI (cgroup v1) it is not
known whether LS waits for I/O: weight and fixed bounds are all there is then.
Source: cgroup-v2.rst, io.max and io.weight; on v1 the executor writes the blkio files instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from msgspec import Meta

from agent.capabilities import Knob
from agent.policy.base import Context, Desired, Request, strictest
from agent.policy.rung import RungRules, RungState, Verdict, advance, status_of
from agent.snapshot import NodeSnapshot, PodSnapshot
from slacktide.settings import Settings
from slacktide.tier import Tier

TOP: Final = 8
"""Halvings; the floor is mostly reached before."""

_BYTES: Final = 1 << 50


class IoSettings(Settings, frozen=True, kw_only=True):
    """Settings of the io policy. Rates are bytes a second."""

    weight: Annotated[
        int, Meta(ge=1, le=10_000, description="io.weight of BE pods; usual is 100", extra={"reloadable": True})
    ] = 1
    ls_psi_cut: Annotated[
        float, Meta(ge=0.01, le=1, description="LS waits for I/O this share of the time", extra={"reloadable": True})
    ] = 0.2
    devices: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[0-9]{1,6}:[0-9]{1,7}$")], ...],
        Meta(description="MAJ:MIN of the disks to bound; empty: all whole disks", extra={"reloadable": True}),
    ] = ()
    read_max_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=_BYTES,
            description="BE reads at most this a second from a disk; 0: no bound",
            extra={"reloadable": True},
        ),
    ] = 0
    write_max_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=_BYTES,
            description="BE writes at most this a second to a disk; 0: no bound",
            extra={"reloadable": True},
        ),
    ] = 0
    be_pod_min_bytes: Annotated[
        int, Meta(ge=4096, le=_BYTES, description="Each BE pod may always do this a second", extra={"reloadable": True})
    ] = 1 << 20
    settle_seconds: Annotated[
        float, Meta(ge=0.5, le=600, description="How long a cut may act before the next", extra={"reloadable": True})
    ] = 3.0
    quiet_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="Calm before one level down", extra={"reloadable": True})
    ] = 10.0
    min_dwell_seconds: Annotated[
        float, Meta(ge=0, le=3600, description="A level lasts at least this long", extra={"reloadable": True})
    ] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IoState:
    """`rates` is what each pod did at entry, bytes a second by group."""

    rung: RungState = field(default_factory=RungState)
    rates: Mapping[str, int] = field(default_factory=dict)


class Io:
    """See the module."""

    name = "io"
    urgent = False
    prompt = True

    def start(self, context: Context) -> IoState:  # noqa: ARG002 - the same on every node
        """Begin open."""
        return IoState()

    def decide(
        self, snapshot: NodeSnapshot, state: IoState, settings: IoSettings, context: Context
    ) -> tuple[Desired, IoState]:
        """Weight and bounds of BE pods."""
        pods = snapshot.pods_of(Tier.BE)
        writable = context.capabilities.writable
        weights = _weights(pods, settings) if Knob.IO_WEIGHT in writable else ()
        devices = settings.devices or snapshot.disks or ()
        if Knob.IO_MAX not in writable or not devices:
            why = "io.max cannot be set on this node" if Knob.IO_MAX not in writable else "no disk is known to bound"
            said = f"{why}; {'io.weight is set' if weights else 'nor can io.weight'}"
            return Desired(requests=weights, reason=said if pods else "no BE pod is here"), IoState()
        if not snapshot.urgent:
            state = _looked(snapshot, pods, state, settings)
        bounds = tuple(_bounds(pods, state, settings, devices))
        status = status_of(
            self.name,
            state.rung,
            _top(state, settings),
            f"LS waits for I/O less than {50 * settings.ls_psi_cut:g} % of the time",
        )
        reason = state.rung.reason or ("LS does not wait for I/O" if pods else "no BE pod is here")
        return Desired(requests=weights + bounds, reason=reason, rung=status), state


def _weights(pods: Sequence[PodSnapshot], settings: IoSettings) -> tuple[Request, ...]:
    reason = f"BE's I/O comes last: weight {settings.weight}"
    return tuple(
        Request(policy=Io.name, group=pod.group, knob=Knob.IO_WEIGHT, value=settings.weight, reason=reason)
        for pod in pods
    )


def _looked(snapshot: NodeSnapshot, pods: Sequence[PodSnapshot], state: IoState, settings: IoSettings) -> IoState:
    """The state after a turn. Rates are taken at entry: later ones are what the bound lets through."""
    rules = RungRules(
        top=_top(state, settings) if state.rung.level else TOP,
        quiet_seconds=settings.quiet_seconds,
        min_dwell_seconds=settings.min_dwell_seconds,
    )
    rung = advance(state.rung, _judge(snapshot, pods, state.rung, settings), snapshot.at, rules)
    if not rung.level:
        return IoState(rung=rung)
    known = (
        state.rates if state.rung.level else {pod.group: int(pod.io_rate) for pod in pods if pod.io_rate is not None}
    )
    here = {pod.group for pod in pods}
    rates = {group: rate for group, rate in known.items() if group in here}
    return replace(state, rung=rung, rates=rates)


def _judge(snapshot: NodeSnapshot, pods: Sequence[PodSnapshot], rung: RungState, settings: IoSettings) -> Verdict:
    if not pods or not snapshot.pods_of(Tier.LS):
        return Verdict(needed=0, calm=True, reason="LS and BE are not both here")
    worst = worst_wait(snapshot)
    if worst is None:
        return Verdict(needed=None, calm=False, reason="held: it is not known whether LS waits for I/O")
    said = f"LS waits for I/O {100 * worst:.0f} % of the time"
    rates = [pod.io_rate for pod in pods if pod.io_rate is not None]
    idle = len(rates) == len(pods) and sum(rates) < settings.be_pod_min_bytes
    if worst <= settings.ls_psi_cut or (idle and not rung.level):
        calm = worst <= settings.ls_psi_cut / 2
        return Verdict(needed=0, calm=calm, reason=said if calm else f"held: {said}")
    settled = rung.since is None or not rung.level or snapshot.at - rung.since >= settings.settle_seconds
    return Verdict(needed=rung.level + 1 if settled else rung.level, calm=False, reason=said)


def worst_wait(snapshot: NodeSnapshot) -> float | None:
    """The highest share of time in which an LS pod waited for I/O; None if not known."""
    return max((pod.psi_io for pod in snapshot.pods_of(Tier.LS) if pod.psi_io is not None), default=None)


def _top(state: IoState, settings: IoSettings) -> int:
    """The level at which every pod is at its least; TOP at most."""
    most = max(state.rates.values(), default=0)
    level = 1
    while level < TOP and most >> level > settings.be_pod_min_bytes:
        level += 1
    return level


def _bounds(pods: Sequence[PodSnapshot], state: IoState, settings: IoSettings, devices: Sequence[str]) -> list[Request]:
    """io.max of each pod, the stricter of the fixed bound and that of the level."""
    found = []
    for pod in pods:
        values = []
        reason = "a fixed bound on BE's I/O"
        parts = (("rbps", settings.read_max_bytes), ("wbps", settings.write_max_bytes))
        fixed = {name: max(settings.be_pod_min_bytes, rate // len(pods)) for name, rate in parts if rate}
        if fixed:
            values.append(_lines(devices, fixed))
        if state.rung.level:
            rate = max(settings.be_pod_min_bytes, state.rates.get(pod.group, 0) >> state.rung.level)
            values.append(_lines(devices, {"rbps": rate, "wbps": rate}))
            reason = state.rung.reason
        if values:
            value = values[0] if len(values) == 1 else strictest(Knob.IO_MAX, values[0], values[1])
            found.append(Request(policy=Io.name, group=pod.group, knob=Knob.IO_MAX, value=value, reason=reason))
    return found


def _lines(devices: Sequence[str], rates: Mapping[str, int]) -> str:
    pairs = " ".join(f"{name}={rates[name]}" for name in sorted(rates))
    return "\n".join(f"{device} {pairs}" for device in sorted(set(devices)))
