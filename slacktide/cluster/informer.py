"""A cache of objects that follows the API server: list, watch, and list again when the thread is lost.

What an informer never does: keep an object that a new list no longer has, hang on a silent connection or believe
watches that stay mute, or end because a handler raised.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from slacktide.cluster.cache import Change, Key, changes_of, difference, key_of
from slacktide.cluster.client import Client, Watch
from slacktide.cluster.errors import ClusterError, Gone, NotFound, Unreachable, Unreadable
from slacktide.cluster.indexed import Index, Indexes
from slacktide.cluster.kinds import Kind, T
from slacktide.cluster.metrics import ClusterMetrics
from slacktide.cluster.retry import Backoff
from slacktide.cluster.watch import WatchEvent
from slacktide.observe import get_logger

V = TypeVar("V")

_LOG: Final = get_logger("cluster.informer")
_BACKOFF_BASE_SECONDS: Final = 0.5
_BACKOFF_CAP_SECONDS: Final = 30.0
_SHORT_WATCH_SECONDS: Final = 1.0
_STOOD_SECONDS: Final = _BACKOFF_CAP_SECONDS
"""A watch that stood longer than the longest wait was served, whether or not there was anything to tell."""

_STOP_SECONDS: Final = 5.0
_ABSENT_SECONDS: Final = 60.0


def _ignore(*_: object) -> None:
    return None


class Informer(Generic[T]):
    """Keeps a cache of the objects that the selectors match, and tells handlers what changed.

    Handlers run on the informer's one thread, in order, after the cache has changed: keep them short. One that
    raises is logged and counted. Objects are immutable and may be shared between threads.
    inactivity_seconds: a watch silent for this long is cut and begun again; None = as the client's settings say.
    absent_is_empty: a kind that the server does not serve has no objects, rather than being waited for; it is said
    once, and asked for again every minute.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind[T],
        *,
        namespace: str | None = None,
        field_selector: str = "",
        label_selector: str = "",
        on_add: Callable[[T], object] = _ignore,
        on_update: Callable[[T, T], object] = _ignore,
        on_delete: Callable[[T], object] = _ignore,
        name: str = "",
        inactivity_seconds: float | None = None,
        metrics: ClusterMetrics | None = None,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        absent_is_empty: bool = False,
    ) -> None:
        self._client = client
        self._absent_is_empty = absent_is_empty
        self._absent = False
        self._kind = kind
        self._namespace = namespace
        self._field_selector = field_selector
        self._label_selector = label_selector
        self._on_add = on_add
        self._on_update = on_update
        self._on_delete = on_delete
        self._name = name or kind.plural
        self._who = f"watch of {self._name}"
        self._inactivity_seconds = inactivity_seconds
        self._metrics = metrics if metrics is not None else ClusterMetrics()
        self._backoff = backoff or Backoff(_BACKOFF_BASE_SECONDS, _BACKOFF_CAP_SECONDS, random.random)
        self._clock = clock

        self._cache: dict[Key, T] = {}
        self._indexes: Indexes[T] = Indexes()
        self._lock = threading.Lock()
        self._synced = threading.Event()
        self._stopping = threading.Event()
        self._watch: Watch[T] | None = None
        self._resource_version: str | None = None
        self._heard_at = -math.inf
        self._mute = False
        self._unproven = False
        self._shorts = 0
        self._thread = threading.Thread(target=self._run, name=f"informer-{self._name}", daemon=True)
        self._metrics.cache_age.labels(self._name).set_function(self.age_seconds)
        self._metrics.cache_objects.labels(self._name).set_function(lambda: len(self._cache))

    def start(self) -> None:
        """Begin to follow the API server in a thread of its own; it goes on trying while the server is away."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the cache stays as it is."""
        self._stopping.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOP_SECONDS)

    def wait_synced(self, timeout: float | None = None) -> bool:
        """Wait until the first list is in the cache and its handlers have run; false after `timeout` seconds."""
        return self._synced.wait(timeout)

    @property
    def synced(self) -> bool:
        """Whether the first list is in the cache."""
        return self._synced.is_set()

    def get(self, namespace: str, name: str) -> T | None:
        """The cached object, None where there is none. `namespace` is "" for cluster-wide kinds."""
        with self._lock:
            return self._cache.get((namespace, name))

    def items(self) -> tuple[T, ...]:
        """All cached objects at this moment, in no order."""
        with self._lock:
            return tuple(self._cache.values())

    def indexed(self, index: Index[T, V], value: Hashable) -> tuple[V, ...]:
        """What `index` keeps of the cached objects that it finds under `value`, in no order."""
        with self._lock:
            return self._indexes.find(index, value, self._cache)

    def age_seconds(self) -> float:
        """Seconds since the server was last heard; infinite before the first list.

        Where nothing changes the server speaks only in bookmarks, about once a minute: up to that is normal.
        """
        return self._clock() - self._heard_at

    def _run(self) -> None:
        while not self._stopping.is_set():
            delay = self._turn()
            if delay > 0:
                self._stopping.wait(delay)

    def _turn(self) -> float:
        """List if needed, then follow one watch to its end; the seconds to wait before the next turn."""
        try:
            if self._resource_version is None:
                self._list()
            started = self._clock()
            events = self._follow(self._resource_version or "")
            if events == 0 and self._clock() - started < _SHORT_WATCH_SECONDS:
                self._unproven = True
                return self._failed(Unreachable("the server ended a watch at once without an event"))
        except NotFound as error:
            return self._not_served() if self._absent_is_empty else self._failed(error)
        except ClusterError as error:
            return self._failed(error)
        except Exception:  # noqa: BLE001 - the one broad handler around a turn
            # The thread must outlive whatever mistake this is, because the daemon trusts its cache.
            _LOG.exception("informer turn failed", informer=self._name)
            self._metrics.failures.labels(self._name, "unexpected").inc()
            self._resource_version = None
            return self._backoff.next()
        self._backoff.reset()
        return 0.0

    def _failed(self, error: ClusterError) -> float:
        if self._stopping.is_set():
            return 0.0
        reason = type(error).__name__
        self._metrics.failures.labels(self._name, reason).inc()
        # A watch after one that stood and told nothing may be as mute: only a list is known to be fresh.
        if isinstance(error, (Gone, Unreadable)) or self._mute:
            self._resource_version = None
        self._mute = False
        delay = self._backoff.next()
        if isinstance(error, Gone):
            _LOG.info("history is gone, listing again", informer=self._name, detail=str(error))
        else:
            self._client.contact.failed(self._who, error)
        return delay

    def _not_served(self) -> float:
        if self._stopping.is_set():
            return 0.0
        self._client.contact.well(self._who)
        if not self._absent:
            self._absent = True
            _LOG.info("the server does not serve this kind: taken to have no objects", informer=self._name)
        self._resource_version = None
        self._heard_at = self._clock()
        self._replace({})
        return _ABSENT_SECONDS

    def _list(self) -> None:
        listing = self._client.list(self._kind, self._namespace, self._field_selector, self._label_selector)
        self._heard_at = self._clock()
        self._metrics.lists.labels(self._name).inc()
        if listing.skipped:
            _LOG.warning("objects left out, their fields are not as expected", informer=self._name, n=listing.skipped)
        self._absent = False
        self._resource_version = listing.resource_version
        self._replace({key_of(item): item for item in listing.items})

    def _replace(self, listed: dict[Key, T]) -> None:
        with self._lock:
            changes = difference(self._cache, listed)
            self._cache = listed
            self._indexes.replace(listed)
        for change in changes:
            self._tell(change)
        self._synced.set()

    def _follow(self, resource_version: str) -> int:
        """Follow one watch to its end; the number of events it had."""
        watch = self._client.watch(
            self._kind,
            resource_version=resource_version,
            namespace=self._namespace,
            field_selector=self._field_selector,
            label_selector=self._label_selector,
            inactivity_seconds=self._inactivity_seconds,
        )
        opened = self._heard_at = self._clock()
        with self._lock:
            self._watch = watch
        if not self._unproven:
            self._client.contact.well(self._who)
        events = 0
        try:
            # `stop` may have looked for the watch before it was there.
            if self._stopping.is_set():
                watch.close()
            for event in watch:
                events += 1
                if events == 1:
                    self._unproven = False
                    self._client.contact.well(self._who)
                self._heard_at = self._clock()
                # Not after a list: a server whose watches all fail at once would be listed in a tight loop.
                self._backoff.reset()
                self._take(event)
        except Unreachable as error:
            # Whoever opens watches only to let them die serves nothing: it takes an event to prove that it does.
            self._shorts = self._shorts + 1 if not events and self._clock() - opened < _SHORT_WATCH_SECONDS else 0
            self._unproven = error.silent or self._shorts > 1
            self._mute = error.silent
            if not error.silent and self._clock() - opened >= _STOOD_SECONDS:
                self._backoff.reset()
            raise
        finally:
            with self._lock:
                self._watch = None
        return events

    def _take(self, event: WatchEvent[T]) -> None:
        self._metrics.watch_events.labels(self._name, event.type).inc()
        if not event.readable:
            self._metrics.unreadable.labels(self._kind.kind).inc()
            _LOG.warning("change left out, fields not as expected", informer=self._name, key=key_of(event.object))
        if event.type != "BOOKMARK":
            for change in self._apply(event):
                self._tell(change)
        if event.object.metadata.resource_version:
            self._resource_version = event.object.metadata.resource_version

    def _apply(self, event: WatchEvent[T]) -> list[Change[T]]:
        key = key_of(event.object)
        with self._lock:
            old = self._cache.get(key)
            if event.type == "DELETED":
                self._cache.pop(key, None)
                self._indexes.change(key, old, None)
                return [] if old is None else [Change(event.object if event.readable else old, None)]
            if not event.readable:
                return []
            self._cache[key] = event.object
            self._indexes.change(key, old, event.object)
        return changes_of(old, event.object)

    def _tell(self, change: Change[T]) -> None:
        try:
            if change.old is None and change.new is not None:
                self._on_add(change.new)
            elif change.old is not None and change.new is None:
                self._on_delete(change.old)
            elif change.old is not None and change.new is not None:
                self._on_update(change.old, change.new)
        except Exception:  # noqa: BLE001 - a handler is foreign code
            # A handler's mistake must neither end the informer nor hide the objects that come after.
            _LOG.exception("handler failed", informer=self._name)
            self._metrics.handler_errors.labels(self._name).inc()
