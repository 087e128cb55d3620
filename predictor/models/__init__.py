"""Forecast models: pure arrays in, quantiles of the peak out, one model a file.

A model is known by its name. Its module is imported when the model is asked for, so that a predictor that runs
the window maximum never loads what a fitted model needs. To add one: write the file, add its name here.
"""

from __future__ import annotations

import importlib
from typing import Final

from predictor.models.base import Model
from slacktide.errors import SlacktideError

_MODULES: Final = {
    "boosted": "predictor.models.boosted",
    "histogram": "predictor.models.histogram",
    "holt_winters": "predictor.models.holt_winters",
    "lstm": "predictor.models.lstm",
    "n_sigma": "predictor.models.n_sigma",
    "quantile_regression": "predictor.models.quantile_regression",
    "rc_percentile": "predictor.models.rc_percentile",
    "window_max": "predictor.models.window_max",
}


class UnknownModel(SlacktideError):
    """A model name that is not registered."""


def known() -> tuple[str, ...]:
    """Names of all registered models, sorted."""
    return tuple(sorted(_MODULES))


def create(name: str, window_days: float = 7.0) -> Model:
    """The model called `name`, looking back `window_days` days; one whose source fixes its window looks back that far.

    Every module has `build(window_days)`. Raises UnknownModel that lists the known names.
    """
    module = _MODULES.get(name)
    if module is None:
        raise UnknownModel(f"model {name!r} is not known; choose one of: {', '.join(known())}")
    built: Model = importlib.import_module(module).build(window_days)
    return built
