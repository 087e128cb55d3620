"""List (in pages, at a version) and watch."""

from __future__ import annotations

import asyncio
import random
from typing import Final

import msgspec
from aiohttp import web

from standalone.api import errors, queries
from standalone.api.kinds import Kind
from standalone.api.paths import Target
from standalone.api.records import ADDED, Record
from standalone.api.replies import JSON, Renderer, reply
from standalone.api.selectors import EVERYTHING, Selector, parse
from standalone.api.store import Store
from standalone.api.watchhub import Interest, Watcher, WatchHub

BOOKMARK_SECONDS: Final = 15.0
"""Between two bookmarks of a watch that asked for them."""

SHORTEST_WATCH_SECONDS: Final = 1800.0
"""A watch without timeoutSeconds ends after this long to twice as long, at random, so that not all return at once."""

_CONTINUE_EXPIRED: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


class Listing:
    """Reads collections of the store."""

    def __init__(self, store: Store, hub: WatchHub) -> None:
        self._store = store
        self._hub = hub

    def select(self, target: Target, request: web.Request) -> list[Record]:
        """Committed objects of a collection that the request's selectors match."""
        selector = _selector(target.kind, request)
        return _selected(self._store.items(target.kind.resource, target.namespace), selector)

    def answer(self, target: Target, request: web.Request, renderer: Renderer) -> web.Response:
        """Answer a list; ApiError 400, 410, 422 or 504."""
        query, kind = request.query, target.kind
        selector = _selector(kind, request)
        limit = queries.integer(query, "limit") or 0
        records, version = self._records(target, query.get("continue", ""), request)
        records = _selected(records, selector)
        metadata: dict[str, object] = {"resourceVersion": str(version)}
        if 0 < limit < len(records):
            last = records[limit - 1].key
            metadata["continue"] = queries.Continue(version, last.namespace, last.name).encoded()
            if selector.empty:
                metadata["remainingItemCount"] = len(records) - limit
            records = records[:limit]
        return reply(renderer.many(records, metadata))

    def _records(self, target: Target, token: str, request: web.Request) -> tuple[list[Record], int]:
        """Objects before selection, in order, and the version that they are of."""
        store, resource, namespace = self._store, target.kind.resource, target.namespace
        match, wanted = queries.version_match(request.query), queries.version(request.query)
        if token:
            if wanted:
                raise errors.bad_request("specifying resource version is not allowed when using continue")
            return self._page(target, queries.decode_continue(token))
        if wanted is not None and wanted > store.version:
            raise errors.too_large_version(wanted, store.version)
        paged = queries.integer(request.query, "limit")
        if wanted and (match == "Exact" or (paged and not match)):
            return store.items_at(resource, namespace, wanted), wanted
        return store.items(resource, namespace), store.version

    def _page(self, target: Target, at: queries.Continue) -> tuple[list[Record], int]:
        version = self._store.version if at.version < 0 else at.version
        try:
            records = self._store.items_at(target.kind.resource, target.namespace, version)
        except errors.ApiError:
            again = queries.Continue(-1, at.namespace, at.name).encoded()
            raise errors.expired(_CONTINUE_EXPIRED, again) from None
        return [r for r in records if (r.key.namespace, r.key.name) > (at.namespace, at.name)], version

    async def watch(self, target: Target, request: web.Request, renderer: Renderer) -> web.StreamResponse:
        """Answer a watch with a stream of events until its timeout, the client or the server ends it."""
        query = request.query
        interest = Interest(target.kind.resource, target.namespace, _selector(target.kind, request))
        wanted, initial_events = queries.version(query), queries.boolean(query, "sendInitialEvents")
        timeout = queries.integer(query, "timeoutSeconds")
        seconds = timeout or SHORTEST_WATCH_SECONDS * (1 + random.random())
        stream = _Stream(request, renderer, self._store, bookmarks=queries.boolean(query, "allowWatchBookmarks"))
        initial: list[Record] = []
        try:
            if wanted and not initial_events:
                watcher = self._hub.add(interest, wanted, self._store.since(wanted))
            else:
                initial = _selected(self._store.items(interest.resource, interest.namespace), interest.selector)
                watcher = self._hub.add(interest, self._store.version, ())
        except errors.ApiError as problem:
            await stream.begin()
            await stream.error(problem)
            return await stream.end()
        try:
            await stream.begin()
            await stream.events([(ADDED, record) for record in initial])
            if initial_events:
                await stream.bookmark(watcher.seen, {"k8s.io/initial-events-end": "true"})
            await stream.run(watcher, seconds)
            return await stream.end()
        finally:
            self._hub.remove(watcher)


class _Stream:
    """The answer to one watch."""

    def __init__(self, request: web.Request, renderer: Renderer, store: Store, *, bookmarks: bool) -> None:
        self._request = request
        self._renderer = renderer
        self._store = store
        self._bookmarks = bookmarks
        self._response = web.StreamResponse(headers={"Content-Type": JSON})
        self._first = True

    async def begin(self) -> None:
        self._response.enable_chunked_encoding()
        await self._response.prepare(self._request)

    async def end(self) -> web.StreamResponse:
        await self._response.write_eof()
        return self._response

    async def run(self, watcher: Watcher, seconds: float) -> None:
        """Send what comes until the time is over or the watch is closed."""
        clock = asyncio.get_running_loop().time
        ends, next_bookmark = clock() + seconds, clock() + BOOKMARK_SECONDS
        while True:
            events = await watcher.next(max(min(ends, next_bookmark) - clock(), 0.0))
            # Everything up to here has been offered to the watcher and taken from it.
            version = self._store.version
            await self.events(events)
            over = clock() >= ends or (watcher.closed and not events)
            if (over and not watcher.cut) or clock() >= next_bookmark:
                await self.bookmark(version, {})
                next_bookmark = clock() + BOOKMARK_SECONDS
            if over:
                return

    async def events(self, events: list[tuple[str, Record]]) -> None:
        """Send events in one write."""
        lines = []
        for name, record in events:
            lines.append(_line(name, self._renderer.one(record, columns=self._first)))
            self._first = False
        if lines:
            await self._response.write(b"".join(lines))

    async def bookmark(self, version: int, annotations: dict[str, str]) -> None:
        """Send a bookmark if the client asked for them."""
        if self._bookmarks:
            await self._response.write(_line("BOOKMARK", self._renderer.bookmark(version, annotations)))

    async def error(self, problem: errors.ApiError) -> None:
        """Send an ERROR event."""
        await self._response.write(_line("ERROR", msgspec.json.encode(problem.status())))


def _line(name: str, body: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (name.encode(), body)


def _selector(kind: Kind, request: web.Request) -> Selector:
    labels, fields = request.query.get("labelSelector", ""), request.query.get("fieldSelector", "")
    return parse(kind, labels, fields) if labels or fields else EVERYTHING


def _selected(records: list[Record], selector: Selector) -> list[Record]:
    return records if selector.empty else [r for r in records if selector.matches(r.attributes)]
