"""Weights of the fitted models, as predictor.training made them, and how they are read."""

from __future__ import annotations

import functools
import io
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from predictor.models.base import HOUR_SECONDS
from slacktide.errors import SlacktideError

HORIZONS_HOURS: Final = (1, 24)
"""Horizons that weights are fitted for."""

Arrays = dict[str, npt.NDArray[Any]]


class WeightsError(SlacktideError):
    """Weights that cannot be used."""


def fitted_hours(horizon_seconds: float) -> int:
    """Hours of the fitted horizon that answers for `horizon_seconds`: the next longer one, or else the longest.

    A peak over longer is never lower.
    """
    return next((hours for hours in HORIZONS_HOURS if hours * HOUR_SECONDS >= horizon_seconds), HORIZONS_HOURS[-1])


_directory: Traversable = resources.files(__package__)


def use(directory: Path | None) -> None:
    """Read weights and the prior of residuals from another directory from now on, None: from the package.

    For scoring out of sample: weights that were fitted without the series at hand.
    """
    global _directory
    _directory = resources.files(__package__) if directory is None else directory
    load.cache_clear()


def directory() -> Traversable:
    """Where weights and the prior of residuals are."""
    return _directory


@functools.cache
def load(model: str, hours: int, names: tuple[str, ...]) -> Arrays:
    """Arrays of a model's weights for a horizon of `hours`.

    Raises WeightsError when there are none, or they were fitted on other features than `names`.
    """
    file = f"{model}_{hours}h.npz"
    path = directory().joinpath(file)
    if not path.is_file():
        raise WeightsError(f"weights {file} are not in the package; make them with python -m predictor.training.fit")
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
        arrays = dict(stored)
    fitted = tuple(str(name) for name in arrays["names"])
    if fitted != names:
        changed = sorted(set(fitted) ^ set(names)) or ["their order"]
        raise WeightsError(
            f"weights {file} were fitted on other features ({', '.join(changed[:5])}); "
            f"make them anew with python -m predictor.training.fit"
        )
    return arrays
