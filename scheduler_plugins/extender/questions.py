"""What filter and prioritize ask about: nodes by name or whole, read only as far as an answer needs it.

Thousands of names are most of a question, and most of an answer. They stay the bytes that came wherever they go back
as they came; and the list that filter gives back is what prioritize asks about next, so it is known by its bytes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import msgspec

from scheduler_plugins.extenders import wire
from slacktide.errors import SlacktideError
from slacktide.objects import Pod, View

_NOTHING: Final = b"null"
_KEPT_LISTS: Final = 16


class Unusable(SlacktideError):
    """A request that no scheduler sends; the text says what about it."""


class Question(wire.Message, frozen=True):
    """`wire.ExtenderArgs` with the nodes as they came."""

    pod: Pod | None = None
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
    """Nodes of a question: their names in order, and the bytes in which they came, one of the two null."""

    names: list[str]
    nodes: msgspec.Raw
    node_names: msgspec.Raw

    @property
    def whole(self) -> bool:
        """Whether the nodes themselves were sent."""
        return bytes(self.node_names) == _NOTHING


class NameLists:
    """The last lists of names that were sent or answered, by their JSON. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[bytes, list[str]] = {}

    def read(self, raw: bytes) -> list[str]:
        """The names; must not be changed. Raises WireError."""
        with self._lock:
            known = self._known.get(raw)
        return wire.decode(raw, list[str]) if known is None else known

    def keep(self, raw: bytes, names: list[str]) -> None:
        """Remember that `raw` reads as `names`; the oldest list is forgotten."""
        with self._lock:
            self._known[raw] = names
            while len(self._known) > _KEPT_LISTS:
                del self._known[next(iter(self._known))]


def asked(question: Question, lists: NameLists) -> Asked:
    """The nodes of a question. Raises Unusable, WireError."""
    by_name, whole = bytes(question.node_names), bytes(question.nodes)
    if by_name != _NOTHING:
        return Asked(lists.read(by_name), msgspec.Raw(_NOTHING), question.node_names)
    if whole == _NOTHING:
        raise Unusable("the request has neither Nodes nor NodeNames")
    names = [node.metadata.name for node in wire.decode(whole, _Nodes).items or ()]
    if "" in names:
        raise Unusable(f"Nodes.items[{names.index('')}] has no metadata.name")
    return Asked(names, question.nodes, msgspec.Raw(_NOTHING))


def filter_answer(
    asked: Asked, kept: list[str], failed: dict[str, str], unresolvable: dict[str, str], lists: NameLists
) -> bytes:
    """JSON of the answer of filter, in the form of the question: names by name, whole nodes by the very nodes."""
    nodes, names = asked.nodes, asked.node_names
    if len(kept) < len(asked.names):
        nodes = _only(asked, kept) if asked.whole else nodes
        names = names if asked.whole else msgspec.Raw(msgspec.json.encode(kept))
    if not asked.whole:
        lists.keep(bytes(names), kept)
    return wire.encode(
        FilterAnswer(nodes=nodes, node_names=names, failed_nodes=failed, failed_and_unresolvable_nodes=unresolvable)
    )


def _only(asked: Asked, kept: list[str]) -> msgspec.Raw:
    items = wire.decode(bytes(asked.nodes), wire.NodeList).items or ()
    wanted = set(kept)
    left = [node for node, name in zip(items, asked.names, strict=True) if name in wanted]
    return msgspec.Raw(msgspec.json.encode(wire.NodeList(items=left)))
