"""The forecast of each node as columns, for every plugin that judges by it; read once for each change of a node.

What is missing or unreadable gets no trust, and an amount that the forecast does not know is NaN (or 0 of what may be
sold), so that no data never counts as room.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from scheduler_plugins.framework.node_info import NodeInfo
from scheduler_plugins.framework.snapshot import Column, Floats, Indices, Snapshot
from slacktide import forecast as wire
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node

MISSING: Final = "missing"
"""Stands for the forecast of a node without the annotation."""


class _Known(NamedTuple):
    """The newest text of a node, what it says, and what column readers made of it."""

    text: str
    forecast: wire.Forecast | str
    derived: dict[Callable[[wire.Forecast], float | int | bool | None], float | int | bool | None]


_AT: Final = "Forecast/at"
_TTL: Final = "Forecast/ttl"
_MOST_NODES: Final = 100_000
_by_node: dict[str, _Known] = {}


def _read(text: str) -> wire.Forecast | str:
    try:
        return wire.decode(text)
    except wire.ForecastError as error:
        return str(error)


_decode = functools.lru_cache(maxsize=256)(_read)


def _text_of(node: Node | None) -> str | None:
    return node.metadata.annotations.get(FORECAST_ANNOTATION) if node is not None else None


def forecast_of(node: Node | None) -> wire.Forecast | str:
    """The forecast, MISSING, or what is wrong with the text; for hints, which compare an old and a new version."""
    text = _text_of(node)
    return MISSING if text is None else _decode(text)


def latest_of(info: NodeInfo) -> wire.Forecast | str:
    """The same of a node in the snapshot: decoded once however often pods come and go there."""
    known = _known(info)
    return MISSING if known is None else known.forecast


def _known(info: NodeInfo) -> _Known | None:
    text = _text_of(info.node)
    if text is None:
        return None
    known = _by_node.get(info.name)
    if known is None or known.text != text:
        if len(_by_node) >= _MOST_NODES:
            _by_node.clear()
        known = _by_node[info.name] = _Known(text, _read(text), {})
    return known


def reader(
    read: Callable[[wire.Forecast], float | int | bool | None], absent: float = 0
) -> Callable[[NodeInfo], float | int | bool]:
    """Column reader: `absent` where there is no forecast or it does not say. `read` must be pure and made once."""

    def column(info: NodeInfo) -> float | int | bool:
        known = _known(info)
        if known is None or isinstance(known.forecast, str):
            return absent
        if read not in known.derived:
            known.derived[read] = read(known.forecast)
        value = known.derived[read]
        return absent if value is None else value

    return column


def share_of(now: int | None, capacity: int | None) -> float | None:
    """`now` as a share of `capacity`; None where either is not known."""
    return None if now is None or not capacity or capacity < 0 else max(0, now) / capacity


def whole_seconds(wall_seconds: Callable[[], float]) -> Callable[[], float]:
    """The clock in steps of a second, by which forecasts age: within a step pods that are alike are judged alike.

    Ahead of the time rather than behind it, so that no forecast counts for longer than it is good for.
    """
    return lambda: float(math.ceil(wall_seconds()))


AGE_COLUMNS: Final = (
    Column(_AT, "float64", reader(lambda forecast: forecast.at), of_object=True),
    Column(_TTL, "float64", reader(lambda forecast: forecast.ttl_seconds), of_object=True),
)
"""What `trust` needs."""


def trust_in(snapshot: Snapshot, row: int, now: float) -> float:
    """`trust` of one node; a few nodes are asked about in most cycles, and arrays of one number are slow."""
    ttl: float = snapshot.column(_TTL).item(row)
    age: float = now - snapshot.column(_AT).item(row)
    if age < -wire.MAX_CLOCK_SKEW_SECONDS or ttl <= 0:
        return 0.0
    over = age / ttl - 1.0
    return 1.0 if over <= 0 else max(0.0, 1.0 - over / (wire.AGEING_TTLS - 1.0))


def trust(snapshot: Snapshot, rows: Indices | slice, now: float) -> Floats:
    """`slacktide.forecast.trust` of all rows at once, 0 without a forecast that can be read."""
    ttl = snapshot.column(_TTL)[rows]
    age = now - snapshot.column(_AT)[rows]
    if ((age <= ttl) & (age >= -wire.MAX_CLOCK_SKEW_SECONDS)).all():
        return np.ones(len(age))
    known = ttl > 0
    over = age / np.where(known, ttl, 1.0) - 1.0
    share = np.where(over <= 0, 1.0, np.maximum(0.0, 1.0 - over / (wire.AGEING_TTLS - 1.0)))
    trusted: Floats = np.where(known & (age >= -wire.MAX_CLOCK_SKEW_SECONDS), share, 0.0)
    return trusted
