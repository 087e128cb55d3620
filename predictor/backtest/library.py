"""`from predictor import forecast`: the product's forecast as a function of arrays."""

from __future__ import annotations

from typing import overload

import numpy as np
import numpy.typing as npt

from predictor.backtest.forecasts import Job, forecasts, learns
from predictor.backtest.nodes import CARRY_SECONDS
from predictor.backtest.replay import Replay, carry_forward, every_for, node_usage, script
from predictor.backtest.run import check_asked
from predictor.backtest.trace import BadInput, Resource
from predictor.models.base import Floats, Integers


@overload
def forecast(
    usage: npt.ArrayLike,
    requests: npt.ArrayLike | None = ...,
    slot_seconds: float = ...,
    horizon_seconds: float = ...,
    risk: float = ...,
    *,
    nodes: None = ...,
    model: str = ...,
    at: float | None = ...,
    resource: Resource = ...,
) -> float: ...
@overload
def forecast(
    usage: npt.ArrayLike,
    requests: npt.ArrayLike | None = ...,
    slot_seconds: float = ...,
    horizon_seconds: float = ...,
    risk: float = ...,
    *,
    nodes: npt.ArrayLike,
    model: str = ...,
    at: float | None = ...,
    resource: Resource = ...,
) -> Floats: ...
def forecast(
    usage: npt.ArrayLike,
    requests: npt.ArrayLike | None = None,
    slot_seconds: float = 300.0,
    horizon_seconds: float = 3600.0,
    risk: float = 0.01,
    *,
    nodes: npt.ArrayLike | None = None,
    model: str = "published",
    at: float | None = None,
    resource: Resource = "cpu",
) -> float | Floats:
    """The highest use of a node within the next `horizon_seconds`, exceeded with a chance of `risk`.

    usage            (slots, series) of the pods on the node, oldest first, in cores or any other unit; NaN is a gap.
    requests         (series,) in that unit, or one number for all; NaN or None: not known.
    slot_seconds     length of a slot.
    horizon_seconds  how far ahead; at least a slot, at most 7 days.
    risk             above 0, at most 0.5.
    nodes            None: all series are on one node, the answer is a float. Else (series,) number of the node that
                     each is on, counted from 0: the answer is (nodes,), and calibration is pooled over the nodes.
    model            `published` is what the product publishes: champion, calibration, fallbacks, learned by replaying
                     `usage` from its first slot with a decision each hour (each 6 hours for horizons above 6 hours),
                     the last of them after the last slot. Or a model's name, alone or with "+cal".
    at               time of the last slot (its start, in epoch seconds) where it has one.
    resource         cpu or memory: which of the shipped residuals apply.

    Peaks are cut to [0, requests of the node]. A node with too little history to know counts with its requests, NaN
    when these are not known. The answer equals that of `slacktide backtest` for the same series, nodes and last slot,
    where the slot is one of its decisions.

    Raises predictor.backtest.trace.BadInput (a ValueError) and UnknownForecaster.
    """
    values, asked, owner = _arrays(usage, requests, nodes)
    check_asked("usage", len(values), slot_seconds, horizon_seconds, risk)
    members = carry_forward(values, max(1, round(CARRY_SECONDS / slot_seconds)))
    count = int(owner.max()) + 1
    last = len(values) - 1
    replay = Replay(
        name="usage",
        slot_seconds=slot_seconds,
        at0=(0.0 if at is None else at) - (last if at is not None else 0) * slot_seconds,
        nodes=tuple(f"{number:09d}" for number in range(count)),
        usage=node_usage(members, owner, count),
        members=members,
        owner=owner,
        requested=asked,
    )
    step = replay.slots_of(every_for(horizon_seconds))
    made = script(replay, range(last % step if learns(model) else last, last + 1, step))
    peaks = forecasts(Job(made, model, horizon_seconds, risk, resource))[-1]
    return peaks if nodes is not None else float(peaks[0])


def _arrays(
    usage: npt.ArrayLike, requests: npt.ArrayLike | None, nodes: npt.ArrayLike | None
) -> tuple[Floats, Floats, Integers]:
    """Usage (slots, series), requests (series,) and node of each series (series,). Raises BadInput."""
    values = np.asarray(usage, dtype=np.float64)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or not values.size:
        raise BadInput(f"usage has shape {values.shape}: give (slots, series), at least one of each")
    wrong = np.argwhere(np.isinf(values) | (values < 0))
    if len(wrong):
        slot, series = (int(index) for index in wrong[0])
        raise BadInput(
            f"usage[{slot}, {series}] is {values[slot, series]:g} ({len(wrong)} such values): give finite values of at"
            " least 0, NaN where nothing was measured"
        )
    series = values.shape[1]
    asked = np.full(series, np.nan) if requests is None else np.asarray(requests, dtype=np.float64)
    if asked.ndim == 0:
        asked = np.full(series, float(asked))
    if asked.shape != (series,) or np.any(asked < 0) or np.any(np.isinf(asked)):
        raise BadInput(f"requests have shape {asked.shape}: give ({series},) finite values of at least 0, or NaN")
    owner = np.zeros(series, dtype=np.int64) if nodes is None else np.asarray(nodes)
    if owner.shape != (series,) or owner.dtype.kind not in "iu" or owner.min() < 0:
        raise BadInput(f"nodes have shape {owner.shape}: give ({series},) whole numbers, 0 for the first node")
    return values, asked, owner.astype(np.int64)
