"""JSON of the API to views and back."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, Final, Generic

import msgspec

from slacktide.cluster.errors import Unreadable
from slacktide.cluster.kinds import Kind, T
from slacktide.objects import ObjectMeta, View


class ListMeta(msgspec.Struct, frozen=True, kw_only=True):
    """metadata of a list."""

    resource_version: str = msgspec.field(default="", name="resourceVersion")
    continue_: str = msgspec.field(default="", name="continue")


class _RawList(msgspec.Struct, frozen=True, kw_only=True):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class _OnlyMetadata(msgspec.Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()


@dataclass(frozen=True)
class Page(Generic[T]):
    """One answer of a list. `continue_` is "" on the last page; `skipped` counts items that no view could read."""

    items: list[T]
    resource_version: str
    continue_: str
    skipped: int


_RAW_LIST: Final = msgspec.json.Decoder(_RawList)
_ONLY_METADATA: Final = msgspec.json.Decoder(_OnlyMetadata)


class Codec(Generic[T]):
    """Decoders for one kind."""

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind
        self._one: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind.view)
        page = msgspec.defstruct(
            f"{kind.kind}List",
            [("metadata", ListMeta, ListMeta()), ("items", types.GenericAlias(list, (kind.view,)) | None, None)],
        )
        self._page: msgspec.json.Decoder[Any] = msgspec.json.Decoder(page)

    def one(self, body: bytes | msgspec.Raw) -> T:
        """An object. Raises Unreadable where the JSON is broken or does not fit the view."""
        try:
            return self._one.decode(body)
        except msgspec.MsgspecError as error:
            raise Unreadable(f"the server's {self._kind.kind} cannot be read: {error}") from error

    def metadata_only(self, body: bytes | msgspec.Raw) -> T:
        """The object with nothing but its metadata, for bookmarks and for what `one` cannot read."""
        try:
            metadata = _ONLY_METADATA.decode(body).metadata
        except msgspec.MsgspecError as error:
            raise Unreadable(f"the server's {self._kind.kind} has no readable metadata: {error}") from error
        return msgspec.convert({"metadata": metadata}, self._kind.view)

    def page(self, body: bytes) -> Page[T]:
        """One page of a list; an item that does not fit the view is left out and counted.

        One odd object, which any user of the cluster may create, must not blind us to all others.
        """
        try:
            whole = self._page.decode(body)
        except msgspec.ValidationError:
            return self._page_item_by_item(body)
        except msgspec.MsgspecError as error:
            raise Unreadable(f"the server's {self._kind.kind}List cannot be read: {error}") from error
        return Page(whole.items or [], whole.metadata.resource_version, whole.metadata.continue_, 0)

    def _page_item_by_item(self, body: bytes) -> Page[T]:
        try:
            raw = _RAW_LIST.decode(body)
        except msgspec.MsgspecError as error:
            raise Unreadable(f"the server's {self._kind.kind}List cannot be read: {error}") from error
        items = []
        for item in raw.items or []:
            try:
                items.append(self._one.decode(item))
            except msgspec.MsgspecError:
                continue
        skipped = len(raw.items or []) - len(items)
        return Page(items, raw.metadata.resource_version, raw.metadata.continue_, skipped)


_CODECS: Final[dict[Kind[Any], Codec[Any]]] = {}


def codec(kind: Kind[T]) -> Codec[T]:
    """The codec of a kind, made once."""
    found = _CODECS.get(kind)
    if found is None:
        found = _CODECS.setdefault(kind, Codec(kind))
    return found


def encode(body: object) -> bytes:
    """JSON of a body: a dict, a list (JSON patch) or a view."""
    return msgspec.json.encode(body)


def as_dict(kind: Kind[Any], body: dict[str, Any] | View) -> dict[str, Any]:
    """A body to send as a whole object: a view leaves defaults out, so its apiVersion and kind are put back."""
    content = dict(body) if isinstance(body, dict) else msgspec.to_builtins(body)
    content.setdefault("apiVersion", kind.api_version)
    content.setdefault("kind", kind.kind)
    return content


def decode_dict(body: bytes) -> dict[str, Any]:
    """A JSON object with every field as it came. Raises Unreadable."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise Unreadable(f"the server's answer is no JSON object: {error}") from error
