"""Answers in the form that the client accepts: plain objects, metadata only, or tables for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from aiohttp import web

from standalone.api import tables
from standalone.api.errors import ApiError
from standalone.api.kinds import Kind
from standalone.api.negotiation import Form
from standalone.api.records import Record, typed

JSON = "application/json"


@dataclass(frozen=True)
class Renderer:
    """Renders records of one kind as `form`; `version` is that of meta.k8s.io, `include` says what a row embeds."""

    kind: Kind
    form: Form
    version: str
    include: str
    now: Callable[[], datetime]

    def one(self, record: Record, *, columns: bool = True) -> bytes:
        """A single object."""
        if self.form is Form.TABLE:
            return self.table([record], {"resourceVersion": str(record.version)}, columns=columns)
        if self.form in {Form.METADATA, Form.METADATA_LIST}:
            return msgspec.json.encode(tables.metadata_only(record, self.version, typed=True))
        return record.typed()

    def many(self, records: Sequence[Record], metadata: dict[str, Any]) -> bytes:
        """A list; `metadata` has resourceVersion, continue and remainingItemCount."""
        if self.form is Form.TABLE:
            return self.table(records, metadata)
        if self.form in {Form.METADATA, Form.METADATA_LIST}:
            items = [tables.metadata_only(record, self.version, typed=False) for record in records]
            kind, api = "PartialObjectMetadataList", f"meta.k8s.io/{self.version}"
            return msgspec.json.encode({"kind": kind, "apiVersion": api, "metadata": metadata, "items": items})
        head = {"kind": self.kind.list_kind, "apiVersion": self.kind.api_version, "metadata": metadata}
        return msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(record.body for record in records) + b"]}"

    def table(self, records: Sequence[Record], metadata: dict[str, Any], *, columns: bool = True) -> bytes:
        """A table for people."""
        table = tables.table(self.kind, records, self.now(), self.include, self.version)
        table["metadata"] = metadata
        if not columns:
            table["columnDefinitions"] = []
        return msgspec.json.encode(table)

    def bookmark(self, version: int, annotations: dict[str, str]) -> bytes:
        """The object of a BOOKMARK event."""
        metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        return typed(self.kind, msgspec.json.encode({"metadata": metadata}))


def reply(body: bytes, code: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=body, status=code, content_type=JSON)


def reply_json(body: Any, code: int = 200) -> web.Response:
    """A JSON answer from values."""
    return reply(msgspec.json.encode(body), code)


def reply_error(problem: ApiError) -> web.Response:
    """The Status of a failure, with Retry-After where there is one."""
    response = reply_json(problem.status(), problem.code)
    if problem.retry_after_seconds:
        response.headers["Retry-After"] = str(problem.retry_after_seconds)
    if problem.code == 401:
        response.headers["WWW-Authenticate"] = 'Basic realm="slacktide"'
    return response
