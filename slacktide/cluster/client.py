"""The verbs of the Kubernetes API, synchronous, typed by kind. One client may be used from several threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

import msgspec

from slacktide.cluster.codec import Page, as_dict, codec, decode_dict, encode
from slacktide.cluster.contact import Contact
from slacktide.cluster.credentials import CredentialSource, Endpoint, TokenFileSource, source_for
from slacktide.cluster.errors import ApiError, Forbidden, Gone, Unreadable
from slacktide.cluster.evict import Eviction, Outcome, eviction_body, eviction_of
from slacktide.cluster.kinds import PODS, Kind, T
from slacktide.cluster.retry import repeated
from slacktide.cluster.transport import Request, Response, Transport
from slacktide.cluster.watch import WatchDecoder, WatchEvent
from slacktide.names import WATCH_SILENCE_SECONDS
from slacktide.objects import Pod, View

if TYPE_CHECKING:
    from slacktide.cluster.metrics import ClusterMetrics
    from slacktide.cluster.wire import Stream
    from slacktide.settings import ClusterSettings

_R = TypeVar("_R")
PatchType = Literal["merge", "strategic", "json"]
LogStream = Literal["All", "Stdout", "Stderr"]

PAGE_ITEMS: Final = 500
"""Items asked for in one page of a list."""

_PATCH_TYPES: Final[Mapping[PatchType, str]] = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
}
_WATCH_SECONDS: Final = (240, 300)
_WATCH_SLACK_SECONDS: Final = 30.0
_LIST_RESTARTS: Final = 3
_BODY_FACTOR: Final = 6.0
# The server tries an eviction for 10 s (20 times, 0.5 s apart) when a budget changes under it.
_EVICT_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Listing(Generic[T]):
    """A whole list, and the resourceVersion to watch from. `skipped` counts items that no view could read."""

    items: tuple[T, ...]
    resource_version: str
    skipped: int = 0


class Version(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the server says about itself."""

    git_version: str = ""
    major: str = ""
    minor: str = ""
    platform: str = ""


