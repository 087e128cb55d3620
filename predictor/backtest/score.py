"""How good forecasts were: violation, severity, savings, waste, give-back (overcommit.md, section 4).

The truth of a decision at slot t is PO, the highest use of the node in the slots t+1 to t+H. All figures are shares,
for each node first and then the mean over nodes, with a confidence interval from resampled nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor.backtest.pack import peaks
from predictor.backtest.replay import Replay, Script
from predictor.models.base import Floats, Usage

FIGURES: Final = ("savings", "violation", "severity", "severity_if_violated", "waste", "slot_violation", "giveback")
"""savings               sum(L - P) / sum L: requests that can be handed out.
violation             share of decisions with P < PO.
severity              mean of max(0, PO - P) / PO.
severity_if_violated  the same over violating decisions alone.
waste                 sum max(0, P - PO) / sum PO.
slot_violation        share of the slots ahead with more use than P.
giveback              mean of max(0, P now - P before) / L: what each decision takes back."""

_LEAST_KNOWN: Final = 0.9
"""A decision with fewer of its slots ahead measured is not scored."""
_EQUAL: Final = 1.0 - 1e-9
_RESAMPLES: Final = 2000
_INTERVAL: Final = (2.5, 97.5)


@dataclasses.dataclass(frozen=True, slots=True)
class Truth:
    """What came, and what it is measured against; (decisions, nodes) each.

    peak     PO; NaN where the decision is not scored: in the warm-up, too near the end, too much not measured.
    limit    L: requests; where they are not known, the series' own peaks over the whole timeline (an owner who sized
             right), which no forecast ever sees.
    """

    peak: Floats
    limit: Floats


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """Mean over nodes with its 95 % interval; None where no node has one."""

    mean: float | None
    low: float | None
    high: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """Figures by name (FIGURES), shares; nodes and decisions that went in, and the worst tenth's violation rate."""

    figures: Mapping[str, Figure]
    nodes: int
    decisions: int
    violation_p90: float | None


def truth(replay: Replay, script: Script, horizon_seconds: float) -> Truth:
    """What came after each decision of `script`."""
    ahead = slots_ahead(horizon_seconds, replay.slot_seconds)
    peak = np.full((len(script.slots), len(replay.nodes)), np.nan)
    for number, slot in enumerate(script.slots):
        future = replay.usage[slot + 1 : slot + 1 + ahead]
        if slot >= replay.warmup_slots and len(future) == ahead:
            known = (~np.isnan(future)).mean(axis=0) >= _LEAST_KNOWN
            peak[number, known] = np.fmax.reduce(future[:, known], axis=0)
    sized = np.bincount(replay.owner, np.nan_to_num(peaks(replay.members)), minlength=len(replay.nodes))
    return Truth(peak, np.where(np.isnan(script.limits), sized, script.limits))


def slots_ahead(horizon_seconds: float, slot_seconds: float) -> int:
    """Slots that a horizon reaches into."""
    return max(1, int(np.ceil(horizon_seconds / slot_seconds - 1e-9)))


def by_node(forecast: Floats, came: Truth, script: Script, horizon_seconds: float) -> dict[str, Floats]:
    """Each figure as (nodes,), NaN for a node without one, and `decisions`. `forecast` is (decisions, nodes).

    A forecast is cut to [0, L]; where there is none it is L.
    """
    limit = came.limit
    peak = np.where(np.isnan(forecast), limit, np.clip(forecast, 0.0, limit))
    scored = ~np.isnan(came.peak)
    actual = np.where(scored, came.peak, 0.0)
    short = np.where(scored, np.maximum(actual - peak, 0.0), 0.0)
    violated = scored & (peak < actual * _EQUAL)
    severity = _ratio(short, actual)
    decisions = scored.sum(axis=0)
    risen = np.maximum(np.diff(peak, axis=0), 0.0) * (scored[1:] & scored[:-1])
    return {
        "decisions": decisions.astype(np.float64),
        "savings": _ratio(((limit - peak) * scored).sum(axis=0), (limit * scored).sum(axis=0)),
        "violation": _ratio(violated.sum(axis=0), decisions),
        "severity": _ratio(np.nansum(severity, axis=0), decisions),
        "severity_if_violated": _ratio(np.nansum(severity * violated, axis=0), violated.sum(axis=0)),
        "waste": _ratio((np.maximum(peak - actual, 0.0) * scored).sum(axis=0), actual.sum(axis=0)),
        "slot_violation": _slot_violation(peak, scored, script, horizon_seconds),
        "giveback": _ratio(np.nansum(_ratio(risen, limit[1:]), axis=0), (scored[1:] & scored[:-1]).sum(axis=0)),
    }


def score(nodes: Sequence[Mapping[str, Floats]], seed: int = 0) -> Score:
    """Mean over all nodes of several replays."""
    joined = {name: np.concatenate([part[name] for part in nodes]) for name in ("decisions", *FIGURES)}
    rng = np.random.default_rng(seed)
    counted = joined["decisions"] > 0
    rates = joined["violation"][counted]
    return Score(
        figures={name: _figure(joined[name], rng) for name in FIGURES},
        nodes=int(counted.sum()),
        decisions=int(joined["decisions"].sum()),
        violation_p90=float(np.quantile(rates, 0.9)) if len(rates) else None,
    )


def _figure(values: Floats, rng: np.random.Generator) -> Figure:
    known = values[~np.isnan(values)]
    if not len(known):
        return Figure(None, None, None)
    picks = rng.integers(0, len(known), (_RESAMPLES, len(known)))
    low, high = np.percentile(known[picks].mean(axis=1), _INTERVAL)
    return Figure(float(known.mean()), float(low), float(high))


def _slot_violation(peak: Floats, scored: Usage, script: Script, horizon_seconds: float) -> Floats:
    ahead = slots_ahead(horizon_seconds, script.slot_seconds)
    above, slots = np.zeros(peak.shape[1]), np.zeros(peak.shape[1])
    for number in np.flatnonzero(scored.any(axis=1)):
        future = script.usage[script.slots[number] + 1 :][:ahead]
        above += (future > peak[number] / _EQUAL).sum(axis=0) * scored[number]
        slots += (~np.isnan(future)).sum(axis=0) * scored[number]
    return _ratio(above, slots)


def _ratio(part: npt.ArrayLike, whole: npt.ArrayLike) -> Floats:
    """part / whole, NaN where the whole is 0."""
    above, below = np.broadcast_arrays(np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64))
    ratio: Floats = np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)
    return ratio
