"""Numbers and CPU masks in the kernel's grammar: stricter than Python in some places, looser in others."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from tests.emulators.resctrl.errors import ResctrlError

SPACE = " \t\n\v\f\r\xa0"
"""What the kernel's strim() cuts."""

_DIGITS = {8: "0-7", 10: "0-9", 16: "0-9a-fA-F"}


def kernel_number(text: str, base: int, limit: int) -> int:
    """Unsigned number up to `limit`, one trailing newline and a plus allowed, no spaces.

    Base 0 takes 0x and octal prefixes; base 16 takes an optional 0x. Raises ResctrlError EINVAL or ERANGE.
    """
    text = text.removesuffix("\n")
    text = text.removeprefix("+")
    if base == 0:
        base = 16 if re.match(r"0[xX][0-9a-fA-F]", text) else 8 if text.startswith("0") else 10
    if base == 16 and text[:2] in {"0x", "0X"}:
        text = text[2:]
    if not re.fullmatch(f"[{_DIGITS[base]}]+", text):
        raise ResctrlError(errno.EINVAL)
    value = int(text, base)
    if value > limit:
        raise ResctrlError(errno.ERANGE)
    return value


def kernel_int(text: str) -> int:
    """Signed 32-bit number with prefixes, as pids are parsed. Raises ResctrlError EINVAL or ERANGE."""
    if text.startswith("-"):
        if text[1:2] in {"+", "-"}:
            raise ResctrlError(errno.EINVAL)
        return -kernel_number(text[1:], 0, 1 << 31)
    return kernel_number(text, 0, (1 << 31) - 1)


def kernel_bool(text: str) -> bool:
    """First letters decide, as kstrtobool does. Raises ResctrlError EINVAL."""
    head = text[:2].lower()
    if head[:1] in {"1", "y", "t"} or head == "on":
        return True
    if head[:1] in {"0", "n", "f"} or head == "of":
        return False
    raise ResctrlError(errno.EINVAL)


def set_bits(mask: int) -> Iterator[int]:
    """Numbers of the bits that are set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def format_mask(mask: int, bits: int) -> str:
    """Hex groups of 32 bits with commas, as wide as `bits` CPUs need."""
    groups = []
    for start in range(0, bits, 32):
        width = -(-min(32, bits - start) // 4)
        groups.append(f"{mask >> start & 0xFFFFFFFF:0{width}x}")
    return ",".join(reversed(groups))


def format_list(mask: int) -> str:
    """Ranges such as 0-3,7; empty for no CPU."""
    parts: list[str] = []
    cpu = 0
    while mask >> cpu:
        if not mask >> cpu & 1:
            cpu += 1
            continue
        first = cpu
        while mask >> (cpu + 1) & 1:
            cpu += 1
        parts.append(str(first) if cpu == first else f"{first}-{cpu}")
        cpu += 1
    return ",".join(parts)


def parse_mask(text: str, bits: int) -> int:
    """Hex with comma groups of at most 8 digits. Raises ResctrlError EINVAL or EOVERFLOW."""
    text = text.split("\n", 1)[0].strip(SPACE)
    groups = text.split(",")
    if not all(re.fullmatch("[0-9a-fA-F]{1,}", group) for group in groups):
        raise ResctrlError(errno.EINVAL)
    mask = 0
    for index, group in enumerate(groups):
        if len(group) > 8 and index > 0:
            raise ResctrlError(errno.EOVERFLOW)
        mask = mask << 32 | int(group, 16)
    if mask >> bits:
        raise ResctrlError(errno.EOVERFLOW)
    return mask


def parse_list(text: str, bits: int) -> int:
    """Decimal list with ranges and strides (0-7:2/4), `all` and N for the last CPU. Raises EINVAL or ERANGE."""
    text = text.split("\n", 1)[0].strip(SPACE)
    mask = 0
    for part in filter(None, re.split(r"[\s,]+", text)):
        mask |= _range(part, bits)
    return mask


def _range(part: str, bits: int) -> int:
    if part.lower() == "all":
        return (1 << bits) - 1
    number = r"(\d+|N)"
    found = re.fullmatch(rf"{number}(?:-{number}(?::(\d+)/(\d+))?)?", part)
    if found is None:
        raise ResctrlError(errno.EINVAL)
    first, last = (bits - 1 if text == "N" else int(text) for text in (found[1], found[2] or found[1]))
    used, group = (int(found[3]), int(found[4])) if found[3] else (1, 1)
    if first > last or used == 0 or used > group:
        raise ResctrlError(errno.EINVAL)
    if last >= bits:
        raise ResctrlError(errno.ERANGE)
    return sum(1 << cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)
