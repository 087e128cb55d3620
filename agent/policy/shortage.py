"""Whether LS is short of CPU because of BE: one judgement for all policies. Pure.

The first row that holds decides:

    drill                    a drill raises the signal                                    short
    CPI                      an LS pod needs `cpi_percent` more cycles an instruction     short
                             than its own median, and more than its usual spread,
                             in `cpi_readings` readings in a row
    no pressure signal       neither PSI nor run delay was read                           not known
    excess above the cut     pressure beyond what LS makes itself (`agent.pressure`),     short
                             and the CPUs at least `busy_percent` busy
    excess above the cut     and CPUs idle: LS waits for something that BE does not hold  held
    excess, or any CPI       above `release_ratio` of the cut; a pod's last reading high  held
    else                                                                                  calm

CPI shows what no wait shows: LS runs, but a neighbour evicts its cache or fills its memory bus. A pod is compared
with nothing but itself, since the right CPI of a program is known to nobody. The median over a long window follows
a program that changes for good; until then it is judged short, for at most half the window. The readings live in
`CpiBaselines`, which the caller keeps and gives to `learned` once a turn. Readings of a pod that hardly runs are
noise and are left out. Sources: CPI2 (Zhang et al., EuroSys 2013): outliers in a row, pods below a quarter of a
CPU left out; koordinator 1470, 1482, 1489 (skewed CPI) for "several readings".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Final

from msgspec import Meta

from agent.pressure import Pressure, Shortage
from agent.snapshot import NodeSnapshot
from slacktide.settings import Settings
from slacktide.tier import Tier

SPREADS: Final = 3.0
"""A deviation is beyond this many standard deviations of the pod's own readings."""

_SIGMA: Final = 1.4826
"""Standard deviation of a normal distribution per median absolute deviation."""


