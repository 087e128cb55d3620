"""How large the file is, and how it stays within its limit.

DuckDB uses the space of removed rows again once a checkpoint is done, but gives none of it back to the disk: of 3.7 GB
of which half had been removed the file kept all. So the oldest days go before the limit is reached, which keeps the
file as it is from then on; only a file that is too large already, because the limit was lowered, is copied row by row
into a new one, at the start and nowhere else: copying takes a minute for each 1.5 GB or so.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from typing import Final, NamedTuple

import duckdb

from predictor.slots import SLOT_SECONDS
from predictor.storage import Connection, HistoryError, Transaction, number, quoted, readable

_ROOM: Final = 0.8
"""Share of the limit that rows may take; the rest is for what is removed but not free yet, and for the log."""
_SLOTS_PER_DAY: Final = 86400 // SLOT_SECONDS
_COPY: Final = ".copy"


class Sizes(NamedTuple):
    """How much the history holds."""

    samples: int
    slots: int
    pod_hours: int
    file_bytes: int


class Dropped(NamedTuple):
    """What was removed for lack of room: everything before `until_slot`."""

    until_slot: int
    bytes_before: int


class Space(NamedTuple):
    """Bytes on disk, and how many of them are free inside the file."""

    file_bytes: int
    free_bytes: int


def space(connection: Connection, path: str) -> Space:
    """Space of the file at `path` with its log. Raises duckdb.Error."""
    free = number(connection, "SELECT block_size * free_blocks FROM pragma_database_size()")
    return Space(sum(_size(path + suffix) for suffix in ("", ".wal")), free)


def sizes(connection: Connection, path: str) -> Sizes:
    """Rows and bytes on disk. Raises HistoryError."""
    with readable():
        counts = [
            number(connection, f"SELECT count(*) FROM {table}")  # noqa: S608 - our own table names
            for table in ("samples", "node_slots", "pod_hours")
        ]
        return Sizes._make([*counts, space(connection, path).file_bytes])


def drop_oldest_day(connection: Connection, path: str, max_bytes: int) -> Dropped | None:
    """Remove the oldest day of slots and of hours when rows take more than their share of `max_bytes`.

    None: nothing had to go, or only the newest day is left. That one stays whatever the limit is: without it nothing
    could be forecast, and what is too large may be something else. Space becomes free by row groups (122,880 rows),
    so up to that much more may go than was necessary.
    Raises HistoryError.
    """
    with readable():
        found = space(connection, path)
        used = found.file_bytes - found.free_bytes
        rows = connection.execute(
            "SELECT min(slot), max(slot) FROM (SELECT min(slot) AS slot FROM node_slots UNION ALL "
            "SELECT max(slot) FROM node_slots UNION ALL SELECT min(hour) * 12 FROM pod_hours)"
        ).fetchall()
        first, last = rows[0]
    if used <= max_bytes * _ROOM or first is None:
        return None
    until = (first // _SLOTS_PER_DAY + 1) * _SLOTS_PER_DAY
    if until > last - _SLOTS_PER_DAY + 1:
        return None
    with Transaction(connection):
        connection.execute("DELETE FROM node_slots WHERE slot < ?", [until])
        connection.execute("DELETE FROM pod_hours WHERE hour * 12 < ?", [until])
    with readable():
        connection.execute("CHECKPOINT")
    return Dropped(until, used)


def must_copy(connection: Connection, path: str, max_bytes: int) -> bool:
    """Whether the file is larger than it may be, and would be smaller as a copy. Raises HistoryError."""
    with readable():
        found = space(connection, path)
    return found.file_bytes > max_bytes and found.free_bytes > found.file_bytes // 4


def copy_rows(connection: Connection, path: str) -> None:
    """Write a copy of everything beside the file. Raises HistoryError; no copy is left then."""
    remove_copy(path)
    try:
        with readable():
            connection.execute(f"ATTACH '{quoted(path + _COPY)}' AS copied")
            source = str(connection.execute("SELECT current_database()").fetchall()[0][0])
            connection.execute(f'COPY FROM DATABASE "{source}" TO copied')
            connection.execute("DETACH copied")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            connection.execute("DETACH copied")
        remove_copy(path)
        raise


def adopt_copy(path: str) -> None:
    """Put the copy in place of the file, which must be closed. Raises HistoryError."""
    if os.path.exists(path + ".wal"):
        # A log that is left belongs to the old file: beside another one it would be damage.
        raise HistoryError(f"{path}.wal is still there although the file was closed; the copy is not used")
    try:
        os.replace(path + _COPY, path)
    except OSError as error:
        raise HistoryError(f"{path}: its smaller copy cannot take its place: {error.strerror}") from error


def remove_copy(path: str) -> None:
    """Remove a copy that was not finished."""
    for suffix in ("", ".wal"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + _COPY + suffix)


def slot_text(slot: int) -> str:
    """When a slot begins, for people."""
    return dt.datetime.fromtimestamp(slot * SLOT_SECONDS, dt.UTC).isoformat()


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0
