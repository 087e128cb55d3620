"""Manifests as people keep them: YAML or JSON, several documents in a file, directories of files, standard input.

A document is read as kubectl reads it: times, and numbers with colons, are text. What is not changed is written back
as it stood, comments included; PyYAML keeps no comments, so a document that is written anew has none.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import yaml

from slacktide.errors import ManifestError

STDIN: Final = "-"
_ENDINGS: Final = (".yaml", ".yml", ".json")
# At the beginning of a line it divides documents even within a block of text.
_DIVIDER: Final = re.compile(r"^---(?:[ \t].*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Document:
    """One document: its text as it stood, what it says (None for one that is empty), and where it is, for people."""

    text: str
    value: dict[str, Any] | None
    where: str


class _Loader(yaml.SafeLoader):
    """YAML as sigs.k8s.io/yaml reads it; a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        twice = next((key for at, key in enumerate(keys) if key in keys[:at]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Written as people write manifests: no anchors, scripts as blocks, lists below their key."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's signature
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - yaml's signature
        super().increase_indent(flow, False)


_NOT_SO_IN_KUBERNETES: Final = {"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NOT_SO_IN_KUBERNETES]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)\Z"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z|[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z"
    ),
    list("-+0123456789."),
)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def read(paths: Sequence[str]) -> Iterator[Document]:
    """All documents of files, of the manifests in directories, and of standard input (`-`). Raises ManifestError."""
    for path in paths:
        for name in _files(path):
            yield from documents(_content(name), "standard input" if name == STDIN else name)


def documents(text: str, where: str) -> Iterator[Document]:
    """The documents in `text`, YAML or JSON. Raises ManifestError with file and line."""
    if text.lstrip().startswith("{"):
        yield from _json(text, where)
        return
    starts = [0, *(match.start() for match in _DIVIDER.finditer(text) if match.start() > 0), len(text)]
    for start, end in itertools.pairwise(starts):
        line = text.count("\n", 0, start) + 1
        yield Document(text[start:end], _yaml(text[start:end], where, line), f"{where}, line {line}")


def dump(value: dict[str, Any]) -> str:
    """`value` as a YAML document without the line that divides it from others."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=sys.maxsize)


def _files(path: str) -> list[str]:
    if path == STDIN or not os.path.isdir(path):
        return [path]
    found = sorted(name for name in os.listdir(path) if name.endswith(_ENDINGS))
    if not found:
        raise ManifestError(f"{path} has no manifests ({', '.join(_ENDINGS)})")
    return [os.path.join(path, name) for name in found]


def _content(path: str) -> str:
    try:
        if path == STDIN:
            return sys.stdin.read()
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise ManifestError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ManifestError(f"{path} is no text in UTF-8") from None


def _yaml(text: str, where: str, line: int) -> dict[str, Any] | None:
    try:
        value = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader, stricter
        # The API speaks JSON: what contains itself, or is of a type of Python's, could not be sent.
        msgspec.json.encode(value)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = line + (mark.line if mark is not None else 0)
        raise ManifestError(f"{where}, line {at}: {error.problem or error.context}") from None
    except RecursionError:
        raise ManifestError(f"{where}, document at line {line}: it contains itself") from None
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ManifestError(f"{where}, document at line {line}: {error}") from None
    return _checked(value, f"{where}, line {line}")


def _json(text: str, where: str) -> Iterator[Document]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        begin = at + len(text[at:]) - len(text[at:].lstrip())
        try:
            value, at = decoder.raw_decode(text, begin)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ManifestError(f"{where}: {error}") from None
        place = f"{where}, line {text.count(chr(10), 0, begin) + 1}"
        yield Document(text[begin:at], _checked(value, place), place)


def _checked(value: Any, place: str) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ManifestError(f"{place}: a manifest is a mapping with apiVersion and kind")
    return value
