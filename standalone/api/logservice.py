"""The log subresource of pods: which file, for how long, and as what stream of bytes."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from aiohttp import web

from standalone.api import errors, queries
from standalone.api.kinds import PODS
from standalone.api.podlogs import STREAMS, Entry, Joined, LogReader, Wanted, pod_directory, since, tail
from standalone.api.records import Key, Record
from standalone.api.store import Store
from standalone.api.times import now

POLL_SECONDS: Final = 0.2
"""How long a follower waits before it looks again for new lines."""

_INVALID: Final = errors.Target("", "PodLogOptions")


class LogService:
    """Answers GET pods/NAME/log."""

    def __init__(self, store: Store, log_dir: str) -> None:
        self._store = store
        self._log_dir = log_dir
        self._closed = False

    def close(self) -> None:
        """End all followers."""
        self._closed = True

    async def answer(self, namespace: str, name: str, request: web.Request) -> web.StreamResponse:
        """Stream a container's log; ApiError 400 for a container that is not there or has not started, 404, 422."""
        query = request.query
        record = self._store.get(Key(PODS.resource, namespace, name))
        if record is None:
            raise errors.not_found(PODS.target(name))
        container = _container(record, query.get("container", ""))
        follow, previous = queries.boolean(query, "follow"), queries.boolean(query, "previous")
        wanted = _wanted(request)
        if not record.object()["spec"].get("nodeName"):
            # There is no kubelet to ask yet; a real server then says nothing, and that it went well.
            return web.Response(content_type="text/plain")
        path = self._path(record, container, previous=previous)
        if not _has_log(record, container, path, previous=previous):
            raise _not_there(record, container, previous=previous)
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        reader = LogReader(path)
        try:
            await self._send(response, reader, wanted, record if follow else None, container)
        finally:
            reader.close()
        await response.write_eof()
        return response

    async def _send(
        self, response: web.StreamResponse, reader: LogReader, wanted: Wanted, followed: Record | None, container: str
    ) -> None:
        joined = Joined(wanted)
        left = wanted.limit_bytes
        entries = tail(await asyncio.to_thread(_drain, reader), wanted) if wanted.tail_lines is not None else None
        while True:
            found = list(entries) if entries is not None else await asyncio.to_thread(reader.poll)
            entries = None
            if found is None:
                if followed is None:
                    return
                # Asked before the last look: what was written before the end is then surely seen.
                over = self._closed or self._ended(followed, container)
                found = await asyncio.to_thread(reader.poll)
                if found is None:
                    if over:
                        return
                    await asyncio.sleep(POLL_SECONDS)
                    continue
            text = b"".join(map(joined.text, found))
            if left is not None:
                text = text[:left]
                left -= len(text)
            if text:
                await response.write(text)
            if left == 0:
                return

    def _path(self, record: Record, container: str, *, previous: bool) -> str:
        uid = record.object()["metadata"]["uid"]
        count = int((_status(record, container) or {}).get("restartCount", 0)) - (1 if previous else 0)
        if count < 0:
            raise _not_there(record, container, previous=True)
        folder = pod_directory(self._log_dir, record.key.namespace, record.key.name, uid)
        return os.path.join(folder, container, f"{count}.log")

    def _ended(self, followed: Record, container: str) -> bool:
        """Whether nothing more will be written: the pod is gone or ended, or the container terminated or restarted."""
        record = self._store.get(followed.key)
        if record is None:
            return True
        pod, before = record.object(), _status(followed, container) or {}
        if pod["metadata"]["uid"] != followed.object()["metadata"]["uid"]:
            return True
        found = _status(record, container) or {}
        if found.get("restartCount", 0) > before.get("restartCount", 0):
            return True
        terminated = "terminated" in (found.get("state") or {})
        return terminated or (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}


def _drain(reader: LogReader) -> list[Entry]:
    found: list[Entry] = []
    while True:
        entries = reader.poll()
        if entries is None:
            return found
        found += entries


def _wanted(request: web.Request) -> Wanted:
    query = request.query
    stream = query.get("stream", "All") or "All"
    causes = []
    if stream not in STREAMS:
        causes.append(errors.unsupported("stream", stream, tuple(STREAMS)))
    numbers = {name: queries.integer(query, name) for name in ("tailLines", "limitBytes", "sinceSeconds")}
    for name, least in (("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)):
        value = numbers[name]
        if value is not None and value < least:
            causes.append(errors.invalid_value(name, value, f"must be greater than or equal to {least}"))
    if causes:
        raise errors.invalid(_INVALID, causes)
    return Wanted(
        STREAMS[stream],
        queries.boolean(query, "timestamps"),
        numbers["tailLines"],
        numbers["limitBytes"],
        since(now(), numbers["sinceSeconds"], query.get("sinceTime", "")),
    )


def _container(record: Record, asked: str) -> str:
    """The container meant; ApiError 400 when it is not there, or not said of several."""
    spec, pod = record.object()["spec"], record.key.name
    names = [c["name"] for c in spec["containers"]]
    inits = [c["name"] for c in spec.get("initContainers") or ()]
    if asked in names + inits:
        return asked
    if asked:
        raise errors.bad_request(f"container {asked} is not valid for pod {pod}")
    if len(names) == 1:
        return str(names[0])
    text = f"a container name must be specified for pod {pod}, choose one of: [{' '.join(names)}]"
    raise errors.bad_request(text + (f" or one of the init containers: [{' '.join(inits)}]" if inits else ""))


def _status(record: Record, container: str) -> dict[str, Any] | None:
    status = record.object().get("status") or {}
    statuses = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    return next((found for found in statuses if found.get("name") == container), None)


def _has_log(record: Record, container: str, path: str, *, previous: bool) -> bool:
    """Whether there is a log, or will be at once: the container runs and has not written yet, or ended silently."""
    if os.path.exists(path):
        return True
    state = (_status(record, container) or {}).get("state") or {}
    return not previous and ("running" in state or "terminated" in state)


def _not_there(record: Record, container: str, *, previous: bool) -> errors.ApiError:
    pod = record.key.name
    if previous:
        return errors.bad_request(f'previous terminated container "{container}" in pod "{pod}" not found')
    waiting = ((_status(record, container) or {}).get("state") or {}).get("waiting") or {}
    why = waiting.get("reason") or "ContainerCreating"
    return errors.bad_request(f'container "{container}" in pod "{pod}" is waiting to start: {why}')
