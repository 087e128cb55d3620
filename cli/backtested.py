"""What `slacktide backtest` says: one line for each model, horizon and risk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from cli.output import MISSING

if TYPE_CHECKING:
    from predictor.backtest.judge import Verdict
    from predictor.backtest.score import Figure

COLUMNS: Final = (
    "MODEL",
    "HORIZON",
    "RISK %",
    "SAVINGS %",
    "VIOLATION %",
    "SEVERITY %",
    "IF VIOLATED %",
    "WASTE %",
    "SLOTS ABOVE %",
    "GIVEBACK %",
    "DECISIONS",
)
_SHOWN: Final = (
    "savings",
    "violation",
    "severity",
    "severity_if_violated",
    "waste",
    "slot_violation",
    "giveback",
)
_WITH_INTERVAL: Final = frozenset({"savings", "violation"})


class Percent(msgspec.Struct, frozen=True):
    """Mean over nodes and its 95 % interval, in percent; null where no node has one."""

    mean: float | None
    low: float | None
    high: float | None


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One model at one horizon and risk; figures in percent, see docs/backtest.md."""

    model: str
    horizon_seconds: float
    risk_percent: float
    savings_percent: Percent
    violation_percent: Percent
    severity_percent: Percent
    severity_if_violated_percent: Percent
    waste_percent: Percent
    slot_violation_percent: Percent
    giveback_percent: Percent
    violation_p90_percent: float | None
    nodes: int
    decisions: int


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """All lines, what a person must know of the input, and where the forecasts were written."""

    results: list[Line]
    notes: list[str]
    forecasts: str | None
    forecast_rows: int | None
    plot: str | None


def line(verdict: Verdict) -> Line:
    """One verdict for output."""
    score = verdict.score
    figures = {f"{name}_percent": _percent(score.figures[name]) for name in _SHOWN}
    return Line(
        model=verdict.model,
        horizon_seconds=verdict.horizon_seconds,
        risk_percent=100 * verdict.risk,
        violation_p90_percent=None if score.violation_p90 is None else 100 * score.violation_p90,
        nodes=score.nodes,
        decisions=score.decisions,
        **figures,
    )


def cells(item: Line) -> Sequence[str]:
    """One line of the table."""
    figures = [_cell(getattr(item, f"{name}_percent"), interval=name in _WITH_INTERVAL) for name in _SHOWN]
    return (item.model, _hours(item.horizon_seconds), f"{item.risk_percent:g}", *figures, str(item.decisions))


def _percent(figure: Figure) -> Percent:
    return Percent(*(None if value is None else 100 * value for value in (figure.mean, figure.low, figure.high)))


def _cell(percent: Percent, *, interval: bool) -> str:
    if percent.mean is None:
        return MISSING
    if not interval or percent.low is None or percent.high is None:
        return f"{percent.mean:.2f}"
    return f"{percent.mean:.2f} ({percent.low:.2f} to {percent.high:.2f})"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:g}h" if seconds % 60 == 0 and seconds >= 3600 else f"{seconds / 60:g}m"
