"""What to say when a name is not there: those that look like it, or those that there are. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

_LIKE: Final = 0.6
_SHOWN: Final = 3
_LISTED: Final = 10


def like(name: str, known: Iterable[str]) -> list[str]:
    """At most three of `known` that may be meant: those with `name` in them, then those that differ in little."""
    names = sorted(set(known))
    parts = [one for one in names if name and name.lower() in one.lower()]
    near = difflib.get_close_matches(name, names, _SHOWN, _LIKE)
    return list(dict.fromkeys([*parts[:_SHOWN], *near]))[:_SHOWN]


def hint(name: str, known: Sequence[str]) -> str:
    """`do you mean a or b?`, or the list of what there is, as far as a line holds it."""
    if not known:
        return "there is none"
    meant = like(name, known)
    if meant:
        return f"do you mean {' or '.join(meant)}?"
    first = sorted(known)[:_LISTED]
    more = len(known) - len(first)
    return f"there are: {', '.join(first)}{f' and {more} more' if more else ''}"
