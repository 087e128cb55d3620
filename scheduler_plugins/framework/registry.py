"""Registry: plugin name -> how to make it, with typed settings."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from scheduler_plugins.framework.interfaces import Handle, Plugin
from slacktide.errors import SettingsError


class NoArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a plugin that has none."""


A = TypeVar("A", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Entry(Generic[A]):
    """One registered plugin: its settings type, and the factory that takes them and the host's handle."""

    name: str
    args: type[A]
    make: Callable[[A, Handle], Plugin]

    def build(self, raw: Mapping[str, Any], handle: Handle) -> Plugin:
        """Make the plugin. Raises SettingsError for arguments that do not fit."""
        try:
            args = msgspec.convert(dict(raw), type=self.args, strict=False)
        except msgspec.ValidationError as error:
            known = ", ".join(field.encode_name for field in msgspec.structs.fields(self.args)) or "none"
            raise SettingsError([f"arguments of plugin {self.name}: {error} (known arguments: {known})"]) from error
        return self.make(args, handle)


class Registry:
    """All plugins that a profile may name."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry[Any]] = {}

    def register(self, name: str, make: Callable[[A, Handle], Plugin], args: type[A]) -> None:
        """Add a plugin. Raises ValueError for a name that is taken."""
        if name in self._entries:
            raise ValueError(f"plugin {name} is registered twice")
        self._entries[name] = Entry(name, args, make)

    def names(self) -> tuple[str, ...]:
        """Registered names in the order of registration."""
        return tuple(self._entries)

    def entry(self, name: str) -> Entry[Any] | None:
        """What was registered under `name`."""
        return self._entries.get(name)

    def unknown(self, name: str) -> str:
        """Sentence about a name that nobody registered, with the nearest and all known ones."""
        near = difflib.get_close_matches(name, self._entries, n=1)
        hint = f", did you mean {near[0]}?" if near else "."
        return f"there is no scheduler plugin {name!r}{hint} Known: {', '.join(sorted(self._entries))}"

    def build(self, name: str, raw: Mapping[str, Any], handle: Handle) -> Plugin:
        """Make plugin `name`. Raises SettingsError for an unknown name or for arguments that do not fit."""
        entry = self._entries.get(name)
        if entry is None:
            raise SettingsError([self.unknown(name)])
        return entry.build(raw, handle)
