"""Samples on disk until the predictor has them: bounded in bytes and age, oldest first, a sequence per kernel boot.

SQLite in WAL mode: a killed agent loses nothing that was appended. The sequence of a boot goes on after a restart.
When a bound is reached the oldest sample goes and is counted. A database that cannot be used is set aside and a new
one begun: a spool must never keep the agent from starting. While the disk refuses, the newest samples are kept in
memory, so that a predictor that is there goes on hearing of the node.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

FILE_NAME: Final = "spool.sqlite"
_SCHEMA_VERSION: Final = 2
_BUSY_SECONDS: Final = 5.0
_OVERHEAD_BYTES: Final = 64
"""What a row costs beside its payload, by measure of filled databases."""

_IN_MEMORY: Final = 60
"""Samples kept in memory while the disk refuses: ten minutes of them at the usual window."""

_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS sample (
    id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, sequence INTEGER NOT NULL, payload BLOB NOT NULL,
    at REAL NOT NULL DEFAULT 0, UNIQUE (boot_id, sequence)
);
CREATE TABLE IF NOT EXISTS boot (boot_id TEXT PRIMARY KEY, last_sequence INTEGER NOT NULL);
PRAGMA user_version = {_SCHEMA_VERSION};
"""


class _Kept(NamedTuple):
    boot_id: str
    sequence: int
    payload: bytes


