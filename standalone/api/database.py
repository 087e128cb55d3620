"""SQLite file of the API: objects, a bounded log of changes, and the format's version.

WAL mode with synchronous=NORMAL: a commit is in the page cache of the kernel when it is acknowledged, so a killed
process loses nothing; only a crash of the whole machine may lose the last commits, and never corrupts the file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slacktide.errors import StateError
from standalone.api.records import ADDED, DELETED, MODIFIED, Change, Key, Record

FORMAT: Final = 1
LOG_LENGTH: Final = 10_000
"""Changes that the log keeps for watches that come back; older versions are answered with 410."""

LOCK_SECONDS = 1.0
"""How long a server that starts waits for one that is just ending to let go of the file."""

_PAGE_BYTES: Final = 4096
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS objects (
    resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (resource, namespace, name));
CREATE TABLE IF NOT EXISTS log (
    version INTEGER PRIMARY KEY, resource TEXT NOT NULL, namespace TEXT NOT NULL, name TEXT NOT NULL,
    type TEXT NOT NULL, body BLOB NOT NULL, old_version INTEGER, old_body BLOB);
"""


@dataclass(frozen=True)
class Contents:
    """All of a database: objects, log in order, newest version, and the version below which the log is cut."""

    objects: list[Record]
    log: list[Change]
    version: int
    floor: int


class Database:
    """One connection, used by one thread at a time."""

    def __init__(self, path: str, limit_bytes: int) -> None:
        """Open or create; StateError for a newer format or a file that is no database."""
        self._path = path
        self._writes = 0
        try:
            if path != ":memory:":
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            # isolation_level None: transactions are begun and ended here, not guessed by the module.
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=LOCK_SECONDS
            )
            try:
                self._prepare(limit_bytes)
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.Error, OSError) as problem:
            raise StateError(
                f"database {path} cannot be opened: {problem}; check its folder, free space and rights"
            ) from problem

    def _prepare(self, limit_bytes: int) -> None:
        found = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if found > FORMAT:
            raise StateError(
                f"database {self._path} has format {found}, this version reads up to {FORMAT}: "
                "use the newer Slacktide that wrote it, or another state directory"
            )
        # One process owns the file; a second server on it would give out the same versions twice.
        self._connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.execute(f"PRAGMA max_page_count={max(limit_bytes // _PAGE_BYTES, 1)}")
        self._connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.split(";\n"):
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA user_version={FORMAT}")
        self._connection.execute("COMMIT")

    def load(self) -> Contents:
        """Read everything."""
        objects = [
            Record(Key(resource, namespace, name), version, bytes(body))
            for resource, namespace, name, version, body in self._connection.execute(
                "SELECT resource, namespace, name, version, body FROM objects"
            )
        ]
        log = []
        for version, resource, namespace, name, type_, body, old_version, old_body in self._connection.execute(
            "SELECT version, resource, namespace, name, type, body, old_version, old_body FROM log ORDER BY version"
        ):
            key = Key(resource, namespace, name)
            old = None if old_body is None else Record(key, old_version, bytes(old_body))
            log.append(Change(type_, Record(key, version, bytes(body)), old))
        meta = dict(self._connection.execute("SELECT key, value FROM meta").fetchall())
        newest = max([meta.get("version", 0), *(change.version for change in log[-1:])])
        return Contents(objects, log, newest, meta.get("floor", 0))

    def write(self, changes: Sequence[Change]) -> int:
        """Commit all changes in one transaction, or none (sqlite3.Error); the floor of the log afterwards.

        When the file is full, half of the log is given up once to make room.
        """
        try:
            return self._write(changes, LOG_LENGTH)
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode & 0xFF != sqlite3.SQLITE_FULL:
                raise
            self._shorten(LOG_LENGTH // 2)
            # What is deleted need not be kept as it was just before: deleting must be possible when nothing else is.
            gone = {change.key for change in changes if change.type == DELETED}
            lean = [change for change in changes if change.type != MODIFIED or change.key not in gone]
            return self._write(lean, LOG_LENGTH // 2)

    def _write(self, changes: Sequence[Change], keep: int) -> int:
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            for change in changes:
                self._apply(change)
            self._writes += len(changes)
            if self._writes > LOG_LENGTH // 10:
                self._trim(keep)
                self._writes = 0
            newest = changes[-1].version
            run("INSERT OR REPLACE INTO meta VALUES ('version', ?)", (newest,))
            run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise
        return self._floor()

    def _apply(self, change: Change) -> None:
        run = self._connection.execute
        key, new, old = change.key, change.new, change.old
        if change.type == DELETED:
            run("DELETE FROM objects WHERE resource=? AND namespace=? AND name=?", key)
        elif change.type == ADDED:
            run("INSERT INTO objects VALUES (?, ?, ?, ?, ?)", (*key, new.version, new.body))
        else:
            run(
                "UPDATE objects SET version=?, body=? WHERE resource=? AND namespace=? AND name=?",
                (new.version, new.body, *key),
            )
        before = (None, None) if old is None or change.type == DELETED else (old.version, old.body)
        run("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (new.version, *key, change.type, new.body, *before))

    def _shorten(self, keep: int) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._trim(min(keep, self._connection.execute("SELECT count(*) FROM log").fetchone()[0] // 2))
        self._connection.execute("COMMIT")

    def _trim(self, keep: int) -> None:
        row = self._connection.execute(
            "SELECT version FROM log ORDER BY version DESC LIMIT 1 OFFSET ?", (max(keep, 1),)
        ).fetchone()
        if row is not None:
            self._connection.execute("DELETE FROM log WHERE version <= ?", row)
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('floor', ?)", row)

    def _floor(self) -> int:
        row = self._connection.execute("SELECT value FROM meta WHERE key='floor'").fetchone()
        return row[0] if row else 0

    def close(self) -> None:
        """Fold the WAL into the file and let go."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()
