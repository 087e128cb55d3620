"""Kubernetes quantities: `1.5Gi`, `200m`, `1e3`, exact, without a float anywhere.

Grammar (apimachinery, api/resource): a sign, a decimal number with at least one digit, then nothing, one of
`n u m k M G T P E`, one of `Ki Mi Gi Ti Pi Ei`, or `e`/`E` and a whole exponent. `1E` is one exa, `1e` is an error.

As Kubernetes does: finer than 1n is rounded away from zero, and so is the whole number that is asked of a fraction;
a binary amount beyond 2^63-1 is capped there. Where we differ on purpose: text without a digit (`m`, `+`) is an
error instead of 0; `value()` and `milli_value()` stop at 2^63-1 where Go's would wrap around; an exponent above 64
is an error; blanks are errors (the API server trims them from JSON strings before it parses).
"""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from slacktide.errors import QuantityError

MAX_INT64: Final = (1 << 63) - 1
"""Largest count that the API and the wire carry; larger ones stop here."""

NANO: Final = 10**9
"""Nano units in one unit."""

_NANO_PER_MILLI: Final = 10**6
_MAX_TEXT: Final = 128
_MAX_EXPONENT: Final = 64

_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?"
)
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_NAMES: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}


class Format(enum.Enum):
    """How a quantity was written and is written back."""

    DECIMAL_SI = "decimal"
    BINARY_SI = "binary"
    DECIMAL_EXPONENT = "exponent"


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount: `nanos` billionths of a unit, and the form it is written in.

    Two quantities are equal when both agree; compare `nanos` to compare amounts only.
    """

    nanos: int
    format: Format = Format.DECIMAL_SI

    def value(self) -> int:
        """Whole units, rounded away from zero, at most 2^63-1 in size."""
        return _rounded(self.nanos, NANO)

    def milli_value(self) -> int:
        """Thousandths of a unit, rounded away from zero, at most 2^63-1 in size."""
        return _rounded(self.nanos, _NANO_PER_MILLI)

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole number of units."""
        return self.nanos % NANO == 0

    def __str__(self) -> str:
        if self.nanos == 0:
            return "0"
        if self.format is Format.BINARY_SI and self.is_whole and abs(self.nanos) >= 1024 * NANO:
            return _binary_text(self.nanos // NANO)
        return _decimal_text(self.nanos, self.format)


def parse(source: str | int | float) -> Quantity:
    """The quantity that `source` says: text, or a bare JSON number. Raises QuantityError with what is wrong.

    A float is read by its shortest decimal text, so that the JSON number 0.1 is exactly one tenth.
    """
    if isinstance(source, str):
        return _parse_text(source)
    if isinstance(source, bool) or not isinstance(source, (int, float)):
        raise QuantityError(f"{source!r} is no quantity: write text such as 500m, 2 or 1.5Gi")
    if isinstance(source, float) and not math.isfinite(source):
        raise QuantityError(f"{source!r} is no quantity: it must be finite")
    return _parse_text(repr(source) if isinstance(source, float) else f"{source:d}")


@lru_cache(maxsize=4096)
def _parse_text(text: str) -> Quantity:
    match = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if match is None or not (match["whole"] or match["fraction"]):
        raise QuantityError(f"{text[:_MAX_TEXT]!r} is no quantity: {_hint(text)}")
    fraction = match["fraction"] or ""
    digits = int(match["whole"] + fraction)
    numerator, denominator, form = _scale(text, digits, len(fraction), match["suffix"] or "")
    nanos = -(-numerator // denominator)
    if form is Format.BINARY_SI:
        nanos = min(nanos, MAX_INT64 * NANO)
        if nanos < NANO:
            form = Format.DECIMAL_SI
    return Quantity(-nanos if match["sign"] == "-" else nanos, form)


def _scale(text: str, digits: int, places: int, suffix: str) -> tuple[int, int, Format]:
    """Numerator and denominator of `digits` x 10^-places x suffix, in nano units, and the form."""
    if suffix in _BINARY:
        return (digits << _BINARY[suffix]) * NANO, 10**places, Format.BINARY_SI
    if suffix in _DECIMAL:
        exponent, form = _DECIMAL[suffix], Format.DECIMAL_SI
    else:
        exponent, form = int(suffix[1:]), Format.DECIMAL_EXPONENT
        if exponent > _MAX_EXPONENT and digits:
            raise QuantityError(f"{text!r} is too large: an exponent is at most {_MAX_EXPONENT}")
    power = min(exponent, _MAX_EXPONENT) - places + 9
    if power >= 0:
        return digits * 10**power, 1, form
    return digits, 10 ** min(-power, 2 * _MAX_TEXT), form


def _hint(text: str) -> str:
    if not text:
        return "it is empty"
    if len(text) > _MAX_TEXT:
        return f"it is longer than {_MAX_TEXT} characters"
    if text != text.strip():
        return "it has blanks around it"
    number = re.fullmatch(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)([^0-9.].*)", text)
    if number is None:
        return "expected a number such as 500m, 2, 1.5Gi or 1e3"
    suffix = number[1]
    if suffix == "e":
        return "an exponent needs digits (1e3); one exa is written 1E"
    return f"unknown suffix {suffix!r}; known: n u m k M G T P E, Ki Mi Gi Ti Pi Ei, e3"


def _rounded(nanos: int, unit: int) -> int:
    size = min(MAX_INT64, -(-abs(nanos) // unit))
    return -size if nanos < 0 else size


def _binary_text(units: int) -> str:
    for suffix in ("", *_BINARY):
        if units % 1024 or suffix == "Ei":
            return f"{units}{suffix}"
        units //= 1024
    raise AssertionError("the loop ends at Ei")


def _decimal_text(nanos: int, form: Format) -> str:
    exponent = -9
    highest = 18 if form is not Format.DECIMAL_EXPONENT else exponent + 3 * len(str(nanos))
    while nanos % 1000 == 0 and exponent < highest:
        nanos //= 1000
        exponent += 3
    if form is Format.DECIMAL_EXPONENT:
        return f"{nanos}e{exponent}" if exponent else str(nanos)
    return f"{nanos}{_DECIMAL_NAMES[exponent]}"


def cpu_millis(source: str | int | float) -> int:
    """CPU in millicores, rounded up: `500m` is 500, `2` is 2000. Raises QuantityError."""
    return parse(source).milli_value()


def memory_bytes(source: str | int | float) -> int:
    """Memory in bytes, rounded up: `1Ki` is 1024. Raises QuantityError."""
    return parse(source).value()


def batch_cpu(source: str | int | float) -> int:
    """A `kubernetes.io/batch-cpu` amount: a whole count of millicores. Raises QuantityError for a fraction.

    The API itself lets `200m` and `0.5` through for this name and then counts 1 (volcano#4625), so whoever meant
    200 millicores would get one: it must be refused wherever a request is read for validation.
    """
    quantity = parse(source)
    if not quantity.is_whole:
        raise QuantityError(
            f"{source!r} is no count of millicores: write a whole number, such as 200 for a fifth of a CPU"
        )
    return quantity.value()


def format_bytes(count: int) -> str:
    """Bytes for people: at most one decimal and a binary suffix, such as `1.5Gi`; exact below 1 Ki."""
    sign, size = ("-" if count < 0 else ""), abs(count)
    for suffix, bits in reversed(_BINARY.items()):
        if size >= 1 << bits:
            tenths = (size * 10 + (1 << bits) // 2) >> bits
            whole, tenth = divmod(tenths, 10)
            return f"{sign}{whole}.{tenth}{suffix}" if tenth else f"{sign}{whole}{suffix}"
    return f"{sign}{size}"


def format_millis(count: int) -> str:
    """Millicores for people: `500m`, `2`, `1500m`; a quantity that `cpu_millis` reads back exactly."""
    return str(Quantity(count * _NANO_PER_MILLI))
