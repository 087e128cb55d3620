"""What was read: series on one grid of slots, and what a person must know about how it was read."""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from predictor.models.base import Floats
from predictor.slots import SLOT_SECONDS
from slacktide.errors import SlacktideError

Resource = Literal["cpu", "memory"]

MOST_CELLS: Final = 400_000_000
"""Slots x series that are still held in memory: 3.2 GB."""


class BadInput(SlacktideError, ValueError):
    """Recorded usage that cannot be used; says file, row and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """How input is read.

    resource       what stands for a slot with several samples: cpu the 90th percentile, memory the highest.
    skip_bad_rows  rows (in wide files: cells) that cannot be used are dropped and counted instead of being an error.
    """

    resource: Resource = "cpu"
    skip_bad_rows: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Series on one grid.

    name         file it came from.
    slot_seconds length of a slot.
    at0          label of the first slot: epoch seconds, or seconds from the start where the input counts slots.
    usage        (slots, series) what stands for each slot, NaN is a gap.
    requested    (series,) or, where one changes, (slots, series); NaN where the input has none.
    series       (series,) names.
    node         (series,) node of each; None when the input names none.
    notes        sentences about what was merged, dropped, or looks odd.
    """

    name: str
    slot_seconds: float
    at0: float
    usage: Floats
    requested: Floats
    series: tuple[str, ...]
    node: tuple[str, ...] | None
    notes: tuple[str, ...] = ()


def judged(trace: Trace) -> Trace:
    """The trace without series that have no value at all, and with notes on what makes a forecast pointless.

    Raises BadInput when nothing is left.
    """
    known = np.asarray((~np.isnan(trace.usage)).any(axis=0))
    if not known.any():
        raise BadInput(f"{trace.name}: no row has a usage; fill the usage column with numbers")
    notes = list(trace.notes)
    if not known.all():
        empty = [name for name, has in zip(trace.series, known, strict=True) if not has]
        notes.append(f"{trace.name}: {len(empty)} series without any usage left out (first: {empty[0]})")
        trace = _kept(trace, np.flatnonzero(known))
    highest, lowest = np.nanmax(trace.usage, axis=0), np.nanmin(trace.usage, axis=0)
    flat = np.flatnonzero(highest == lowest)
    if len(flat):
        notes.append(
            f"{trace.name}: {len(flat)} series never change (first: {trace.series[flat[0]]}): nothing to forecast there"
        )
    notes += _span(trace)
    return dataclasses.replace(trace, notes=tuple(notes))


def _span(trace: Trace) -> list[str]:
    days = len(trace.usage) * trace.slot_seconds / 86400
    found = []
    if days < 2:
        found.append(f"{trace.name}: only {days * 24:.3g} hours of data: no daily pattern can be learned from them")
    if trace.slot_seconds != SLOT_SECONDS:
        found.append(
            f"{trace.name}: samples are {trace.slot_seconds:g} s apart, not {SLOT_SECONDS}: peaks inside a sample are"
            " not seen, and what was learned from finer data may not fit"
        )
    return found


def _kept(trace: Trace, columns: npt.NDArray[np.int64]) -> Trace:
    return dataclasses.replace(
        trace,
        usage=trace.usage[:, columns],
        requested=trace.requested[..., columns],
        series=tuple(trace.series[i] for i in columns),
        node=None if trace.node is None else tuple(trace.node[i] for i in columns),
    )


def usual_step(micros: npt.NDArray[np.int64]) -> int:
    """How far samples usually are apart, of all steps in microseconds; of none, a slot of the product.

    The lower quartile: gaps make steps longer, and only repeats make them shorter.
    """
    return int(np.percentile(micros, 25, method="lower")) if len(micros) else SLOT_SECONDS * 1_000_000
