"""A picture of a back-test: savings over violations for each model, and one node with its forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from predictor.backtest.judge import Verdict
from predictor.backtest.replay import Replay
from predictor.backtest.run import Result
from predictor.backtest.score import truth
from predictor.backtest.write import WriteError

_SHOWN_DECISIONS: Final = 14 * 24
_SIZE_INCHES: Final = (14.0, 6.0)


def draw(replays: Sequence[Replay], results: Sequence[Result], verdicts: Sequence[Verdict], path: str) -> None:
    """Write the picture as PNG. Raises WriteError, also when matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise WriteError("--plot needs matplotlib: install slacktide[backtest]") from error
    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        left, right = figure.subplots(1, 2)
        _models(left, verdicts)
        _node(right, replays, results)
        try:
            figure.savefig(path, format="png", dpi=120)
        except OSError as error:
            raise WriteError(f"{path}: cannot be written: {error}") from error


def _models(axes: Any, verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        violation, savings = verdict.score.figures["violation"], verdict.score.figures["savings"]
        if violation.mean is None or savings.mean is None:
            continue
        x, y = 100 * violation.mean, 100 * savings.mean
        spread = [
            [
                [max(0.0, 100 * (f.mean or 0) - 100 * (f.low or 0))],
                [max(0.0, 100 * (f.high or 0) - 100 * (f.mean or 0))],
            ]
            for f in (violation, savings)
        ]
        axes.errorbar(x, y, xerr=spread[0], yerr=spread[1], fmt="o", capsize=2)
        axes.annotate(_label(verdict), (x, y), xytext=(4, 4), textcoords="offset points")
    for risk in sorted({verdict.risk for verdict in verdicts}):
        axes.axvline(100 * risk, color="grey", linestyle=":", linewidth=1)
    axes.set_xlabel("violations, % of decisions (dotted: asked)")
    axes.set_ylabel("savings, % of requests")
    axes.set_title("models, mean over nodes with 95 % interval")
    axes.grid(alpha=0.3)


def _label(verdict: Verdict) -> str:
    return f"{verdict.model}, {verdict.horizon_seconds / 3600:g} h, {100 * verdict.risk:g} %"


def _node(axes: Any, replays: Sequence[Replay], results: Sequence[Result]) -> None:
    """The node of median use in the first replay, over its last decisions, with the models of the first horizon."""
    if not results:
        return
    first = results[0]
    replay, script = replays[first.replay], first.script
    mean = np.nan_to_num(np.nanmean(np.where(np.isnan(replay.usage), 0.0, replay.usage), axis=0))
    node = int(np.argsort(mean)[len(mean) // 2])
    shown = slice(max(0, len(script.slots) - _SHOWN_DECISIONS), None)
    hours = (script.slots[shown] * script.slot_seconds) / 3600
    came = truth(replay, script, first.horizon_seconds)
    axes.plot(hours, came.peak[shown, node], color="black", linewidth=1, label="peak that came")
    axes.plot(hours, came.limit[shown, node], color="grey", linewidth=1, linestyle="--", label="requests")
    for result in results:
        if result.script is script and result.risk == first.risk:
            axes.plot(hours, result.peaks[shown, node], linewidth=1, label=result.model)
    axes.set_xlabel("hours since the start")
    axes.set_ylabel("unit of the usage")
    axes.set_title(f"{replay.nodes[node]}, {first.horizon_seconds / 3600:g} h ahead")
    axes.legend(loc="upper left", fontsize=7)
    axes.grid(alpha=0.3)
