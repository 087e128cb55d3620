"""One raw value, from a file or as text, into its type: units, choices and ranges, with errors that teach.

Every function raises ValueError with the rest of a sentence that begins with the setting's name: "must be ...".
"""

from __future__ import annotations

import difflib
import enum
import math
import re
import typing
from fractions import Fraction
from typing import Any, Final

from slacktide import quantity
from slacktide.errors import QuantityError
from slacktide.settings.schema import Option, Settings, choices, element, is_group, options, range_text

_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_DURATION: Final = re.compile(r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?P<unit>us|ms|s|m|h|d)")
_SECONDS: Final = {
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_SECONDS_HINT: Final = "write seconds as a number, or with a unit: 250ms, 5s, 2m, 1h, 1d"
_BYTES_HINT: Final = "write bytes as a whole number, or with a suffix: 64Ki, 64Mi, 2Gi"


def from_file(option: Option, raw: Any) -> Any:
    """Value of `option` from what the YAML file holds. Raises ValueError."""
    if raw is None:
        if option.optional:
            return None
        raise ValueError("has no value: give one or remove the key")
    return _checked(option, _convert(option, option.kind, raw, text=False))


def from_text(option: Option, raw: str) -> Any:
    """Value of `option` from an environment variable or a flag; empty text is nothing where that is allowed."""
    if raw == "" and option.optional:
        return None
    return _checked(option, _convert(option, option.kind, raw, text=True))


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """`; nearest known: X` for a misspelt `word`, or the known ones when nothing is near; may be empty."""
    candidates = list(known)
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=0.5)
    if not close:
        leaves = {candidate.rpartition(".")[2]: candidate for candidate in candidates}
        close = [leaves[leaf] for leaf in difflib.get_close_matches(word.rpartition(".")[2], leaves, n=1, cutoff=0.6)]
    return f"; nearest known: {close[0]}" if close else ""


def _convert(option: Option, kind: Any, raw: Any, *, text: bool) -> Any:
    """Judge `raw` by `kind`; `text` says that it is text by nature and not because somebody put it in quotes."""
    known = choices(kind)
    if known:
        return _choice(kind, known, raw)
    if is_group(kind):
        return _group(kind, raw, text=text)
    origin = typing.get_origin(kind)
    if origin is dict:
        return _mapping(option, kind, raw, text=text)
    if origin in {list, tuple, set, frozenset}:
        return _sequence(option, kind, raw, text=text)
    if kind is bool:
        return _boolean(raw, text=text)
    if kind in {int, float}:
        return _number(option, kind, raw, text=text)
    if kind is str:
        if not isinstance(raw, str):
            raise ValueError(f"must be text, not {_what(raw)}: put it in quotes")
        return raw
    raise TypeError(f"{option.key}: a setting cannot have the type {kind}")


def _choice(kind: Any, known: tuple[str, ...], raw: Any) -> Any:
    members = [*typing.get_args(kind)] or [*kind]
    for text, member in zip(known, members, strict=True):
        value = member.value if isinstance(member, enum.Enum) else member
        if raw == value or (isinstance(raw, str) and raw == text):
            return member
    raise ValueError(f"must be one of {', '.join(known)}, not {raw!r}{nearest(str(raw), known)}")


def _boolean(raw: Any, *, text: bool) -> bool:
    if isinstance(raw, bool):
        return raw
    if text and raw in {"true", "false"}:
        return bool(raw == "true")
    raise ValueError(f"must be true or false, not {raw!r}")


def _number(option: Option, kind: type, raw: Any, *, text: bool) -> int | float:
    exact = _exact(option, raw, text=text)
    if exact is None or (kind is int and exact.denominator != 1):
        raise ValueError(f"must be a {'whole ' if kind is int else ''}number{_of_unit(option)}, not {_what(raw)}")
    try:
        return int(exact) if kind is int else float(exact)
    except OverflowError:
        raise ValueError(f"is too large a number: {raw}") from None


def _exact(option: Option, raw: Any, *, text: bool) -> Fraction | None:
    if isinstance(raw, str):
        if option.unit == "seconds":
            return _seconds(raw)
        if option.unit == "bytes":
            return _bytes(raw)
        return Fraction(raw) if text and _NUMBER.fullmatch(raw) else None
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not math.isfinite(raw):
        return None
    return Fraction(raw)


