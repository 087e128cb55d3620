"""Plain data of a file into typed structs: every problem at once, each with its line, its path and the nearest name."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from slacktide.settings.files import Path
from slacktide.settings.schema import choices
from slacktide.settings.values import nearest

T = TypeVar("T")

_WRONG: Final = object()
"""Stands for a value that was refused."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where data came from, and what is wrong with it so far."""

    name: str
    lines: Mapping[Path, int] = field(default_factory=dict)
    _told: dict[Path, str] = field(default_factory=dict)

    def say(self, path: Path, problem: str) -> None:
        """Note a problem with the value at `path`; one that was told of it, or of what holds it, goes before."""
        if not any(path[:n] in self._told for n in range(1, len(path) + 1)):
            self._told[path] = f"{self.place(path)} {problem}"

    @property
    def problems(self) -> list[str]:
        """One sentence for each problem, in the order of the file."""
        return [self._told[path] for path in sorted(self._told, key=lambda path: self._line(path) or 0)]

    def _line(self, path: Path) -> int | None:
        known = (self.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.lines)
        return next(known, None)

    def place(self, path: Path) -> str:
        """`file x.yaml line 7: profiles[0].plugins`; the line is that of the nearest part that has one."""
        line = self._line(path)
        where = self.name if line is None else f"{self.name} line {line}"
        return f"{where}: {dotted(path)}" if path else f"{where}:"


def dotted(path: Path) -> str:
    """`profiles[0].plugins`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_shown(part)}" for part in path)
    return text.removeprefix(".")


def _shown(name: str) -> str:
    """The name of a field as it stands in a sentence, whatever characters somebody put into it."""
    return name if name and name.isprintable() else repr(name)


def typed(kind: type[T], raw: Any, path: Path, source: Source) -> T | None:
    """`raw` as `kind`; None when something is wrong with it, which `source` then knows. A null value counts as absent.

    Unknown names are problems where the struct forbids them.
    """
    before = len(source.problems)
    cleaned = _walk(kind, raw, path, source)
    if len(source.problems) > before:
        return None
    try:
        return msgspec.convert(cleaned, type=kind)
    except msgspec.ValidationError as error:
        source.say(path, _lower(str(error)))
        return None


def lenient(kind: type[T], raw: Any, path: Path, source: Source) -> T:
    """`raw` as `kind` with defaults for what is wrong with it, which `source` then knows: further rules can be checked.

    Every field inside `kind` must have a default. List members keep their numbers.
    """
    return msgspec.convert(_walk(kind, raw, path, source), type=kind)


def _walk(kind: Any, raw: Any, path: Path, source: Source) -> Any:
    """`raw` without null and wrong values; its problems are told."""
    plain = _plain(kind)
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if _is_struct(plain):
        return _walk_struct(plain, raw, path, source)
    if origin in {list, Sequence} or (origin is tuple and arguments[1:] == (...,)):
        if not isinstance(raw, list):
            source.say(path, f"must be a list, not {_what(raw)}")
            return []
        members = (_walk(arguments[0], one, (*path, i), source) for i, one in enumerate(raw))
        return [member for member in members if member is not _WRONG]
    if origin in {dict, Mapping}:
        if not isinstance(raw, dict):
            source.say(path, f"must be a mapping, not {_what(raw)}")
            return {}
        pairs = ((key, _walk(arguments[1], one, (*path, key), source)) for key, one in raw.items())
        return {key: value for key, value in pairs if value is not _WRONG}
    return _walk_leaf(kind, plain, raw, path, source)


def _walk_struct(kind: type[msgspec.Struct], raw: Any, path: Path, source: Source) -> dict[str, Any]:
    if not isinstance(raw, dict):
        source.say(path, f"must be a mapping, not {_what(raw)}")
        return {}
    fields = _fields(kind)
    cleaned: dict[str, Any] = {}
    for name, value in raw.items():
        known = fields.get(name)
        if known is None:
            if kind.__struct_config__.forbid_unknown_fields:
                source.say((*path, name), f"is no known field{nearest(str(name), fields) or _known(fields)}")
        elif value is not None:
            cleaned[name] = _walk(known.type, value, (*path, name), source)
    for name, known in fields.items():
        if known.required and name not in cleaned:
            source.say((*path, name), "is missing")
    return {name: value for name, value in cleaned.items() if value is not _WRONG}


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """Fields by their name in a file; msgspec reads the annotations anew each time, which is slow."""
    return {one.encode_name: one for one in msgspec.structs.fields(kind)}


def _walk_leaf(kind: Any, plain: Any, raw: Any, path: Path, source: Source) -> Any:
    known = choices(plain)
    if known and str(raw) not in known:
        source.say(path, f"must be one of {', '.join(known)}, not {raw!r}{nearest(str(raw), known)}")
        return _WRONG
    try:
        msgspec.convert(raw, type=kind)
    except msgspec.ValidationError as error:
        shown = f" (it is {raw!r})" if isinstance(raw, (str, int, float)) else ""
        source.say(path, _lower(str(error)) + shown)
        return _WRONG
    return raw


def _plain(kind: Any) -> Any:
    """The type inside Annotated and beside None."""
    while True:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            kind = arguments[0]
        elif origin in {typing.Union, types.UnionType} and len(arguments) == 2 and types.NoneType in arguments:
            kind = next(one for one in arguments if one is not types.NoneType)
        else:
            return kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag is None


def _known(fields: Mapping[str, Any]) -> str:
    return f"; known: {', '.join(fields)}" if fields else "; there is none here"


def _lower(text: str) -> str:
    return f"is wrong: {text[:1].lower()}{text[1:]}"


def _what(raw: Any) -> str:
    if isinstance(raw, dict):
        return "a mapping"
    return "a list" if isinstance(raw, list) else repr(raw)
