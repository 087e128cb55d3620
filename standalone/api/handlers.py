"""Verbs on resources: from an HTTP request to a decision on the store, and back to an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from slacktide.objects import ObjectMeta, ObjectReference, View
from standalone.api import (
    admission,
    defaults,
    errors,
    fieldcheck,
    negotiation,
    patches,
    podactions,
    queries,
    settle,
    writes,
)
from standalone.api.kinds import NAMESPACES, Kind
from standalone.api.listing import Listing
from standalone.api.logservice import LogService
from standalone.api.negotiation import Form
from standalone.api.paths import Target
from standalone.api.records import Key, Record
from standalone.api.replies import JSON, Renderer, reply, reply_json
from standalone.api.store import Store, Transaction

Json = dict[str, Any]

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"


class Handlers:
    """Answers requests to the resources that are served."""

    def __init__(self, store: Store, listing: Listing, logs: LogService, world: writes.World) -> None:
        self._store = store
        self._listing = listing
        self._logs = logs
        self._world = world

    async def answer(self, target: Target, request: web.Request) -> web.StreamResponse:
        """Answer one request; ApiError when it is refused."""
        method = "GET" if request.method == "HEAD" else request.method
        if target.bindings:
            return await self._bind(target, request) if method == "POST" else _refuse()
        if target.subresource:
            return await self._subresource(method, target, request)
        if target.name:
            return await self._object(method, target, request)
        match method:
            case "GET":
                return await self._read_collection(target, request)
            case "POST":
                return await self._create(target, request)
            case "DELETE":
                return await self._delete_collection(target, request)
        return _refuse()

    async def _object(self, method: str, target: Target, request: web.Request) -> web.StreamResponse:
        match method:
            case "GET":
                return self._get(target, request)
            case "PUT":
                return await self._replace(target, request, status=False)
            case "PATCH":
                return await self._patch(target, request, status=False)
            case "DELETE":
                return await self._delete(target, request)
        return _refuse()

    async def _subresource(self, method: str, target: Target, request: web.Request) -> web.StreamResponse:
        match target.subresource, method:
            case "status", "GET":
                return self._get(target, request)
            case "status", "PUT":
                return await self._replace(target, request, status=True)
            case "status", "PATCH":
                return await self._patch(target, request, status=True)
            case "binding", "POST":
                return await self._bind(target, request)
            case "eviction", "POST":
                return await self._evict(target, request)
            case "log", "GET":
                return await self._logs.answer(target.namespace or "", target.name, request)
        return _refuse()

    def _renderer(self, kind: Kind, request: web.Request) -> Renderer:
        form, version = negotiation.accepted(request.headers.get("Accept", ""))
        if form is Form.DISCOVERY:
            raise negotiation.refused()
        include = request.query.get("includeObject", "Metadata")
        return Renderer(kind, form, version, include, self._world.now)

    def _get(self, target: Target, request: web.Request) -> web.Response:
        renderer = self._renderer(target.kind, request)
        wanted = queries.version(request.query)
        if wanted is not None and wanted > self._store.version:
            raise errors.too_large_version(wanted, self._store.version)
        record = self._store.get(_key(target))
        if record is None:
            raise errors.not_found(target.kind.target(target.name))
        return reply(renderer.one(record))

    async def _read_collection(self, target: Target, request: web.Request) -> web.StreamResponse:
        renderer = self._renderer(target.kind, request)
        if queries.boolean(request.query, "watch"):
            return await self._listing.watch(target, request, renderer)
        return self._listing.answer(target, request, renderer)

    async def _create(self, target: Target, request: web.Request) -> web.Response:
        renderer = self._renderer(target.kind, request)
        if target.kind.namespaced and target.namespace is None:
            return _refuse()
        obj = writes.decode_body(target.kind, await _body(request))
        if await _strict(request):
            fieldcheck.refuse(target.kind, fieldcheck.unknown_fields(target.kind, obj))
        record = await self._store.decide(
            lambda transaction: writes.create(transaction, self._world, target.kind, target.namespace or "", obj),
            dry_run=_dry(request),
        )
        return reply(renderer.one(record), 201)

    async def _replace(self, target: Target, request: web.Request, *, status: bool) -> web.Response:
        renderer, kind = self._renderer(target.kind, request), target.kind
        obj = writes.decode_body(kind, await _body(request))
        _named(obj, target.name)
        if await _strict(request):
            fieldcheck.refuse(kind, fieldcheck.unknown_fields(kind, obj))

        def decision(transaction: Transaction) -> tuple[Record, int]:
            old = transaction.get(_key(target))
            if old is None and kind.create_on_update and not status:
                return writes.create(transaction, self._world, kind, target.namespace or "", obj), 201
            if old is None:
                raise errors.not_found(kind.target(target.name))
            if not kind.unconditional and not obj["metadata"].get("resourceVersion"):
                cause = errors.invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
                raise errors.invalid(kind.target(target.name), [cause])
            return writes.update(transaction, kind, old, obj, status=status), 200

        record, code = await self._store.decide(decision, dry_run=_dry(request))
        return reply(renderer.one(record), code)

    async def _patch(self, target: Target, request: web.Request, *, status: bool) -> web.Response:
        renderer, kind = self._renderer(target.kind, request), target.kind
        apply_patch = _patcher(request.content_type)
        patch, strict = await _json(request), await _strict(request)

        def decision(transaction: Transaction) -> Record:
            old = transaction.get(_key(target))
            if old is None:
                raise errors.not_found(kind.target(target.name))
            before = {"kind": kind.kind, "apiVersion": kind.api_version, **old.object()}
            # What the patch itself does not say about the version is no precondition.
            found = before["metadata"].pop("resourceVersion")
            if request.content_type == JSON_PATCH:
                before["metadata"]["resourceVersion"] = found
            obj = writes.decode_body(kind, _patched(apply_patch, before, patch))
            if strict:
                known = set(fieldcheck.unknown_fields(kind, before))
                fieldcheck.refuse(kind, [path for path in fieldcheck.unknown_fields(kind, obj) if path not in known])
            return writes.update(transaction, kind, old, obj, status=status)

        return reply(renderer.one(await self._store.decide(decision, dry_run=_dry(request))))

    async def _delete(self, target: Target, request: web.Request) -> web.Response:
        renderer, kind = self._renderer(target.kind, request), target.kind
        options = queries.delete_options(await _body(request), request.query, request.query.getall("dryRun", []))
        admission.may_delete(kind, target.name)

        def decision(transaction: Transaction) -> tuple[Record, bool]:
            record = transaction.get(_key(target))
            if record is None:
                raise errors.not_found(kind.target(target.name))
            return self._delete_one(transaction, kind, record, options)

        record, gone = await self._store.decide(decision, dry_run=options.dry_run)
        if gone and not kind.returns_deleted:
            uid = record.object()["metadata"]["uid"]
            return reply_json(errors.success(kind.target(target.name), uid))
        return reply(renderer.one(record))

    def _delete_one(
        self, transaction: Transaction, kind: Kind, record: Record, options: writes.DeleteOptions
    ) -> tuple[Record, bool]:
        if kind is NAMESPACES:
            writes.check_delete(kind, record.object()["metadata"], options)
            return settle.delete_namespace(transaction, self._world, record), False
        return writes.delete(transaction, self._world, kind, record, options)

    async def _delete_collection(self, target: Target, request: web.Request) -> web.Response:
        renderer, kind = self._renderer(target.kind, request), target.kind
        if kind is NAMESPACES or (kind.namespaced and target.namespace is None):
            return _refuse()
        options = queries.delete_options(await _body(request), request.query, request.query.getall("dryRun", []))
        chosen = [record.key for record in self._listing.select(target, request)]

        def decision(transaction: Transaction) -> list[Record]:
            found = [record for record in map(transaction.get, chosen) if record is not None]
            return [writes.delete(transaction, self._world, kind, record, options)[0] for record in found]

        records = await self._store.decide(decision, dry_run=options.dry_run)
        return reply(renderer.many(records, {"resourceVersion": str(self._store.version)}))

    async def _bind(self, target: Target, request: web.Request) -> web.Response:
        binding = await read_action(request, "Binding", "v1", target.name)
        name, namespace = target.name or str(binding["metadata"].get("name", "")), target.namespace or ""
        await self._store.decide(
            lambda transaction: podactions.bind(transaction, self._world, namespace, name, binding),
            dry_run=_dry(request),
        )
        return reply_json(errors.success(code=201), 201)

    async def _evict(self, target: Target, request: web.Request) -> web.Response:
        eviction = await read_action(request, "Eviction", "policy/v1", target.name)
        asked = eviction.get("deleteOptions") or {}
        options = queries.delete_options(asked, {}, [])
        if request.query.getall("dryRun", []) and asked.get("dryRun", ["All"]) != ["All"]:
            raise errors.bad_request("Non-matching dry-run options in request and content: [All] and []")
        dry = options.dry_run or _dry(request)
        await self._store.decide(
            lambda transaction: podactions.evict(
                transaction, self._world, target.namespace or "", target.name, options
            ),
            dry_run=dry,
        )
        return reply_json(errors.success(code=201), 201)


def _refuse() -> web.Response:
    raise errors.method_not_allowed()


def _key(target: Target) -> Key:
    return Key(target.kind.resource, target.namespace or "", target.name)


def _dry(request: web.Request) -> bool:
    return queries.dry_run(request.query.getall("dryRun", []))


async def _strict(request: web.Request) -> bool:
    """Whether unknown fields are refused; if so what is known has been loaded."""
    strict = fieldcheck.is_strict(request.query.get("fieldValidation", ""))
    if strict:
        await asyncio.to_thread(fieldcheck.models)
    return strict


def _named(obj: Json, name: str) -> None:
    """A PUT names its object in the body too, or leaves it out; ApiError 400 when the names differ."""
    metadata = obj["metadata"]
    found = metadata.get("name", "") if isinstance(metadata, dict) else ""
    if not found and isinstance(metadata, dict):
        metadata["name"] = name
    elif found != name:
        raise errors.bad_request(f"the name of the object ({found}) does not match the name on the URL ({name})")


async def _json(request: web.Request) -> Any:
    """The decoded body; ApiError 400 for text that is no JSON."""
    text = await request.read()
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise errors.bad_request(f"the body is no JSON: {problem}") from None


async def _body(request: web.Request) -> Json:
    """The object in the body, {} when there is none; ApiError 400 or 415."""
    if not request.can_read_body:
        return {}
    if request.content_type not in {JSON, "application/octet-stream"}:
        what = f"the body of the request was in an unknown format - accepted media types include: {JSON}"
        raise errors.unsupported_media_type(what)
    if not await request.read():
        return {}
    found = await _json(request)
    if not isinstance(found, dict):
        raise errors.bad_request("the body must be an object")
    return found


class _ActionShape(View, frozen=True):
    """JSON types of the parts of a Binding or Eviction that are read."""

    metadata: ObjectMeta = ObjectMeta()
    target: ObjectReference = ObjectReference()


async def read_action(
    request: web.Request, kind: str, api_version: str, name: str, shape: type[View] = _ActionShape
) -> Json:
    """The Binding, Eviction or review in the body, its name checked against the path; ApiError 400."""
    found = defaults.without_nulls(await _body(request))
    if found.get("kind", kind) != kind or found.get("apiVersion", api_version) != api_version:
        raise errors.bad_request(f"the body must be a {kind} of {api_version}")
    try:
        msgspec.convert(found, shape)
    except msgspec.ValidationError as problem:
        raise errors.bad_request(f"{kind} cannot be read: {problem}") from None
    metadata = found.get("metadata", {})
    if name and metadata.get("name", name) != name:
        raise errors.bad_request(f"name in URL does not match name in {kind} object")
    return {**found, "metadata": metadata}


Patcher = Callable[[Json, Any], Any]


def _patcher(content_type: str) -> Patcher:
    known: dict[str, Patcher] = {
        MERGE: patches.merge,
        STRATEGIC: patches.strategic,
        JSON_PATCH: patches.json_patch,
    }
    if content_type in known:
        return known[content_type]
    accepted = ", ".join(sorted(known))
    if content_type == APPLY:
        what = f"server-side apply is not served here: use kubectl apply without --server-side, or one of: {accepted}"
    else:
        what = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
    raise errors.unsupported_media_type(what)


def _patched(apply_patch: Patcher, before: Json, patch: Any) -> Json:
    if apply_patch is not patches.json_patch and not isinstance(patch, dict):
        raise errors.bad_request("a merge patch must be an object")
    try:
        found = apply_patch(before, patch)
    except patches.PatchConflict as problem:
        raise errors.ApiError(422, "Invalid", f"the patch does not fit the object: {problem}") from None
    except patches.PatchError as problem:
        raise errors.bad_request(f"the patch cannot be read: {problem}") from None
    if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
        raise errors.bad_request("the patch leaves no object with metadata")
    return found
