"""A forecast model that hangs while a file is there, as a mistake in somebody's own model would."""

from __future__ import annotations

import dataclasses
import os
import time

from predictor import models
from predictor.models.window_max import WindowMax

NAME = "stuck"
FILE = "SLACKTIDE_TEST_STUCK"
"""Environment variable with the path of the file."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stuck(WindowMax):
    """The sliding-window maximum, when it answers."""

    name: str = NAME

    def predict(self, history, horizon_seconds, risks):
        while os.path.exists(os.environ[FILE]):
            time.sleep(0.05)
        return WindowMax.predict(self, history, horizon_seconds, risks)


def build(window_days=7.0):
    return Stuck(window_days)


def register():
    """The line that docs/how-to-add-a-model.md asks for."""
    models._MODULES[NAME] = __name__
