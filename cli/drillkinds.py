"""Kinds of drills and durations, as options of the command have them. Light: help needs no more of drills."""

from __future__ import annotations

import enum
import re
from typing import Any, Final

import click

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNITS: Final = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Kind(enum.StrEnum):
    """What is rehearsed (docs/drills.md)."""

    PRESSURE = "pressure"
    MEMORY = "memory"
    BANDWIDTH = "bandwidth"
    AGENT_LOSS = "agent-loss"
    PREDICTOR_LOSS = "predictor-loss"
    STALE = "stale"


DEFAULT_SECONDS: Final = {
    Kind.PRESSURE: 10.0,
    Kind.MEMORY: 10.0,
    Kind.BANDWIDTH: 10.0,
    Kind.AGENT_LOSS: 10.0,
    # Long enough for a forecast to age and to expire: three times its default ttl, and a minute.
    Kind.PREDICTOR_LOSS: 420.0,
    Kind.STALE: 420.0,
}


class Duration(click.ParamType):  # type: ignore[type-arg] # older releases of click have no argument here
    """Seconds as a number, or with a unit: 500ms, 30s, 2m, 1h. Within `low` and `high` seconds."""

    name = "duration"

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds. Fails with what may be written."""
        found = _DURATION.fullmatch(str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no time: write 30, 30s, 500ms or 2m", param, ctx)
        seconds = float(found[1]) * _UNITS[found[2]]
        if not self._low <= seconds <= self._high:
            self.fail(f"{value!r} is out of range: {self._low:g}s to {self._high:g}s", param, ctx)
        return seconds
