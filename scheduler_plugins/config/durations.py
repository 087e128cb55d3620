"""Durations as Go writes them: `5s`, `1m30s`, `1.5h`, `250ms`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_UNITS: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_PART: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<unit>ns|us|µs|μs|ms|s|m|h)")
_LONGEST_SECONDS: Final = (1 << 63) / 1e9


def seconds_of(text: str) -> float:
    """Seconds of a Go duration. Raises ValueError with the rest of a sentence that begins with a name."""
    sign, rest = (text[0], text[1:]) if text[:1] in {"+", "-"} else ("", text)
    parts = list(_PART.finditer(rest))
    whole = "".join(part[0] for part in parts) == rest and bool(parts)
    if not whole and rest != "0":
        raise ValueError(f"is a duration, and {text!r} is none: write for example 5s, 250ms or 1m30s")
    exact = sum((Fraction(part["number"]) * _UNITS[part["unit"]] for part in parts), Fraction(0))
    if exact >= _LONGEST_SECONDS:
        raise ValueError(f"is longer than a duration can be: {text!r}")
    return -float(exact) if sign == "-" else float(exact)
