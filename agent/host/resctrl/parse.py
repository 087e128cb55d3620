"""Texts of resctrl into numbers. What cannot be read right raises Refused; it never becomes a wrong number.

Lines are told apart by the name before the colon, whole: order, padding and width differ between kernels, and a prefix
match lets `L3` eat `L3CODE` (goresctrl 34d7b8c). Names that are not known are skipped, since kernels add some.
"""

from __future__ import annotations

import re
from typing import Final

from slacktide.errors import Refused

_DECIMAL: Final = re.compile(r"[0-9]{1,20}", re.ASCII)
_HEX: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,16})", re.ASCII)
_GROUP: Final = re.compile(r"[0-9a-fA-F]{8}", re.ASCII)
_CACHE_LINE: Final = re.compile(r"L[23](?:CODE|DATA)?", re.ASCII)
_BANDWIDTH_LINES: Final = frozenset({"MB", "SMBA"})
_LARGEST: Final = (1 << 64) - 1
_UNINITIALIZED: Final = "uninitialized"
_BIT_LETTERS: Final = frozenset("0HXSEP")
_OCCUPIED: Final = frozenset("EP")

MISSING: Final = {
    "Unavailable": "the hardware has no data for it now",
    "Error": "the hardware calls the id or the event invalid",
    "Unassigned": "no counter is assigned to it",
}
"""Words that stand where a number should, and what they mean."""


def number(text: str, where: str) -> int:
    """A decimal number of at most 64 bits. Raises Refused."""
    stripped = text.strip()
    if not _DECIMAL.fullmatch(stripped) or int(stripped) > _LARGEST:
        raise Refused(where, None, f"expected one number, found {stripped[:40]!r}")
    return int(stripped)


def mask(text: str, where: str) -> int:
    """A hexadecimal mask, with comma groups of 32 bits where it is long. Raises Refused.

    Leading zeros and groups make texts differ that mean the same (katalyst e0360f22): compare numbers only.
    """
    first, *groups = text.strip().split(",")
    found = _HEX.fullmatch(first)
    if found is None or not all(_GROUP.fullmatch(group) for group in groups):
        raise Refused(where, None, f"expected a hexadecimal mask, found {text.strip()[:40]!r}")
    return int(found[1] + "".join(groups), 16)


def schemata(text: str, where: str) -> dict[str, dict[int, int]]:
    """Resource -> domain id -> value. A resource without values (a group that is to be locked) is left out.

    Raises Refused for a line without colon or `=`, a value that is none, a resource or domain that is there twice.
    """
    found: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, rest = line.partition(":")
        name, rest = name.strip(), rest.strip()
        if not colon or name in found:
            raise Refused(where, None, f"expected RESOURCE:ID=VALUE once each, found {line.strip()[:60]!r}")
        if rest != _UNINITIALIZED and (name in _BANDWIDTH_LINES or _CACHE_LINE.fullmatch(name)):
            found[name] = _domains(name, rest, where)
    return found


def _domains(name: str, text: str, where: str) -> dict[int, int]:
    read = number if name in _BANDWIDTH_LINES else mask
    values: dict[int, int] = {}
    for token in text.removesuffix(";").split(";") if text else ():
        key, equals, value = token.partition("=")
        domain = number(key, where)
        if not equals or domain in values:
            raise Refused(where, None, f"expected ID=VALUE once each, found {token[:40]!r}")
        values[domain] = read(value, where)
    return values


def event(text: str, where: str) -> tuple[int | None, str]:
    """A counter of mon_data and "", or None and why there is none. Raises Refused for any other text."""
    word = text.strip()
    if word in MISSING:
        return None, f"{word}: {MISSING[word]}"
    return number(word, where), ""


def exclusive_bits(text: str, where: str) -> dict[int, int]:
    """From bit_usage, by domain: bits that exclusive (E) or pseudo-locked (P) groups hold; the highest bit comes first.

    Raises Refused for any other form, since a bit that reads wrong may be somebody's.
    """
    found: dict[int, int] = {}
    for token in text.strip().removesuffix(";").split(";") if text.strip() else ():
        key, equals, letters = token.partition("=")
        domain = number(key, where)
        if not equals or not letters or not _BIT_LETTERS.issuperset(letters) or domain in found:
            raise Refused(where, None, f"expected ID=letters of 0HXSEP, found {token[:60]!r}")
        found[domain] = sum(1 << bit for bit, letter in enumerate(reversed(letters)) if letter in _OCCUPIED)
    return found


def tasks(text: str, where: str) -> frozenset[int]:
    """Thread ids of a tasks file; 0 stands for a thread of a pid namespace that we do not see. Raises Refused."""
    return frozenset(number(word, where) for word in text.split()) - {0}
