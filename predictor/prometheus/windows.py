"""Windows of use to slots. Pure.

A slot is cut into windows whose ends are `step` apart and which overlap. Only windows that lie inside the slot count
for it, so that a busy slot does not colour the next; where fewer than two fit in, all that end in the slot count, and
they reach back into the one before. What stands for a slot is the same as for samples of agents (`predictor.slots`):
the 90th percentile of the means, never between two values, of fewer than ten windows the highest. A slot of which less
than half was measured is a gap.

Tiers: LS = pods - BE - pods of tier SYSTEM; SYSTEM = whole node - pods + pods of tier SYSTEM, never below 0;
protected = LS + SYSTEM, so at least what pods use. A node whose whole is unknown has no SYSTEM and nothing protected;
one whose pods are unknown counts wholly as protected.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.prometheus.answers import Points
from predictor.samples import CAPACITY_TOLERANCE
from predictor.slots import SLOT_SECONDS

LEAST_SHARE: Final = 0.5
"""Share of a slot's windows that must be measured."""


class Use(NamedTuple):
    """Use of nodes in one unit, (nodes, windows) each, NaN = not known.

    be, system  use of the pods of these tiers; NaN = no such pods
    """

    total: Points
    pods: Points
    be: Points
    system: Points


class Tiered(NamedTuple):
    """Use of nodes by kind, (nodes, windows) each, NaN = not known."""

    ls: Points
    be: Points
    system: Points
    protected: Points


class Slots(NamedTuple):
    """What stands for slots, (nodes, slots) each, NaN = gap; `share` is the share of windows measured."""

    mean: Points
    p90: Points
    highest: Points
    share: Points


def believed(use: Use, capacity: Points) -> tuple[Use, int]:
    """`use` without windows that no machine can have had, and how many values these were.

    capacity  (nodes, windows), NaN = not known: nothing is refused then.
    """
    most = capacity * CAPACITY_TOLERANCE
    refused = 0
    kept: list[Points] = []
    bad = np.zeros(use.total.shape, dtype=bool)
    for values in use:
        with np.errstate(invalid="ignore"):
            bad |= (values > most) | (values < 0)
    for values in use:
        refused += int(np.count_nonzero(bad & ~np.isnan(values)))
        kept.append(np.where(bad, np.nan, values))
    return Use(*kept), refused


def tiered(use: Use) -> Tiered:
    """Use by kind."""
    be, others = np.nan_to_num(use.be), np.nan_to_num(use.system)
    ls = np.maximum(use.pods - be - others, 0.0)
    system = np.maximum(use.total - ls - be, others)
    protected = np.where(np.isnan(use.pods), use.total, ls + system)
    return Tiered(ls, np.where(np.isnan(use.pods), np.nan, be), system, protected)


def inside(step: int, window: int) -> npt.NDArray[np.bool_]:
    """(windows of a slot,) which of them count for it."""
    ends = np.arange(step, SLOT_SECONDS + 1, step)
    whole = ends >= window
    return whole if np.count_nonzero(whole) >= 2 else np.ones(len(ends), dtype=bool)


def to_slots(values: Points, step: int, window: int) -> Slots:
    """What stands for slots, from (nodes, windows) of whole slots."""
    each = SLOT_SECONDS // step
    cut = values.reshape(values.shape[0], values.shape[1] // each, each)[:, :, inside(step, window)]
    known = np.count_nonzero(~np.isnan(cut), axis=2)
    enough = known >= LEAST_SHARE * cut.shape[2]
    ranked = np.sort(cut, axis=2)
    place = np.maximum((9 * known + 9) // 10 - 1, 0)
    p90 = np.take_along_axis(ranked, place[:, :, None], axis=2)[:, :, 0]
    highest = np.take_along_axis(ranked, np.maximum(known - 1, 0)[:, :, None], axis=2)[:, :, 0]
    mean = np.nansum(cut, axis=2) / np.maximum(known, 1)
    gap = ~enough
    for part in (mean, p90, highest):
        part[gap] = np.nan
    return Slots(mean, p90, highest, known / cut.shape[2])


def per_window(slots: Points, each: int) -> Points:
    """(nodes, slots) as (nodes, windows): each value `each` times."""
    return np.repeat(slots, each, axis=1)
