"""Nodes and pods of a cluster from files, as `kubectl get nodes,pods -A -o json` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from slacktide.errors import SlacktideError
from slacktide.objects import Node, Pod


class DumpError(SlacktideError):
    """A file that cannot be used; the text names file, place and remedy."""


@dataclass(slots=True)
class Dump:
    """What the files hold. `others` counts objects of other kinds, which are left out."""

    nodes: list[Node] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    others: int = 0


class _List(msgspec.Struct):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


class _Typed(msgspec.Struct):
    kind: str = ""


def read_dump(paths: Sequence[str]) -> Dump:
    """Read all files: a List, a NodeList, a PodList or one object each. Raises DumpError."""
    dump = Dump()
    for path in paths:
        try:
            with open(path, "rb") as file:
                _read(file.read(), path, dump)
        except OSError as error:
            raise DumpError(f"{path}: {error.strerror}") from error
    return dump


def _read(text: bytes, path: str, dump: Dump) -> None:
    try:
        whole = msgspec.json.decode(text, type=_List)
    except msgspec.MsgspecError as error:
        raise DumpError(f"{path}: not the JSON that kubectl get -o json writes: {error}") from error
    if whole.items is None:
        _add(text, whole.kind, f"{path}", dump)
        return
    # Lists of one kind leave the kind of their items out.
    default = whole.kind.removesuffix("List")
    for number, item in enumerate(whole.items):
        where = f"{path}: item {number}"
        try:
            kind = msgspec.json.decode(item, type=_Typed).kind or default
        except msgspec.MsgspecError as error:
            raise DumpError(f"{where}: {error}") from error
        _add(bytes(item), kind, where, dump)


def _add(text: bytes, kind: str, where: str, dump: Dump) -> None:
    try:
        if kind == "Node":
            dump.nodes.append(msgspec.json.decode(text, type=Node))
        elif kind == "Pod":
            dump.pods.append(msgspec.json.decode(text, type=Pod))
        else:
            dump.others += 1
    except msgspec.MsgspecError as error:
        raise DumpError(f"{where} ({kind}): {error}") from error
