"""How far peaks turned out above what a model had said, as counts in fixed fine bins.

A residual is (peak - forecast) / S, S being the highest use of the node's last seven days, so that nodes of all sizes
count alike. The bins are the same everywhere: sketches of several days, groups and machines add up, in any order, to
what one sketch of all would hold, and one takes kilobytes however many residuals went in.

Bins have edges a sinh(b i): 0.001 wide around zero, where calibration happens, and 0.4 % of the value far out.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from predictor.models.base import Floats

LOWEST: Final = -2.0
HIGHEST: Final = 1000.0

_FINE: Final = 0.25
_STEP: Final = 0.004
_BELOW: Final = math.ceil(math.asinh(-LOWEST / _FINE) / _STEP)
_ABOVE: Final = math.ceil(math.asinh(HIGHEST / _FINE) / _STEP)

EDGES: Final[Floats] = _FINE * np.sinh(_STEP * np.arange(-_BELOW, _ABOVE + 1))
"""Upper edge of each bin, rising. A bin holds what is above the edge before it, up to its own edge; the first also
holds all that is lower, the last all that is higher."""


class Packed(msgspec.Struct, frozen=True):
    """A sketch as it is stored: the filled bins from `first` on, counted from the lowest bin."""

    first: int
    counts: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Sketch:
    """Weighted counts of residuals, (bins,) float64. Immutable: adding makes a new one."""

    counts: Floats

    @classmethod
    def empty(cls) -> Sketch:
        """Of no residual."""
        return cls(np.zeros(len(EDGES)))

    @classmethod
    def of(cls, residuals: npt.NDArray[np.floating[Any]], weight: float = 1.0) -> Sketch:
        """Of residuals of any shape, each with `weight`; NaN is left out."""
        flat = np.asarray(residuals, dtype=np.float64).ravel()
        known = flat[~np.isnan(flat)]
        bins = np.minimum(np.searchsorted(EDGES, known, side="left"), len(EDGES) - 1)
        return cls(np.bincount(bins, minlength=len(EDGES)).astype(np.float64) * weight)

    @property
    def total(self) -> float:
        """Weight of all residuals."""
        return float(self.counts.sum())

    def __add__(self, other: Sketch) -> Sketch:
        return Sketch(self.counts + other.counts)

    def scaled(self, factor: float) -> Sketch:
        """The same shape with `factor` times the weight."""
        return Sketch(self.counts * factor)

    def weighing(self, weight: float) -> Sketch:
        """The same shape with `weight` in all; an empty sketch stays empty."""
        total = self.total
        return self.scaled(weight / total) if total > 0 else self

    def above(self, residual: float) -> float:
        """Weight of the residuals in bins that lie above `residual` in full: what a shift by it would not cover."""
        return float(self.counts[np.searchsorted(EDGES, residual, side="left") + 1 :].sum())

    def quantile(self, risk: float, samples: float | None = None) -> float:
        """The smallest edge that leaves at most `risk` of the weight above it; NaN when there is too little to tell.

        `samples` is how many independent residuals the weight stands for (their number by default, one a weight of
        1). The next residual is one more of its kind, so the rank is that of (n + 1): with n residuals nothing can be
        said about a risk below 1 / (n + 1) (split conformal prediction; overcommit.md section 4).
        """
        total = self.total
        count = total if samples is None else samples
        if total <= 0 or count <= 0:
            return math.nan
        wanted = (1.0 - risk) * total * (1.0 + 1.0 / count)
        reached = np.cumsum(self.counts)
        # Sums of many weights are inexact in their last digits; without slack an exact rank would move up by one bin.
        slack = 1e-9 * total
        if wanted > total + slack:
            return math.nan
        return float(EDGES[np.searchsorted(reached, wanted - slack, side="left")])

    def pack(self) -> Packed:
        """What is stored."""
        filled = np.flatnonzero(self.counts)
        if not len(filled):
            return Packed(0, ())
        first, last = int(filled[0]), int(filled[-1])
        return Packed(first, tuple(self.counts[first : last + 1].tolist()))

    @classmethod
    def unpack(cls, packed: Packed) -> Sketch:
        """What was stored. Raises ValueError for what no sketch packs."""
        counts = np.zeros(len(EDGES))
        values = np.asarray(packed.counts, dtype=np.float64)
        if packed.first < 0 or packed.first + len(values) > len(counts):
            raise ValueError(f"a sketch has {len(counts)} bins, not one that begins at {packed.first}")
        if not np.all(np.isfinite(values)) or np.any(values < 0):
            raise ValueError("counts of a sketch are numbers from 0 on")
        counts[packed.first : packed.first + len(values)] = values
        return cls(counts)
