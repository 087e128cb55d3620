"""Moments and durations as people type them."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

import click

STEPS: Final = (5, 6, 10, 12, 15, 20, 25, 30, 50, 60)
"""Divisors of a 5-minute slot that windows may be apart, in seconds."""

_DURATION: Final = re.compile(r"(\d+)(s|m)?")


def moment(text: str, option: str) -> float:
    """Epoch seconds of a date, a time of day with or without zone (UTC then), or of epoch seconds.

    Raises click.UsageError.
    """
    try:
        if re.fullmatch(r"\d{9,11}", text):
            return float(text)
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(
            f"{option} {text!r} is no time: write 2026-11-01, 2026-11-01T06:00Z, 2026-11-01T07:00+01:00 or epoch "
            "seconds"
        ) from error
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()


def step_seconds(text: str) -> int:
    """Seconds of a step such as `30s` or `1m`. Raises click.UsageError."""
    found = _DURATION.fullmatch(text.strip())
    count = int(found[1]) * (60 if found[2] == "m" else 1) if found else 0
    if count not in STEPS:
        raise click.UsageError(
            f"--step {text!r} does not divide a slot of 5m: use one of {', '.join(f'{step}s' for step in STEPS)}"
        )
    return count