def _seconds(raw: str) -> Fraction:
    if _NUMBER.fullmatch(raw):
        return Fraction(raw)
    match = _DURATION.fullmatch(raw)
    if match:
        return Fraction(match["number"]) * _SECONDS[match["unit"]]
    raise ValueError(f"is a time, and {raw!r} is none: {_SECONDS_HINT}")


def _bytes(raw: str) -> Fraction:
    try:
        amount = quantity.parse(raw)
    except QuantityError:
        raise ValueError(f"is an amount of memory, and {raw!r} is none: {_BYTES_HINT}") from None
    if not amount.is_whole:
        raise ValueError(f"is an amount of memory, and {raw!r} is a fraction of a byte: {_BYTES_HINT}")
    return Fraction(amount.nanos, quantity.NANO)


def _sequence(option: Option, kind: Any, raw: Any, *, text: bool) -> Any:
    origin = typing.get_origin(kind)
    member = element(option, typing.get_args(kind)[0])
    if text:
        items: list[Any] = [item.strip() for item in raw.split(",")] if raw.strip() else []
    elif isinstance(raw, list):
        items = raw
    else:
        raise ValueError(f"must be a list, not {_what(raw)}")
    return origin([_checked(member, _convert(member, member.kind, item, text=text)) for item in items])


def _mapping(option: Option, kind: Any, raw: Any, *, text: bool) -> dict[str, Any]:
    member = element(option, typing.get_args(kind)[1])
    if text:
        pairs = [item.partition("=") for item in raw.split(",")] if raw.strip() else []
        if not all(middle for _, middle, _ in pairs):
            raise ValueError(f"must be NAME=VALUE,NAME=VALUE, not {raw!r}")
        items: dict[str, Any] = {name.strip(): value.strip() for name, _, value in pairs}
    elif isinstance(raw, dict) and all(isinstance(name, str) for name in raw):
        items = raw
    else:
        raise ValueError(f"must be a mapping of names to values, not {_what(raw)}")
    return {name: _checked(member, _convert(member, member.kind, value, text=text)) for name, value in items.items()}


def _group(kind: type[Settings], raw: Any, *, text: bool) -> Settings:
    """A group as a member of a list: a mapping of its keys, of which each has a default."""
    if text or not isinstance(raw, dict):
        wanted = "can only stand in the settings file" if text else f"must have mappings as members, not {_what(raw)}"
        raise ValueError(f"is a list of groups: it {wanted}")
    known = {option.path[0]: option for option in options(kind)}
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        if name not in known:
            raise ValueError(f"has a member with the unknown key {name}{nearest(str(name), known)}")
        try:
            fields[name] = from_file(known[name], value)
        except ValueError as error:
            raise ValueError(f"has a member whose {name} {error}") from error
    return kind(**fields)


def _checked(option: Option, value: Any) -> Any:
    """`value` if it keeps the rules of the option's Meta; those of a collection hold for the collection."""
    bounds = option.bounds
    sized = value if hasattr(value, "__len__") else ()
    broken = (
        ("ge" in bounds and value < bounds["ge"])
        or ("gt" in bounds and value <= bounds["gt"])
        or ("le" in bounds and value > bounds["le"])
        or ("lt" in bounds and value >= bounds["lt"])
        or ("multiple_of" in bounds and value % bounds["multiple_of"] != 0)
        or len(sized) < bounds.get("min_length", 0)
        or len(sized) > bounds.get("max_length", len(sized))
        or ("pattern" in bounds and not re.search(bounds["pattern"], value))
    )
    if broken:
        shown = repr(value) if isinstance(value, str) else value
        raise ValueError(f"must be {range_text(bounds)}{f' {option.unit}' if option.unit else ''}, not {shown}")
    return value


def _of_unit(option: Option) -> str:
    return f" of {option.unit}" if option.unit else ""


def _what(raw: Any) -> str:
    names = {bool: "a truth value", list: "a list", dict: "a mapping", str: "the text", float: "the number"}
    name = names.get(type(raw))
    if isinstance(raw, (list, dict)):
        return str(name)
    return f"{name} {raw!r}" if name else repr(raw)