class Spool:
    """Thread-safe. `dropped` counts samples that a bound or a full disk cost, since the agent started.

    `limit_seconds` bounds the age of a sample by the wall clock, the only one that outlives a boot.
    """

    def __init__(
        self,
        directory: str,
        limit_bytes: int,
        limit_seconds: float = 86_400.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._limit = limit_bytes
        self._age = limit_seconds
        self._wall = wall
        self._memory: deque[_Kept] = deque()
        self._given: dict[str, int] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.dropped = 0
        self.problem = ""
        try:
            self._db = self._open()
        except (sqlite3.DatabaseError, OSError) as error:
            self._set_aside(str(error))
            self._db = self._open_again()
        self._bytes = self._measure()

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _check_version(database)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.executescript(_SCHEMA)
        except sqlite3.DatabaseError:
            database.close()
            raise
        return database

    def _open_again(self) -> sqlite3.Connection:
        try:
            return self._open()
        except (sqlite3.DatabaseError, OSError) as error:
            self.problem += f"; a new one cannot be made ({error}): samples are kept in memory only"
            self._path = ":memory:"
            return self._open()

    def _set_aside(self, why: str) -> None:
        aside = f"{self._path}.bad"
        self.problem = f"{self._path} cannot be used ({why}); set aside as {aside}"
        for suffix in ("", "-wal", "-shm"):
            try:
                os.replace(self._path + suffix, aside + suffix)
            except FileNotFoundError:
                continue
            except OSError as error:
                self.problem += f" (could not: {error.strerror})"

    def _measure(self) -> int:
        count, size = self._db.execute("SELECT count(*), coalesce(sum(length(payload)), 0) FROM sample").fetchone()
        return int(size) + int(count) * _OVERHEAD_BYTES

    def append(self, boot_id: str, payload: bytes) -> int | None:
        """Keep one sample and give it the next sequence of its boot.

        None when the disk refused: `problem` says so, and the sample is kept in memory only.
        """
        with self._lock:
            sequence = self._given.get(boot_id, 0) + 1
            try:
                with self._db:
                    self._db.execute("BEGIN IMMEDIATE")
                    sequence = max(sequence, self._last(boot_id) + 1)
                    self._set_last(boot_id, sequence)
                    self._db.execute(
                        "INSERT INTO sample (boot_id, sequence, payload, at) VALUES (?, ?, ?, ?)",
                        (boot_id, sequence, payload, self._wall()),
                    )
                self._bytes += len(payload) + _OVERHEAD_BYTES
                self._trim()
            except sqlite3.Error as error:
                self.problem = f"{self._path}: a sample could not be kept on disk: {error}"
                self._keep(_Kept(boot_id, sequence, payload))
                return None
            finally:
                self._given[boot_id] = sequence
            return sequence

    def _keep(self, kept: _Kept) -> None:
        self._memory.append(kept)
        if len(self._memory) > _IN_MEMORY:
            self._memory.popleft()
            self.dropped += 1

    def _trim(self) -> None:
        """Drop the oldest until the bounds hold; the newest always stays."""
        oldest_at = self._wall() - self._age
        while True:
            row = self._db.execute("SELECT id, length(payload), at FROM sample ORDER BY id LIMIT 1").fetchone()
            newest = self._db.execute("SELECT max(id) FROM sample").fetchone()[0]
            if row is None or row[0] == newest or not (self._bytes > self._limit or 0 < row[2] < oldest_at):
                return
            self._db.execute("DELETE FROM sample WHERE id = ?", (row[0],))
            self._bytes -= row[1] + _OVERHEAD_BYTES
            self.dropped += 1

    def oldest_boot(self) -> str | None:
        """Boot of the oldest sample that waits; None when none does."""
        with self._lock:
            if self._closed:
                return None
            row = self._db.execute("SELECT boot_id FROM sample ORDER BY id LIMIT 1").fetchone()
            if row is None:
                return self._memory[0].boot_id if self._memory else None
        return str(row[0])

    def boots(self) -> list[tuple[str, int]]:
        """Boots of which samples wait, oldest first, and the highest sequence of each."""
        with self._lock:
            if self._closed:
                return []
            rows = self._db.execute(
                "SELECT boot_id, max(sequence) FROM sample GROUP BY boot_id ORDER BY min(id)"
            ).fetchall()
            found = {str(boot): int(sequence) for boot, sequence in rows}
            for kept in self._memory:
                found[kept.boot_id] = max(kept.sequence, found.get(kept.boot_id, 0))
        return list(found.items())

    def count(self, boot_id: str, after_sequence: int, sequence: int) -> int:
        """How many samples of a boot wait beyond `after_sequence`, up to `sequence`."""
        with self._lock:
            if self._closed:
                return 0
            row = self._db.execute(
                "SELECT count(*) FROM sample WHERE boot_id = ? AND sequence > ? AND sequence <= ?",
                (boot_id, after_sequence, sequence),
            ).fetchone()
            kept = [one for one in self._memory if one.boot_id == boot_id and after_sequence < one.sequence <= sequence]
        return int(row[0]) + len(kept)

    def batch(self, boot_id: str, after_sequence: int, count: int) -> list[tuple[int, bytes]]:
        """Up to `count` samples of a boot beyond `after_sequence`, oldest first; none after `close`.

        (A thread of gRPC may still ask while the agent stops.)
        """
        with self._lock:
            if self._closed:
                return []
            rows = self._db.execute(
                "SELECT sequence, payload FROM sample WHERE boot_id = ? AND sequence > ? ORDER BY sequence LIMIT ?",
                (boot_id, after_sequence, count),
            ).fetchall()
            kept = [
                (one.sequence, one.payload)
                for one in self._memory
                if one.boot_id == boot_id and one.sequence > after_sequence
            ]
        found = [(int(sequence), bytes(payload)) for sequence, payload in rows]
        return sorted(found + kept)[:count]

    def acknowledge(self, boot_id: str, sequence: int, delete_up_to: int | None = None) -> int:
        """Delete the samples of a boot up to `sequence`, or only up to `delete_up_to`; returns how many.

        A receipt beyond what was ever given out means that this spool was lost in the middle of a boot: the
        sequence goes on from there, or the predictor would take new samples for old ones.
        """
        with self._lock:
            self._given[boot_id] = max(sequence, self._given.get(boot_id, 0))
            before = len(self._memory)
            last = sequence if delete_up_to is None else delete_up_to
            waiting = [one for one in self._memory if one.boot_id != boot_id or one.sequence > last]
            self._memory = deque(waiting)
            return before - len(waiting) + self._acknowledge_on_disk(boot_id, sequence, last)

    def _acknowledge_on_disk(self, boot_id: str, sequence: int, last: int) -> int:
        """A disk that refuses keeps samples that were received: they are sent again and known there as repeats."""
        try:
            return self._forget(boot_id, sequence, last)
        except sqlite3.Error as error:
            self.problem = f"{self._path}: samples that were received could not be removed: {error}"
            return 0

    def _forget(self, boot_id: str, sequence: int, last: int) -> int:
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            if sequence > self._last(boot_id):
                self._set_last(boot_id, sequence)
            which = "FROM sample WHERE boot_id = ? AND sequence <= ?"
            count, size = self._db.execute(
                f"SELECT count(*), coalesce(sum(length(payload)), 0) {which}",
                (boot_id, last),
            ).fetchone()
            self._db.execute(f"DELETE {which}", (boot_id, last))
            self._bytes -= int(size) + int(count) * _OVERHEAD_BYTES
        return int(count)

    def waiting(self) -> int:
        """How many samples wait."""
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM sample").fetchone()[0]) + len(self._memory)

    @property
    def size_bytes(self) -> int:
        """What the waiting samples take."""
        return self._bytes

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._closed = True
            self._db.close()

    def _last(self, boot_id: str) -> int:
        row = self._db.execute("SELECT last_sequence FROM boot WHERE boot_id = ?", (boot_id,)).fetchone()
        return int(row[0]) if row else 0

    def _set_last(self, boot_id: str, sequence: int) -> None:
        self._db.execute(
            "INSERT INTO boot VALUES (?, ?) ON CONFLICT (boot_id) DO UPDATE SET last_sequence = excluded.last_sequence",
            (boot_id, sequence),
        )


def _check_version(database: sqlite3.Connection) -> None:
    """Bring an older file up to date. Raises DatabaseError for a newer one."""
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version == 1:
        database.execute("ALTER TABLE sample ADD COLUMN at REAL NOT NULL DEFAULT 0")
        return
    if version not in {0, _SCHEMA_VERSION}:
        raise sqlite3.DatabaseError(f"it has version {version}, this agent knows {_SCHEMA_VERSION}")
