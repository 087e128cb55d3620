"""The YAML file: plain data with the line of every key, and nothing that YAML 1.1 guesses.

Only what YAML 1.2 calls a truth value, null or number is one. `off` and `no` stay text, `1:30` is no number in base
60, `010` is ten and no octal, a date stays text; a key that stands twice is an error.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import yaml

from slacktide.errors import SettingsError

T = TypeVar("T")

Path = tuple[str | int, ...]
"""Where a value stands in a file: keys of mappings and numbers of list members, from the root."""

_MOST_VALUES: Final = 100_000


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
    where = f"file {path}"
    return _parse(where, _text(path, "--config"), lambda loader, node, said: _mapping(loader, node, where, said)) or {}


@dataclass(frozen=True, slots=True)
class Document:
    """A file as plain data, and the line of each key and list member by its path, from 1; JSON has no lines."""

    data: dict[str, Any]
    lines: Mapping[Path, int]


def document(path: str, setting: str) -> Document:
    """Content of the YAML or JSON file `path` that `setting` names, with whatever lists of mappings it has.

    Raises SettingsError: missing, unreadable, neither YAML nor JSON, no mapping, a key twice.
    """
    where, text = f"file {path}", _text(path, setting)
    if text.lstrip().startswith("{"):
        # YAML knows no tabs between tokens, and JSON may have them.
        with contextlib.suppress(json.JSONDecodeError):
            return Document(_from_json(where, text), {})
    lines: dict[Path, int] = {}
    data = _parse(where, text, lambda loader, node, said: _plain(loader, node, (), where, lines, said))
    return Document(data or {}, lines)


def _text(path: str, setting: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise SettingsError([f"file {path}: is not UTF-8 text: {error.reason} at byte {error.start}"]) from error
    except OSError as error:
        raise SettingsError([f"file {path}: cannot be read: {error.strerror}; check {setting}"]) from error


def _parse(where: str, text: str, build: Callable[[_Loader, yaml.MappingNode, list[str]], T]) -> T | None:
    """What `build` makes of the mapping in `text`, None when the file is empty; `build` appends what is wrong."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None or (isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"):
            return None
        if not isinstance(node, yaml.MappingNode):
            kind = "a list" if isinstance(node, yaml.SequenceNode) else "text"
            raise SettingsError([f"{where}: holds {kind}: expected a mapping, lines of `key: value`"])
        problems: list[str] = []
        built = build(loader, node, problems)
    except yaml.YAMLError as error:
        raise SettingsError([f"{where}{_place(error)}: is not YAML: {_reason(error)}"]) from error
    except (ValueError, RecursionError) as error:
        raise SettingsError([f"{where}: is not YAML that can be used: {error}"]) from error
    finally:
        if loader is not None:
            loader.dispose()
    if problems:
        raise SettingsError(problems)
    return built


def _from_json(where: str, text: str) -> dict[str, Any]:
    problems: list[str] = []

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        problems.extend(f"{where}: {name} stands twice in one object" for name in set(names) if names.count(name) > 1)
        return dict(pairs)

    try:
        data: dict[str, Any] = json.loads(text, object_pairs_hook=once)
    except RecursionError as error:
        raise SettingsError([f"{where}: is not JSON that can be used: {error}"]) from error
    if problems:
        raise SettingsError(sorted(problems))
    return data


def _plain(
    loader: _Loader, node: yaml.Node, path: Path, where: str, lines: dict[Path, int], problems: list[str]
) -> Any:
    if len(lines) > _MOST_VALUES:
        raise ValueError(f"it holds more than {_MOST_VALUES} values; do its aliases multiply?")
    if isinstance(node, yaml.SequenceNode):
        members = []
        for i, member in enumerate(node.value):
            lines[*path, i] = member.start_mark.line + 1
            members.append(_plain(loader, member, (*path, i), where, lines, problems))
        return members
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node, deep=True)
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            problems.append(f"{where} line {line}: key {key!r} is no text")
        elif key in found:
            problems.append(f"{where} line {line}: {key} stands here again, first in line {lines[*path, key]}")
        else:
            lines[*path, key] = line
            found[key] = _plain(loader, value_node, (*path, key), where, lines, problems)
    return found


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
