"""Boosted regression trees, evaluated in numpy: many rows, no compiled library.

A tree is kept as its splits. Each split that sends a row to the right rules out the leaves below its left side; the
leaf that a row ends in is the first that nothing ruled out. So all rows pass a split in one comparison, in any order.
Source of the idea: QuickScorer (Lucchese et al., SIGIR 2015). Fitting is predictor.training's part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from predictor.models.base import Floats

MOST_LEAVES: Final = 32

_BLOCK: Final = 4096
"""Rows worked on at a time, so that they stay in the processor's cache."""
_FEW_ROWS: Final = 256
"""Up to so many rows, all splits are asked at once: the calls cost more than the work."""
_MULTIPLIER: Final = np.uint32(0x077CB531)
"""A de Bruijn sequence: times a power of two, its top five bits differ for each power."""
_SHIFT: Final = np.uint32(27)
_PLACES: Final = np.argsort([(0x077CB531 << place & 0xFFFFFFFF) >> 27 for place in range(MOST_LEAVES)])


@dataclasses.dataclass(frozen=True, slots=True)
class Trees:
    """A sum of trees.

    feature    (splits,) column that the split asks.
    threshold  (splits,) float32: a value up to it goes left.
    nan_left   (splits,) whether an unknown value goes left.
    left       (splits,) uint32: the leaves below its left side, bit 0 the leftmost leaf of the tree.
    first      (trees + 1,) first split of each tree.
    value      (trees, MOST_LEAVES) float32: what each leaf adds.
    start      added to the sum.
    """

    feature: npt.NDArray[np.int16]
    threshold: npt.NDArray[np.float32]
    nan_left: npt.NDArray[np.bool_]
    left: npt.NDArray[np.uint32]
    first: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]
    start: float

    def predict(self, table: npt.NDArray[np.float32]) -> Floats:
        """Sums (rows,) for a (rows, features) table; NaN is unknown."""
        if len(table) <= _FEW_ROWS and len(self.feature):
            return self._few(table)
        out = np.empty(len(table))
        for begin in range(0, len(table), _BLOCK):
            out[begin : begin + _BLOCK] = self._block(table[begin : begin + _BLOCK])
        return out

    def _few(self, table: npt.NDArray[np.float32]) -> Floats:
        """The same as `_block`, to the last digit: a forecast must not depend on how many others are asked for."""
        asked = np.ascontiguousarray(table.T)[self.feature]
        goes_right = np.where(np.isnan(asked), ~self.nan_left[:, None], asked > self.threshold[:, None])
        ruled_out = goes_right * self.left[:, None]
        splits = np.diff(self.first)
        gone = np.zeros((len(self.value), len(table)), dtype=np.uint32)
        gone[splits > 0] = np.bitwise_or.reduceat(ruled_out, self.first[:-1][splits > 0], axis=0)
        return self._added(gone)

    def _block(self, table: npt.NDArray[np.float32]) -> Floats:
        # All splits of a tree in one call: another thread may take the interpreter at each, and keeps it for a while.
        kinds, place = np.unique(2 * self.feature.astype(np.int64) + self.nan_left, return_inverse=True)
        columns = np.ascontiguousarray(table.T[kinds // 2])
        unknown = np.where(kinds % 2 == 1, np.float32(-np.inf), np.float32(np.inf))
        np.copyto(columns, unknown[:, None], where=np.isnan(columns))
        asked = np.empty((MOST_LEAVES, len(table)), dtype=np.float32)
        goes_right = np.empty(asked.shape, dtype=np.bool_)
        ruled_out = np.empty(asked.shape, dtype=np.uint32)
        gone = np.empty((len(self.value), len(table)), dtype=np.uint32)
        threshold, left, first = self.threshold[:, None], self.left[:, None], self.first.tolist()
        for tree in range(len(self.value)):
            splits = slice(first[tree], first[tree + 1])
            count = splits.stop - splits.start
            np.take(columns, place[splits], axis=0, out=asked[:count], mode="clip")
            np.greater(asked[:count], threshold[splits], out=goes_right[:count])
            np.multiply(goes_right[:count].view(np.uint8), left[splits], out=ruled_out[:count])
            np.bitwise_or.reduce(ruled_out[:count], axis=0, out=gone[tree])
        return self._added(gone)

    def _added(self, gone: npt.NDArray[np.uint32]) -> Floats:
        """(rows,) sums of the leaves that rows end in, tree after tree; (trees, rows) leaves that are ruled out."""
        lowest = ~gone & (gone + np.uint32(1))
        leaves = _PLACES[(lowest * _MULTIPLIER) >> _SHIFT]
        added = np.take_along_axis(self.value, leaves, axis=1).astype(np.float64)
        start = np.full((1, gone.shape[1]), self.start)
        # A single row would be added up in another order.
        if gone.shape[1] == 1:
            return np.asarray(np.add.accumulate(np.concatenate([start, added]), axis=0)[-1])
        return np.asarray(np.add.reduce(np.concatenate([start, added]), axis=0))

    def arrays(self, prefix: str) -> dict[str, npt.NDArray[Any]]:
        """What is stored, by names that begin with `prefix`."""
        return {f"{prefix}.{field.name}": np.asarray(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def of(cls, stored: Mapping[str, npt.NDArray[Any]], prefix: str) -> Trees:
        """What `arrays` stored. Raises KeyError when a part is absent."""
        parts: dict[str, Any] = {field.name: stored[f"{prefix}.{field.name}"] for field in dataclasses.fields(cls)}
        return cls(**{**parts, "start": float(parts["start"])})
