"""Texts of kernel files into numbers, from bytes as they were read.

Whatever a file holds, the answer is a number that stands there, None, or Refused: junk never becomes a number.
Numbers are whole and at most 30 digits long, so that a hostile text costs nothing.
"""

from __future__ import annotations

import re
from typing import Final

from slacktide.errors import Refused

_NUMBER: Final = re.compile(rb"-?[0-9]{1,30}")
_COUNT: Final = re.compile(rb"[0-9]{1,30}")
_COUNT_TEXT: Final = re.compile(r"[0-9]{1,30}")
_LINES: Final = re.compile(rb"^(\S+) ([0-9]{1,30})$", re.MULTILINE)
_SHOWN: Final = 40


def number(data: bytes, name: str) -> int:
    """A file that holds one number. Raises Refused where it holds something else (such as `max`)."""
    text = data.strip()
    if not _NUMBER.fullmatch(text):
        raise Refused(name, None, f"expected one number, found {shown(text)}")
    return int(text)


def is_count(text: str) -> bool:
    """Whether a text is a whole number, 0 or more, in the digits that kernels print (`isdigit` takes others, too)."""
    return _COUNT_TEXT.fullmatch(text) is not None


def limit(data: bytes, name: str) -> int | None:
    """A file that holds a number or `max`, which is no limit: None. Raises Refused for something else."""
    text = data.strip()
    if text == b"max":
        return None
    if not _COUNT.fullmatch(text):
        raise Refused(name, None, f"expected a number or max, found {shown(text)}")
    return int(text)


def flat(data: bytes) -> dict[str, int]:
    """`key value` lines into counts by key; lines of any other form are skipped, since kernels add new ones."""
    return {key.decode("utf-8", "replace"): int(value) for key, value in _LINES.findall(data)}


def count_of(data: bytes, key: bytes) -> int | None:
    """The count behind one key of a file of `key value` lines; None where it is not there or is none.

    For long files of which one line matters (memory.stat). Of a key that stands there twice the first line counts.
    """
    begin = 0 if data.startswith(key + b" ") else data.find(b"\n" + key + b" ") + 1
    if begin == 0 and not data.startswith(key + b" "):
        return None
    parts = data[begin : begin + len(key) + 64].split(b"\n", 1)[0].split()
    return int(parts[1]) if len(parts) == 2 and _COUNT.fullmatch(parts[1]) else None


def pairs(words: list[bytes]) -> dict[str, int]:
    """`key=value` words into counts by key; words of any other form are skipped."""
    values: dict[str, int] = {}
    for word in words:
        key, _, value = word.partition(b"=")
        if _COUNT.fullmatch(value):
            values[key.decode("utf-8", "replace")] = int(value)
    return values


def shown(text: bytes) -> str:
    """The beginning of a text, for a message."""
    return repr(text[:_SHOWN].decode("utf-8", "replace"))
