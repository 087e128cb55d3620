"""What filter and prioritize ask about: nodes by name or whole, read only as far as an answer needs it.

Thousands of names are most of a question, and most of an answer. They stay the bytes that came wherever they go back
as they came; and what filter gives back is what prioritize asks about next, for the same pod: both are known by their
bytes then.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from scheduler_plugins.extender.judge import Answer, Found
from scheduler_plugins.extenders import wire
from scheduler_plugins.framework.pod_info import PodInfo, PodReader
from slacktide.errors import SlacktideError
from slacktide.objects import Pod, View

K = TypeVar("K")
T = TypeVar("T")

_NOTHING: Final = b"null"
_KEPT_LISTS: Final = 16
_KEPT_PODS: Final = 64
_ENDS: Final = 256


class Unusable(SlacktideError):
    """A request that no scheduler sends; the text says what about it."""


class Question(wire.Message, frozen=True):
    """`wire.ExtenderArgs` with pod and nodes as they came."""

    pod: msgspec.Raw = msgspec.Raw(_NOTHING)
    nodes: msgspec.Raw = msgspec.Raw(_NOTHING)
    node_names: msgspec.Raw = msgspec.Raw(_NOTHING)


class FilterAnswer(wire.Message, frozen=True):
    """`wire.ExtenderFilterResult` with the nodes as they go."""

    nodes: msgspec.Raw
    node_names: msgspec.Raw
    failed_nodes: dict[str, str]
    failed_and_unresolvable_nodes: dict[str, str]
    error: str = ""


class _Named(View, frozen=True):
    name: str = ""


class _Node(View, frozen=True):
    metadata: _Named = _Named()


class _Nodes(View, frozen=True):
    items: list[_Node] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Nodes of a question: their names in order, and the JSON in which they came: of whole nodes, or of names.

    `found` is what is known of the names from an earlier question.
    """

    names: list[str]
    raw: bytes
    whole: bool
    found: Found | None = None


class Memory:
    """The last pods and lists of names, by their JSON. Safe for many threads."""

    def __init__(self, reader: PodReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._lists: dict[tuple[int, bytes, bytes], tuple[bytes, list[str], Found]] = {}
        self._pods: dict[bytes, PodInfo] = {}

    def pod(self, raw: bytes) -> PodInfo:
        """The pod. Raises Unusable, WireError."""
        known = self._pods.get(raw)
        if known is not None:
            return known
        info = self.checked(wire.decode(raw, Pod) if raw != _NOTHING else None)
        with self._lock:
            _put(self._pods, raw, info, _KEPT_PODS)
        return info

    def checked(self, pod: Pod | None) -> PodInfo:
        """What placement needs to know of a pod. Raises Unusable."""
        if pod is None:
            raise Unusable("the request has no Pod")
        if not pod.metadata.name:
            raise Unusable("the Pod of the request has no metadata.name")
        return self._reader.read(pod)

    def names(self, raw: bytes) -> tuple[list[str], Found | None]:
        """The names, which must not be changed, and their rows if these are known. Raises WireError."""
        known = self._lists.get(_short(raw))
        if known is not None and known[0] == raw:
            return known[1:]
        return wire.decode(raw, list[str]), None

    def keep(self, raw: bytes, names: list[str], found: Found) -> None:
        """Remember that `raw` reads as `names`, and where these are."""
        with self._lock:
            _put(self._lists, _short(raw), (raw, names, found), _KEPT_LISTS)


def _short(raw: bytes) -> tuple[int, bytes, bytes]:
    """Tells most lists apart; to hash one of thousands of names takes longer than to compare two."""
    return len(raw), raw[:_ENDS], raw[-_ENDS:]


def _put(kept: dict[K, T], key: K, value: T, most: int) -> None:
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]


def asked(question: Question, memory: Memory) -> Asked:
    """The nodes of a question. Raises Unusable, WireError."""
    by_name, whole = bytes(question.node_names), bytes(question.nodes)
    if by_name != _NOTHING:
        names, found = memory.names(by_name)
        return Asked(names, by_name, False, found)
    if whole == _NOTHING:
        raise Unusable("the request has neither Nodes nor NodeNames")
    names = [node.metadata.name for node in wire.decode(whole, _Nodes).items or ()]
    if "" in names:
        raise Unusable(f"Nodes.items[{names.index('')}] has no metadata.name")
    return Asked(names, whole, True)


def filter_answer(asked: Asked, answer: Answer, memory: Memory) -> bytes:
    """JSON of the answer of filter, in the form of the question: names by name, whole nodes by the very nodes."""
    raw = asked.raw
    if len(answer.kept) < len(asked.names):
        raw = _only(asked, answer.kept) if asked.whole else msgspec.json.encode(answer.kept)
    if not asked.whole and answer.found is not None:
        memory.keep(raw, answer.kept, answer.found)
    nothing, left = msgspec.Raw(_NOTHING), msgspec.Raw(raw)
    return wire.encode(
        FilterAnswer(
            nodes=left if asked.whole else nothing,
            node_names=nothing if asked.whole else left,
            failed_nodes=answer.failed,
            failed_and_unresolvable_nodes=answer.unresolvable,
        )
    )


def _only(asked: Asked, kept: list[str]) -> bytes:
    items = wire.decode(asked.raw, wire.NodeList).items or ()
    wanted = set(kept)
    left = [node for node, name in zip(items, asked.names, strict=True) if name in wanted]
    return msgspec.json.encode(wire.NodeList(items=left))
