"""The objects: read from memory, written by decisions that one thread commits in groups.

A decision runs on the event loop against the newest state, committed or not, and its changes are queued. The writer
thread commits whatever is queued as one transaction. Only then do readers and watchers see it, and only then is the
caller answered: what was acknowledged survives kill -9, and nothing is shown that could still be lost.
"""

from __future__ import annotations

import asyncio
import bisect
import queue
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from standalone.api import errors
from standalone.api.database import LOG_LENGTH, Database
from standalone.api.records import ADDED, DELETED, MODIFIED, Change, Key, Record, record

Result = TypeVar("Result")
Group = tuple[int, list[Change], "asyncio.Future[None]"]

_GROUP_LIMIT: Final = 512


class Transaction:
    """The newest state, and the changes that a decision makes to it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.changes: list[Change] = []
        self._own: dict[Key, Record | None] = {}

    def get(self, key: Key) -> Record | None:
        """The object as this decision sees it, or None."""
        if key in self._own:
            return self._own[key]
        return self._store.newest(key)

    def items(self, resource: str, namespace: str | None = None) -> list[Record]:
        """Objects of a kind (of one namespace, None for all) as this decision sees them, by name."""
        keys = self._store.newest_keys(resource) | {key for key in self._own if key.resource == resource}
        found = (self.get(key) for key in sorted(keys) if namespace is None or key.namespace == namespace)
        return [item for item in found if item is not None]

    def put(self, key: Key, obj: dict[str, Any]) -> Record:
        """Create or replace; an object that did not change keeps its version and makes no event."""
        old = self.get(key)
        if old is not None:
            same = record(key, old.version, obj)
            if same.body == old.body or same.object() == old.object():
                return old
        new = record(key, self._store.next_version(), obj)
        self._own[key] = new
        self.changes.append(Change(ADDED if old is None else MODIFIED, new, old))
        return new

    def delete(self, key: Key) -> Record:
        """Remove an object that is there; its last state at the version of the deletion."""
        old = self.get(key)
        if old is None:
            raise KeyError(key)
        gone = old.at_version(self._store.next_version())
        self._own[key] = None
        self.changes.append(Change(DELETED, gone, old))
        return gone


class Store:
    """All objects. Everything but the writer thread runs on one event loop."""

    def __init__(
        self, database: Database, *, settle: Callable[[Transaction], None] = lambda _transaction: None
    ) -> None:
        """`settle` completes each decision before it is queued: it writes state that follows from other state."""
        self._database = database
        self._settle = settle
        contents = database.load()
        self._objects: dict[str, dict[Key, Record]] = defaultdict(dict)
        for item in contents.objects:
            self._objects[item.key.resource][item.key] = item
        self._log = contents.log
        self._floor = contents.floor
        self._version = self._head = contents.version
        self._pending: dict[Key, Change] = {}
        self._epoch = 0
        self._queue: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
        self._listeners: list[Callable[[Change], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer = threading.Thread(target=self._write, name="store-writer", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to commit; `loop` is where decisions run and listeners are called."""
        self._loop = loop
        self._writer.start()

    def close(self) -> None:
        """Commit what is queued, stop the writer, close the file. Not from the event loop."""
        self._queue.put(None)
        if self._writer.ident is not None:
            self._writer.join()
        self._database.close()

    @property
    def version(self) -> int:
        """Newest committed version."""
        return self._version

    @property
    def floor(self) -> int:
        """Versions below this one can no longer be watched from or listed at."""
        return self._floor

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call `listener` on the loop with each committed change, in order of version."""
        self._listeners.append(listener)

    def get(self, key: Key) -> Record | None:
        """The committed object, or None."""
        return self._objects[key.resource].get(key)

    def items(self, resource: str, namespace: str | None = None) -> list[Record]:
        """Committed objects of a kind, of one namespace or (None) of all, by namespace and name."""
        found = self._objects[resource]
        keys = found if namespace is None else (key for key in found if key.namespace == namespace)
        return [found[key] for key in sorted(keys)]

    def items_at(self, resource: str, namespace: str | None, version: int) -> list[Record]:
        """As `items`, at an older version, by undoing the log; ApiError 410 when the log does not reach back."""
        if version < self._floor:
            raise errors.expired("The provided continue parameter is too old to display a consistent list result.")
        found = dict(self._objects[resource])
        for change in reversed(self._log):
            if change.version <= version:
                break
            if change.key.resource == resource:
                if change.type == ADDED:
                    found.pop(change.key, None)
                else:
                    found[change.key] = change.old if change.old is not None else change.new
        return [found[key] for key in sorted(found) if namespace is None or key.namespace == namespace]

    def since(self, version: int) -> list[Change]:
        """Committed changes after `version`; ApiError 410 when the log does not reach back that far."""
        if version < self._floor:
            raise errors.expired(f"too old resource version: {version} ({self._floor})")
        return self._log[bisect.bisect_right(self._log, version, key=lambda change: change.version) :]

    def newest(self, key: Key) -> Record | None:
        """The object after all decisions taken so far, committed or not."""
        pending = self._pending.get(key)
        if pending is not None:
            return None if pending.type == DELETED else pending.new
        return self._objects[key.resource].get(key)

    def newest_keys(self, resource: str) -> set[Key]:
        """Keys that may exist after all decisions taken so far."""
        return set(self._objects[resource]) | {key for key in self._pending if key.resource == resource}

    def next_version(self) -> int:
        """Take the next version."""
        self._head += 1
        return self._head

    async def decide(self, decision: Callable[[Transaction], Result], *, dry_run: bool = False) -> Result:
        """Run `decision` and commit what it changes; its result once that is durable.

        An ApiError of the decision changes nothing. What it was based on is durable before it is raised, so that a
        caller who is told "exists" finds the object. ApiError 500 when the file cannot be written.
        """
        transaction, before = Transaction(self), self._head
        try:
            result = decision(transaction)
            self._settle(transaction)
        except BaseException:
            self._head = before
            await self._commit([])
            raise
        if dry_run:
            self._head = before
            return result
        await self._commit(transaction.changes)
        return result

    async def _commit(self, changes: list[Change]) -> None:
        if not changes and not self._pending:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for change in changes:
            self._pending[change.key] = change
        self._queue.put((self._epoch, changes, done))
        # A caller that goes away must not cancel the future that the group resolves, nor leave its failure unread.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        await asyncio.shield(done)

    def _write(self) -> None:
        """Writer thread: commit what is queued, group by group."""
        failed = -1
        while True:
            groups = self._next_groups()
            live = [group for group in groups if group is not None and group[0] > failed]
            stale = [group for group in groups if group is not None and group[0] <= failed]
            problem: sqlite3.Error | None = None
            floor = 0
            try:
                changes = [change for _, some, _ in live for change in some]
                floor = self._database.write(changes) if changes else self._floor
            except sqlite3.Error as error:
                problem = error
                failed = live[-1][0]
            self._answer(self._failed if problem else self._publish, live, problem, floor)
            self._answer(self._failed, stale, sqlite3.OperationalError("an earlier write failed"), 0)
            if None in groups:
                return

    def _answer(
        self, then: Callable[..., None], groups: list[Group], problem: sqlite3.Error | None, floor: int
    ) -> None:
        if not groups:
            return
        assert self._loop is not None
        self._loop.call_soon_threadsafe(then, groups, problem, floor)

    def _next_groups(self) -> list[Group | None]:
        groups = [self._queue.get()]
        while groups[-1] is not None and len(groups) < _GROUP_LIMIT:
            try:
                groups.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return groups

    def _publish(self, groups: Iterable[Group], _problem: None, floor: int) -> None:
        for _, changes, done in groups:
            for change in changes:
                self._show(change)
            if not done.done():
                done.set_result(None)
        self._shorten(floor)

    def _show(self, change: Change) -> None:
        key = change.key
        if change.type == DELETED:
            self._objects[key.resource].pop(key, None)
        else:
            self._objects[key.resource][key] = change.new
        if self._pending.get(key) is change:
            del self._pending[key]
        self._log.append(change)
        self._version = change.version
        for listener in self._listeners:
            listener(change)

    def _shorten(self, floor: int) -> None:
        self._floor = max(self._floor, floor)
        if len(self._log) > LOG_LENGTH + LOG_LENGTH // 5 or (self._log and self._log[0].version <= self._floor):
            excess = max(len(self._log) - LOG_LENGTH, 0)
            if excess:
                self._floor = max(self._floor, self._log[excess - 1].version)
            cut = bisect.bisect_right(self._log, self._floor, key=lambda change: change.version)
            del self._log[:cut]

    def _failed(self, groups: Iterable[Group], problem: sqlite3.Error, _floor: int) -> None:
        for epoch, _, done in groups:
            # Decisions queued behind the failed one saw its changes: they fail too, by their epoch.
            if epoch == self._epoch:
                self._epoch += 1
                self._pending.clear()
            if not done.done():
                done.set_exception(errors.internal(f"the database cannot be written: {problem}; free space and retry"))
