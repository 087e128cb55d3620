"""Nodes and pods of a cluster from files, as `kubectl get nodes,pods -A -o json` writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from slacktide.errors import SlacktideError
from slacktide.objects import Node, Pod, pod_key


class DumpError(SlacktideError):
    """A file that cannot be used; the text names file, place and remedy."""


@dataclass(frozen=True, slots=True)
class Other:
    """An object of another kind, as JSON; `where` it stands, for messages."""

    api_version: str
    kind: str
    text: bytes
    where: str


@dataclass(slots=True)
class Dump:
    """What the files hold; `rest` are objects of other kinds, which nobody has read yet."""

    nodes: list[Node] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    rest: list[Other] = field(default_factory=list)

    @property
    def others(self) -> int:
        """How many objects are neither nodes nor pods."""
        return len(self.rest)


class _List(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    items: list[msgspec.Raw] | None = None


class _Typed(msgspec.Struct, rename="camel"):
    api_version: str = ""
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


def distinct(pods: Iterable[Pod]) -> Iterable[Pod]:
    """Each pod of several files once, as the last one has it; with a namespace and a uid, which may be left out."""
    return {pod_key(pod): pod for pod in map(_named, pods)}.values()


def _named(pod: Pod) -> Pod:
    metadata = pod.metadata
    namespace = metadata.namespace or "default"
    uid = metadata.uid or f"dump:{namespace}/{metadata.name}"
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(metadata, namespace=namespace, uid=uid))


def _read(text: bytes, path: str, dump: Dump) -> None:
    try:
        whole = msgspec.json.decode(text, type=_List)
    except msgspec.MsgspecError as error:
        raise DumpError(f"{path}: not the JSON that kubectl get -o json writes: {error}") from error
    if whole.items is None:
        _add(text, _Typed(whole.api_version, whole.kind), f"{path}", dump)
        return
    # Lists of one kind leave version and kind of their items out.
    default = whole.kind.removesuffix("List")
    for number, item in enumerate(whole.items):
        where = f"{path}: item {number}"
        try:
            typed = msgspec.json.decode(item, type=_Typed)
        except msgspec.MsgspecError as error:
            raise DumpError(f"{where}: {error}") from error
        known = _Typed(typed.api_version or whole.api_version, typed.kind or default)
        _add(bytes(item), known, where, dump)


def _add(text: bytes, typed: _Typed, where: str, dump: Dump) -> None:
    try:
        if typed.kind == "Node":
            dump.nodes.append(msgspec.json.decode(text, type=Node))
        elif typed.kind == "Pod":
            dump.pods.append(msgspec.json.decode(text, type=Pod))
        else:
            dump.rest.append(Other(typed.api_version, typed.kind, text, where))
    except msgspec.MsgspecError as error:
        raise DumpError(f"{where} ({typed.kind}): {error}") from error
