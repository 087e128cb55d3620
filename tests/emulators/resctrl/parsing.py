"""Numbers and CPU masks in the kernel's grammar: stricter than Python in some places, looser in others."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from tests.emulators.resctrl.errors import ResctrlError

SPACE = " \t\n\v\f\r\xa0"
"""What the kernel's strim() cuts."""

_UINT = (1 << 32) - 1
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
    """The first letter decides, after an o the second. Raises ResctrlError EINVAL."""
    head = text[:2].lower()
    if head[:1] in set("1yte") or head == "on":
        return True
    if head[:1] in set("0nfd") or head == "of":
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
    """Hex, at most 8 digits a group, no more groups than `bits` CPUs need; nothing is the empty mask.

    Raises ResctrlError EINVAL or EOVERFLOW, for the last bad group.
    """
    mask = 0
    for index, group in enumerate(reversed(_regions(text))):
        if index >= -(-bits // 32):
            raise ResctrlError(errno.EOVERFLOW)
        if not re.fullmatch("[0-9a-fA-F]+", group[-8:]):
            raise ResctrlError(errno.EINVAL)
        if len(group) > 8:
            raise ResctrlError(errno.EOVERFLOW if re.match("[0-9a-fA-F]", group[-9]) else errno.EINVAL)
        mask |= int(group, 16) << 32 * index
    if mask >> bits:
        raise ResctrlError(errno.EOVERFLOW)
    return mask


def _regions(text: str) -> list[str]:
    """Parts of the first line between commas and blanks."""
    return [part for part in re.split(r"[\s,]+", text.split("\n", 1)[0]) if part]


def parse_list(text: str, bits: int) -> int:
    """Decimal list with ranges and strides (0-7:2/4), `all` and N for the last CPU.

    Raises ResctrlError EINVAL, ERANGE or EOVERFLOW.
    """
    mask = 0
    for part in _regions(text):
        mask |= _range(part, bits)
    return mask


def _range(part: str, bits: int) -> int:
    number = r"(\d+|N)"
    found = re.fullmatch(rf"(?:(?i:all)|{number}(?:-{number})?)(?::(\d+)/(\d+))?", part, re.ASCII)
    if found is None or (found[3] and part[0].isdecimal() and not found[2]):
        raise ResctrlError(errno.EINVAL)
    ends = (found[1], found[2] or found[1]) if found[1] else ("0", "N")
    first, last = (bits - 1 if text == "N" else int(text) for text in ends)
    used, group = (int(found[3]), int(found[4])) if found[3] else (1, 1)
    if max(first, last, used, group) > _UINT:
        raise ResctrlError(errno.EOVERFLOW)
    if first > last or group == 0 or used > group:
        raise ResctrlError(errno.EINVAL)
    if last >= bits:
        raise ResctrlError(errno.ERANGE)
    return sum(1 << cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)