class Watch(Generic[T]):
    """One server watch; iterate over it, `close` it from any thread.

    Ends normally when the server's timeout is over. Raises Gone (list again), other ApiErrors, Unreachable
    (also after `inactivity_seconds` of silence).
    """

    def __init__(
        self, stream: Stream, kind: Kind[T], max_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream
        self._decoder = WatchDecoder(kind)
        self._clock = clock
        self._deadline = clock() + max_seconds

    def __iter__(self) -> Iterator[WatchEvent[T]]:
        for chunk in self._stream:
            yield from self._decoder.feed(chunk)
            # A server or proxy that forgets its own timeout must not keep us on one connection for ever.
            if self._clock() > self._deadline:
                break
        self._stream.close()

    def close(self) -> None:
        """End the watch; a reader in another thread sees its normal end."""
        self._stream.close()


class Client:
    """The Kubernetes API.

    Every call raises ApiError subclasses for answers that say no, Unreachable where there was no answer, and
    CredentialsError where there is no way to ask. GET, LIST, DELETE and PATCH honour 429 and Retry-After within
    `timeout_seconds`; calls that could have an effect twice (create, bind, evict, replace) are sent once.
    silence_seconds: a watch that is silent for this long is taken for dead. `contact` is for those who try again and
    again, and tells their troubles once.
    """

    def __init__(
        self,
        source: CredentialSource,
        *,
        user_agent: str,
        timeout_seconds: float = 10.0,
        silence_seconds: float = WATCH_SILENCE_SECONDS,
        metrics: ClusterMetrics | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self.contact = Contact()
        self._timeout = timeout_seconds
        self._silence = silence_seconds
        self._denied: Callable[[Forbidden], object] | None = None
        self._metrics = metrics
        self._uniform = uniform
        self._closing = threading.Event()
        self._transport = Transport(source, user_agent)

    def get(self, kind: Kind[T], name: str, namespace: str | None = None) -> T:
        """One object. Raises NotFound."""
        return codec(kind).one(self._repeat(self._request("GET", kind.path(namespace, name))).body)

    def get_dict(
        self, kind: Kind[Any], name: str, namespace: str | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """One object with every field, as needed for `replace`. Asked once, within `timeout_seconds`."""
        request = self._request("GET", kind.path(namespace, name), timeout_seconds=timeout_seconds)
        return decode_dict(self._send(request).body)

    def list(
        self, kind: Kind[T], namespace: str | None = None, field_selector: str = "", label_selector: str = ""
    ) -> Listing[T]:
        """All objects of a kind, page by page; starts over where the pages expire meanwhile."""
        for _ in range(_LIST_RESTARTS):
            try:
                return self._list(kind, namespace, field_selector, label_selector, PAGE_ITEMS)
            except Gone:
                continue
        # Objects change faster than pages can be read: ask for all at once, which cannot expire half way.
        return self._list(kind, namespace, field_selector, label_selector, None)

    def _list(
        self, kind: Kind[T], namespace: str | None, field_selector: str, label_selector: str, limit: int | None
    ) -> Listing[T]:
        query = _query(fieldSelector=field_selector, labelSelector=label_selector, limit=limit)
        pages: tuple[Page[T], ...] = ()
        while True:
            page = codec(kind).page(self._repeat(self._request("GET", kind.path(namespace), query)).body)
            pages += (page,)
            if not page.continue_:
                break
            query = {**query, "continue": page.continue_}
        skipped = sum(page.skipped for page in pages)
        if self._metrics is not None:
            self._metrics.unreadable.labels(kind.kind).inc(skipped)
        return Listing(tuple(item for page in pages for item in page.items), page.resource_version, skipped)

    def watch(
        self,
        kind: Kind[T],
        *,
        resource_version: str,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
        timeout_seconds: int | None = None,
        inactivity_seconds: float | None = None,
    ) -> Watch[T]:
        """One server watch from `resource_version` on, with bookmarks.

        timeout_seconds: how long the server is asked to serve it; None = 240 to 300, so that many watchers do not
        come back at the same time. inactivity_seconds: None = `silence_seconds` of the client.
        """
        if timeout_seconds is None:
            low, high = _WATCH_SECONDS
            timeout_seconds = low + int(self._uniform() * (high - low))
        query = _query(
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=resource_version,
            timeoutSeconds=timeout_seconds,
            fieldSelector=field_selector,
            labelSelector=label_selector,
        )
        request = replace(
            self._request("GET", kind.path(namespace), query), read_seconds=inactivity_seconds or self._silence
        )
        stream = self._counted("WATCH", lambda: self._transport.stream(request))
        return Watch(stream, kind, timeout_seconds + _WATCH_SLACK_SECONDS)

    def create(
        self,
        kind: Kind[T],
        body: dict[str, Any] | View,
        namespace: str | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> T:
        """Create an object and return it as stored. `namespace` defaults to the body's. Raises AlreadyExists."""
        content = as_dict(kind, body)
        if kind.namespaced and namespace is None:
            namespace = content.get("metadata", {}).get("namespace")
            if not namespace:
                raise ValueError(f"a {kind.kind} needs a namespace")
        request = self._request("POST", kind.path(namespace), body=encode(content), timeout_seconds=timeout_seconds)
        return codec(kind).one(self._send(request).body)

    def patch(
        self,
        kind: Kind[T],
        name: str,
        namespace: str | None,
        body: dict[str, Any] | Sequence[dict[str, Any]],
        subresource: str | None = None,
        patch_type: PatchType = "merge",
    ) -> T:
        """Change named fields and return the object. `subresource` is "status" for status fields.

        A merge patch may carry metadata.resourceVersion as a lock: Conflict where the object has moved on.
        """
        request = self._request(
            "PATCH",
            kind.path(namespace, name, subresource),
            body=encode(body),
            content_type=_PATCH_TYPES[patch_type],
        )
        # A JSON patch may append; sent twice, it would append twice.
        response = self._send(request) if patch_type == "json" else self._repeat(request)
        return codec(kind).one(response.body)

    def replace(self, kind: Kind[T], body: dict[str, Any], *, timeout_seconds: float | None = None) -> T:
        """Put a whole object back that `get_dict` gave, guarded by its resourceVersion. Raises Conflict.

        For leases only: views do not carry every field, a patch loses nothing.
        """
        metadata = body.get("metadata", {})
        if not metadata.get("resourceVersion"):
            raise ValueError(f"replacing a {kind.kind} needs metadata.resourceVersion, or it would overwrite blindly")
        path = kind.path(metadata.get("namespace"), metadata.get("name", ""))
        request = self._request("PUT", path, body=encode(as_dict(kind, body)), timeout_seconds=timeout_seconds)
        return codec(kind).one(self._send(request).body)

    def delete(
        self,
        kind: Kind[Any],
        name: str,
        namespace: str | None = None,
        uid: str | None = None,
        grace_period_seconds: int | None = None,
    ) -> None:
        """Begin the deletion of an object. With `uid` a newer object of the same name is spared (Conflict)."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        self._repeat(self._request("DELETE", kind.path(namespace, name), body=encode(options)))

    def bind(self, pod: Pod, node_name: str, annotations: Mapping[str, str] | None = None) -> None:
        """Assign a pod to a node; the annotations reach the pod in the same write.

        Raises Conflict where it is bound already (read its nodeName), was replaced, or is being deleted.
        """
        metadata: dict[str, Any] = {
            "name": pod.metadata.name,
            "namespace": pod.metadata.namespace,
            "uid": pod.metadata.uid,
        }
        if annotations:
            metadata["annotations"] = dict(annotations)
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
        }
        path = PODS.path(pod.metadata.namespace, pod.metadata.name, "binding")
        self._send(self._request("POST", path, body=encode(body)))

    def evict(self, pod: Pod, grace_period_seconds: int | None = None, dry_run: bool = False) -> Eviction:
        """Ask the Eviction API to delete this very pod (by uid), disruption budgets permitting.

        Outcomes that are part of its everyday life are returned; missing rights, bad requests, server failures and
        Unreachable are raised. A dry run checks the budgets without using them up.
        """
        body = eviction_body(pod, grace_period_seconds, dry_run)
        path = PODS.path(pod.metadata.namespace, pod.metadata.name, "eviction")
        request = self._request("POST", path, body=encode(body), timeout_seconds=max(self._timeout, _EVICT_SECONDS))
        try:
            self._send(request)
        except ApiError as error:
            eviction = eviction_of(error)
            if eviction is None:
                raise
            return eviction
        return Eviction(outcome=Outcome.EVICTED)

    def logs(
        self,
        namespace: str,
        name: str,
        container: str | None = None,
        follow: bool = False,
        stream: LogStream = "All",
        tail_lines: int | None = None,
    ) -> Stream:
        """The output of a container, in chunks of bytes; close the stream to end it.

        A followed log waits for ever, because programs may be silent for days.
        """
        query = _query(
            container=container,
            follow="true" if follow else None,
            stream=None if stream == "All" else stream,
            tailLines=tail_lines,
        )
        request = self._request("GET", PODS.path(namespace, name, "log"), query, accept="*/*")
        if follow:
            request = replace(request, read_seconds=None)
        return self._counted("GET", lambda: self._transport.stream(request))

    def version(self) -> Version:
        """What the server says about itself; also the cheapest way to see whether it is there."""
        body = self._repeat(self._request("GET", "/version")).body
        try:
            return msgspec.json.decode(body, type=Version)
        except msgspec.MsgspecError as error:
            raise Unreadable(f"the answer of /version is no version: {error}") from error

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """One raw request, sent once; the body of the answer as it came."""
        return self._send(self._request(method, path, query or {}, body=body, content_type=content_type)).body

    def server_seconds(self) -> float | None:
        """What the server's clock says now, in seconds since the epoch, to about a second; None before any answer."""
        return self._transport.server_seconds()

    def close(self) -> None:
        """Close idle connections and end waits for a retry."""
        self._closing.set()
        self._transport.close()

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout_seconds: float | None = None,
    ) -> Request:
        timeout = self._timeout if timeout_seconds is None else timeout_seconds
        return Request(
            method=method,
            path=path,
            query=query or {},
            body=body,
            content_type=content_type,
            accept=accept,
            connect_seconds=timeout,
            read_seconds=timeout,
            total_seconds=timeout * _BODY_FACTOR,
        )

    def _send(self, request: Request) -> Response:
        return self._counted(request.method, lambda: self._transport.send(request))

    def _repeat(self, request: Request) -> Response:
        return repeated(
            lambda: self._send(request), budget_seconds=self._timeout, wait=self._closing.wait, uniform=self._uniform
        )

    def _counted(self, verb: str, call: Callable[[], _R]) -> _R:
        try:
            if self._metrics is None:
                return call()
            with self._metrics.request(verb):
                return call()
        except Forbidden as error:
            if self._denied is not None:
                self._denied(error)
            raise

    def on_denied(self, told: Callable[[Forbidden], object]) -> None:
        """Call `told` with each 403; it runs on the thread of the call that was refused."""
        self._denied = told


def connect(settings: ClusterSettings, user_agent: str, metrics: ClusterMetrics | None = None) -> Client:
    """A client for the API that the settings describe; nothing is sent yet. Raises CredentialsError."""
    return Client(
        source_for(settings),
        user_agent=user_agent,
        timeout_seconds=settings.timeout_seconds,
        silence_seconds=settings.silence_seconds,
        metrics=metrics,
    )


def connect_unix(path: str, user_agent: str) -> Client:
    """A client for the API server behind a Unix socket of this machine; nothing is sent yet. Raises CredentialsError.

    As `connect` with the defaults of all other settings, but without reading what settings can be.
    """
    return Client(TokenFileSource(Endpoint(f"unix:{path}")), user_agent=user_agent)


def _query(**parameters: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in parameters.items() if value not in (None, "")}
