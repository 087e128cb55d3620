"""The YAML file: plain data with the line of every key, and nothing that YAML 1.1 guesses.

Only what YAML 1.2 calls a truth value, null or number is one. `off` and `no` stay text, `1:30` is no number in base
60, `010` is ten and no octal, a date stays text; a key that stands twice is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from slacktide.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands under one key: a plain value, or a nested mapping of entries; with its line, from 1."""

    value: Any
    line: int


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalar rules of YAML 1.2 and without merge keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML reads it as a class attribute

    def whole(self, node: yaml.ScalarNode) -> int:
        return int(str(self.construct_scalar(node)), 10)

    def number(self, node: yaml.ScalarNode) -> float:
        return float(str(self.construct_scalar(node)))


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|)$"), ["~", "n", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.number)


def read(path: str) -> dict[str, Entry]:
    """Content of the settings file `path`. Raises SettingsError: missing, unreadable, no YAML, no mapping."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except UnicodeDecodeError as error:
        raise SettingsError([f"file {path}: is not UTF-8 text: {error.reason} at byte {error.start}"]) from error
    except OSError as error:
        raise SettingsError([f"file {path}: cannot be read: {error.strerror}; check --config"]) from error
    try:
        return _parse(path, text)
    except yaml.YAMLError as error:
        raise SettingsError([f"file {path}{_place(error)}: is not YAML: {_reason(error)}"]) from error
    except (ValueError, RecursionError) as error:
        raise SettingsError([f"file {path}: is not YAML that can be used: {error}"]) from error


def _parse(path: str, text: str) -> dict[str, Entry]:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
            return {}
        if not isinstance(node, yaml.MappingNode):
            kind = "a list" if isinstance(node, yaml.SequenceNode) else "text"
            raise SettingsError([f"file {path}: holds {kind}: expected a mapping, lines of `key: value`"])
        problems: list[str] = []
        entries = _mapping(loader, node, f"file {path}", problems)
        if problems:
            raise SettingsError(problems)
        return entries
    finally:
        loader.dispose()


def _mapping(loader: _Loader, node: yaml.MappingNode, where: str, problems: list[str]) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            problems.append(f"{where} line {line}: key {key!r} is no text")
        elif key in entries:
            problems.append(f"{where} line {line}: {key} stands here again, first in line {entries[key].line}")
        elif isinstance(value_node, yaml.MappingNode):
            entries[key] = Entry(_mapping(loader, value_node, where, problems), line)
        else:
            entries[key] = Entry(loader.construct_object(value_node, deep=True), line)
    return entries


def plain(value: Any) -> Any:
    """`value` of an entry without the line numbers."""
    if isinstance(value, dict):
        return {key: plain(entry.value) if isinstance(entry, Entry) else entry for key, entry in value.items()}
    return value


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f" line {mark.line + 1} column {mark.column + 1}" if mark is not None else ""


def _reason(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
