"""What can be set: the options of a settings class, read from its annotations, and their reference table."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all settings: immutable, every field has a default, unknown keys are errors.

    A field is `name: Annotated[type, Meta(ge=, le=, description=, extra={"reloadable": True})] = default`; `type`
    is bool, int, float, str, a Literal, an Enum, `| None` of one, a list, tuple or dict of one, a list or tuple of
    Settings (the file alone can hold it), or another Settings class (a group). The name carries the unit: `_seconds`,
    `_bytes`, `_millis`, `_ratio`, `_percent`. Rules that span fields go to `__post_init__`, which raises ValueError
    with a sentence.
    """


UNITS: Final = {
    "seconds": "seconds",
    "bytes": "bytes",
    "millis": "millicores",
    "ratio": "ratio",
    "percent": "percent",
    "days": "days",
    "hz": "Hz",
}
"""Last word of a field's name -> its unit."""

_BOUNDS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that can be set. `kind` is its plain type without None; `bounds` the rules of its Meta."""

    path: tuple[str, ...]
    kind: Any
    optional: bool
    default: Any
    bounds: dict[str, Any]
    description: str
    reloadable: bool
    unit: str

    @property
    def key(self) -> str:
        """Dotted key, as in the file: `report.spool_bytes`."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """`--report.spool-bytes`."""
        return "--" + self.key.replace("_", "-")

    def env(self, component: str) -> str:
        """`SLACKTIDE_AGENT_REPORT__SPOOL_BYTES` for component `agent`."""
        return env_prefix(component) + "__".join(self.path).upper()

    @property
    def choices(self) -> tuple[str, ...]:
        """Known values of a Literal or Enum, as text; empty for any other kind."""
        return choices(self.kind)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the reference table, all as text for people."""

    key: str
    type: str
    unit: str
    range: str
    default: str
    reloadable: bool
    description: str


def env_prefix(component: str) -> str:
    """`SLACKTIDE_AGENT_` for component `agent`."""
    return f"SLACKTIDE_{component.upper().replace('-', '_')}_"


def choices(kind: Any) -> tuple[str, ...]:
    """Known values of a Literal or Enum type, as text; empty for any other type."""
    if typing.get_origin(kind) is Literal:
        return tuple(str(value) for value in typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(str(member.value) for member in kind.__members__.values())
    return ()


def options(settings_type: type[Settings]) -> tuple[Option, ...]:
    """All options of `settings_type`, groups included, in the order they are declared."""
    return tuple(_options(settings_type, ()))


def describe(settings_type: type[Settings]) -> list[Row]:
    """Reference table of `settings_type`: every setting with unit, range, default and what it does."""
    return [
        Row(
            key=option.key,
            type=type_name(option.kind) + (" or nothing" if option.optional else ""),
            unit=option.unit,
            range=", ".join(option.choices) or range_text(option.bounds),
            default=value_text(option.default),
            reloadable=option.reloadable,
            description=option.description,
        )
        for option in options(settings_type)
    ]


def range_text(bounds: dict[str, Any]) -> str:
    """The rules of an option in words, without unit: `0.1 to 60`; empty when anything goes."""
    if "ge" in bounds and "le" in bounds:
        parts = [f"{bounds['ge']} to {bounds['le']}"]
    else:
        words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
        parts = [f"{word} {bounds[name]}" for name, word in words.items() if name in bounds]
    if "multiple_of" in bounds:
        parts.append(f"a multiple of {bounds['multiple_of']}")
    if "min_length" in bounds:
        parts.append("not empty" if bounds["min_length"] == 1 else f"at least {bounds['min_length']} long")
    if "max_length" in bounds:
        parts.append(f"at most {bounds['max_length']} long")
    if "pattern" in bounds:
        parts.append(f"matches {bounds['pattern']}")
    return ", ".join(parts)


def value_text(value: Any) -> str:
    """A value as it would be written in a flag."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, dict):
        return ",".join(f"{key}={value_text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(value_text(item) for item in value)
    return str(value)


def type_name(kind: Any) -> str:
    """Name of an option's type for people."""
    if choices(kind):
        return "choice"
    origin = typing.get_origin(kind)
    if origin is dict:
        return "mapping"
    if origin in {list, tuple, set, frozenset}:
        return "list"
    names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return names.get(kind, str(kind))


def is_group(kind: Any) -> bool:
    """Whether a field's type is a group of settings."""
    return isinstance(kind, type) and issubclass(kind, Settings)


def _options(settings_type: type[Settings], prefix: tuple[str, ...]) -> Iterator[Option]:
    for field in msgspec.structs.fields(settings_type):
        path = (*prefix, field.name)
        plain, metas = _peel(field.type)
        if is_group(plain):
            yield from _options(plain, path)
            continue
        kind, optional, inner = _without_none(plain)
        extra: dict[str, Any] = {}
        description = ""
        for meta in (*metas, *inner):
            extra.update(meta.extra or {})
            description = meta.description or description
        yield Option(
            path=path,
            kind=kind,
            optional=optional,
            default=_default(settings_type, field),
            bounds=_rules((*metas, *inner)),
            description=description,
            reloadable=bool(extra.get("reloadable", False)),
            unit=str(extra.get("unit", UNITS.get(field.name.rpartition("_")[2], ""))),
        )


def element(option: Option, annotation: Any) -> Option:
    """`option` as it holds for one member of its list or mapping: the member's own type and rules."""
    kind, metas = _peel(annotation)
    return replace(option, kind=kind, optional=False, bounds=_rules(metas))


def _rules(metas: Iterable[msgspec.Meta]) -> dict[str, Any]:
    return {name: getattr(meta, name) for meta in metas for name in _BOUNDS if getattr(meta, name) is not None}


def _default(settings_type: type[Settings], field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    raise TypeError(f"{settings_type.__name__}.{field.name} has no default: a setting always has one")


def _peel(annotation: Any) -> tuple[Any, tuple[msgspec.Meta, ...]]:
    """Type and Metas of an `Annotated`, however deep."""
    metas: list[msgspec.Meta] = []
    while typing.get_origin(annotation) is typing.Annotated:
        annotation, *extras = typing.get_args(annotation)
        metas += [extra for extra in extras if isinstance(extra, msgspec.Meta)]
    return annotation, tuple(metas)


def _without_none(kind: Any) -> tuple[Any, bool, tuple[msgspec.Meta, ...]]:
    """The type beside None in a union, whether None is allowed, and the Metas inside the union."""
    if typing.get_origin(kind) not in {typing.Union, types.UnionType}:
        return kind, False, ()
    others = [member for member in typing.get_args(kind) if member is not types.NoneType]
    if len(others) != 1 or len(others) == len(typing.get_args(kind)):
        raise TypeError(f"{kind} cannot be a setting: only a union with None can")
    inner, metas = _peel(others[0])
    return inner, True, metas
