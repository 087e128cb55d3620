"""Numbers between numpy, where NaN is missing, and DuckDB, where NULL is. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor.store.columns import Floats, Integers

_LARGEST: Final = 2.0**62


def column(values: Sequence[int | float | None], dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    """Values of which None is NULL."""
    missing = [value is None for value in values]
    filled = np.asarray([0 if value is None else value for value in values], dtype=dtype)
    return np.ma.MaskedArray(filled, mask=missing) if any(missing) else filled


def whole(values: npt.NDArray[np.floating]) -> npt.NDArray[np.generic]:
    """Amounts rounded to whole numbers; NaN, infinite and absurd ones are NULL."""
    known = np.abs(values) < _LARGEST
    rounded = np.rint(np.where(known, values, 0.0)).astype(np.int64)
    return rounded if known.all() else np.ma.MaskedArray(rounded, mask=~known)


def texts(values: Sequence[str]) -> npt.NDArray[np.object_]:
    """Strings as DuckDB takes them from numpy."""
    return np.asarray(values, dtype=object)


def floats(values: npt.NDArray[np.generic]) -> Floats:
    """A column that was read; NULL is NaN."""
    return np.ma.filled(np.ma.asarray(values).astype(np.float64), np.nan)


def integers(values: npt.NDArray[np.generic]) -> Integers:
    """A column without NULL that was read."""
    return np.asarray(values, dtype=np.int64)