class ShortageSettings(Settings, frozen=True, kw_only=True):
    """When LS counts as short of CPU."""

    run_delay_cut: Annotated[
        float,
        Meta(
            ge=0.05,
            le=100,
            description="LS is short from this much run delay per second of LS CPU time, beyond LS alone",
            extra={"reloadable": True},
        ),
    ] = 1.0
    psi_cut: Annotated[
        float,
        Meta(ge=0.01, le=1, description="LS is short from this PSI share, beyond LS alone", extra={"reloadable": True}),
    ] = 0.3
    busy_percent: Annotated[
        float,
        Meta(
            ge=0,
            le=100,
            description="With the CPUs less busy than this BE is not what LS waits for",
            extra={"reloadable": True},
        ),
    ] = 75.0
    release_ratio: Annotated[
        float, Meta(ge=0, le=1, description="Share of the cut below which pressure is calm", extra={"reloadable": True})
    ] = 0.7
    cpi_percent: Annotated[
        float,
        Meta(
            ge=5,
            le=1000,
            description="An LS pod is disturbed from this many percent above its own median CPI",
            extra={"reloadable": True},
        ),
    ] = 30.0
    cpi_readings: Annotated[
        int, Meta(ge=1, le=100, description="Readings in a row that make a deviation", extra={"reloadable": True})
    ] = 3
    cpi_window_readings: Annotated[
        int, Meta(ge=5, le=10_000, description="Readings that the median is taken over", extra={"reloadable": True})
    ] = 60
    cpi_learn_readings: Annotated[
        int, Meta(ge=3, le=10_000, description="Readings before a pod is judged", extra={"reloadable": True})
    ] = 10
    cpi_min_millis: Annotated[
        int,
        Meta(ge=0, le=100_000, description="Pods that use less are not judged by CPI", extra={"reloadable": True}),
    ] = 250
    cpi_age_seconds: Annotated[
        float,
        Meta(ge=1, le=3600, description="An older CPI reading says nothing any more", extra={"reloadable": True}),
    ] = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Readings of one pod, oldest first, and when the last came.

    `usual` is their median and `bar` the CPI beyond which a reading deviates, both None while there are too few;
    `above` counts the readings beyond it in a row, up to the last one.
    """

    readings: tuple[float, ...]
    at: float
    above: int = 0
    usual: float | None = None
    bar: float | None = None


CpiBaselines = Mapping[str, Baseline]
"""By pod UID."""

NOTHING_LEARNED: Final[CpiBaselines] = {}


def shortage(snapshot: NodeSnapshot, settings: ShortageSettings, baselines: CpiBaselines = NOTHING_LEARNED) -> Shortage:
    """The judgement; see the module. Readings of this snapshot must be in `baselines` already."""
    return judge(snapshot.pressure, snapshot.node_busy_ratio, snapshot, settings, baselines)


def judge(
    pressure: Pressure | None,
    busy: float | None,
    snapshot: NodeSnapshot,
    settings: ShortageSettings,
    baselines: CpiBaselines = NOTHING_LEARNED,
) -> Shortage:
    """The judgement with pressure and busy share of the node as read since the snapshot."""
    if pressure is not None and pressure.kind == "drill":
        return Shortage(short=True, calm=False, reason="a drill raises LS pressure")
    disturbed = _disturbed(snapshot, settings, baselines) if baselines else ""
    if disturbed:
        return Shortage(short=True, calm=False, reason=disturbed, disturbed=True)
    if pressure is None or not math.isfinite(pressure.excess):
        return Shortage(short=None, calm=False, reason="no LS pressure signal")
    return _waiting(busy, pressure, settings, _suspects(snapshot, settings, baselines))


def learned(baselines: CpiBaselines, snapshot: NodeSnapshot, settings: ShortageSettings) -> CpiBaselines:
    """The baselines with the new readings of this snapshot, for a turn; pods that are gone are forgotten.

    A reading that equals the last one is that one, still standing in the snapshot.
    """
    if not baselines and all(pod.cpi is None for pod in snapshot.pods):
        return baselines
    return {
        pod.identity.uid: baseline
        for pod in snapshot.pods_of(Tier.LS)
        if (baseline := _next(baselines.get(pod.identity.uid), pod.cpi, pod.usage.cpu_millis, snapshot.at, settings))
    }


def _next(
    old: Baseline | None, cpi: float | None, use_millis: int | None, at: float, settings: ShortageSettings
) -> Baseline | None:
    if cpi is None or not math.isfinite(cpi) or cpi <= 0 or use_millis is None or use_millis < settings.cpi_min_millis:
        return old
    if old is None:
        return Baseline(readings=(cpi,), at=at)
    if cpi == old.readings[-1]:
        return old
    readings = (*old.readings, cpi)[-settings.cpi_window_readings :]
    above = old.above + 1 if old.bar is not None and cpi > old.bar else 0
    fresh = replace(old, readings=readings, at=at, above=above)
    return _judged(fresh, settings) if len(readings) >= settings.cpi_learn_readings else fresh


def _judged(baseline: Baseline, settings: ShortageSettings) -> Baseline:
    usual = median(baseline.readings)
    spread = _SIGMA * median(abs(reading - usual) for reading in baseline.readings)
    return replace(baseline, usual=usual, bar=usual + max(usual * settings.cpi_percent / 100, SPREADS * spread))


def _live(
    snapshot: NodeSnapshot, settings: ShortageSettings, baselines: CpiBaselines
) -> Iterable[tuple[str, Baseline]]:
    """Baselines whose last reading was high and is not too old."""
    return (
        (uid, baseline)
        for uid, baseline in baselines.items()
        if baseline.above and snapshot.at - baseline.at <= settings.cpi_age_seconds
    )


def _disturbed(snapshot: NodeSnapshot, settings: ShortageSettings, baselines: CpiBaselines) -> str:
    """In words which LS pod deviates from its own CPI; empty when none does."""
    for uid, baseline in _live(snapshot, settings, baselines):
        if baseline.above >= settings.cpi_readings:
            label = next((pod.label for pod in snapshot.pods if pod.identity.uid == uid), uid)
            return (
                f"{label} needs {baseline.readings[-1]:.2f} cycles an instruction, usually {baseline.usual:.2f}, "
                f"{baseline.above} readings in a row"
            )
    return ""


def _suspects(snapshot: NodeSnapshot, settings: ShortageSettings, baselines: CpiBaselines) -> bool:
    return any(True for _ in _live(snapshot, settings, baselines))


def _waiting(busy: float | None, pressure: Pressure, settings: ShortageSettings, suspect: bool) -> Shortage:
    """The judgement on a pressure that was measured."""
    cut = settings.psi_cut if pressure.kind == "psi" else settings.run_delay_cut
    if pressure.excess > cut:
        if busy is not None and 100 * busy < settings.busy_percent:
            return Shortage(short=False, calm=False, reason=f"LS waits, but the CPUs are only {100 * busy:.0f} % busy")
        reason = (
            f"LS waits for CPU: {pressure.kind} {pressure.value:.2f}, alone it would be {pressure.natural:.2f}, "
            f"cut at {cut:g} more"
        )
        return Shortage(short=True, calm=False, reason=reason)
    if suspect:
        return Shortage(short=False, calm=False, reason="the last CPI of an LS pod was high")
    if pressure.excess > settings.release_ratio * cut:
        return Shortage(short=False, calm=False, reason=f"LS pressure {pressure.value:.2f} is near the cut")
    return Shortage(short=False, calm=True, reason="LS is calm")
