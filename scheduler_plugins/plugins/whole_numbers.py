"""Whole numbers in labels and taints, as the API reads them."""

from __future__ import annotations

import re
from typing import Final

_DIGITS: Final = re.compile(r"[+-]?[0-9]{1,19}")
_LIMIT: Final = 1 << 63


def whole_number(text: str) -> int | None:
    """The 64-bit number that `text` is; None for anything else, such as `1_000` or ` 5`."""
    if _DIGITS.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -_LIMIT <= number < _LIMIT else None
