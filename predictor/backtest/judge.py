"""Results of a run, scored: one verdict for each model, horizon and risk over all replays."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from predictor.backtest.replay import Replay
from predictor.backtest.run import Result
from predictor.backtest.score import Score, Truth, by_node, score, truth
from predictor.models.base import Floats


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """How one model did."""

    model: str
    horizon_seconds: float
    risk: float
    score: Score


def judge(replays: Sequence[Replay], results: Sequence[Result], seed: int = 0) -> list[Verdict]:
    """Verdicts in the order in which models, horizons and risks first come."""
    truths: dict[int, Truth] = {}
    parts: dict[tuple[float, str, float], list[dict[str, Floats]]] = {}
    for result in results:
        replay, horizon = replays[result.replay], result.horizon_seconds
        came = truths.get(id(result.script))
        if came is None:
            came = truths[id(result.script)] = truth(replay, result.script, horizon)
        key = (horizon, result.model, result.risk)
        parts.setdefault(key, []).append(by_node(result.peaks, came, result.script, horizon))
    return [Verdict(model, horizon, risk, score(nodes, seed)) for (horizon, model, risk), nodes in parts.items()]
