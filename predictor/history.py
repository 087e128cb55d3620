"""Durable history of usage: one DuckDB file that survives kill -9 of the predictor (tables: `predictor.store.schema`).

A sample is durable once `append` returned. `fold` turns samples of past slots into slot rows and removes them in one
transaction, so each is counted once whatever dies in between; the row of a late sample's slot is made anew. A slot
that nobody measured has no row: gaps stay gaps. Pods are kept by the hour, from reports
that are minutes apart: what came since the last one is lost when the predictor is killed, and only that.

All functions block on disk; one thread at a time may use a history. Source: DuckDB documentation, "Concurrency" (one
process owns the file) and measurements (docs/predictor.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from predictor.samples import Sample
from predictor.sequences import Seen
from predictor.slots import SLOT_MILLIS
from predictor.storage import (
    FILE_NAME,
    Connection,
    HistoryCorrupt,
    HistoryError,
    Transaction,
    connect,
    insert,
    number,
    readable,
    remove_spilled,
)
from predictor.store.boots import Boot, BootKey, BootTable
from predictor.store.columns import HOUR_MILLIS, Imported, PodHours, PodReport, SlotColumns, Window
from predictor.store.combine import joined_windows
from predictor.store.folding import fold
from predictor.store.importing import import_kinds
from predictor.store.parquet import write_parquet
from predictor.store.pods import PodTable
from predictor.store.reading import windows
from predictor.store.schema import FORMAT, KINDS, PROTECTED, SAMPLE_INTEGERS, prepare
from predictor.store.size import (
    Dropped,
    Sizes,
    adopt_copy,
    copy_rows,
    drop_oldest_day,
    must_copy,
    remove_copy,
    sizes,
    slot_text,
)
from predictor.store.values import column
from slacktide.observe import get_logger

__all__ = [
    "FORMAT",
    "KINDS",
    "PROTECTED",
    "Appended",
    "Batch",
    "History",
    "Imported",
    "PodHours",
    "PodReport",
    "Sizes",
    "SlotColumns",
    "Window",
    "open_history",
]

log = get_logger("predictor.history")


class Appended(NamedTuple):
    """What `append` did."""

    stored: int
    duplicates: int


class Batch(NamedTuple):
    """Samples of one boot of one node, in the order they came."""

    node: str
    boot_id: str
    samples: Sequence[Sample]


class History:
    """The open history of one directory. Build it with `open_history`."""

    def __init__(self, connection: Connection, path: str) -> None:
        self.path = path
        self._connection = connection
        self._boots = BootTable(connection)
        self._pods = PodTable(connection)

    def append(self, batches: Iterable[Batch]) -> Appended:
        """Store what is new of `batches` in one transaction; durable when this returns.

        Raises HistoryError when nothing was stored.
        """
        tried: dict[BootKey, Seen] = {}
        fresh: list[tuple[BootKey, Sample]] = []
        offered = 0
        for batch in batches:
            key = (batch.node, batch.boot_id)
            if key not in tried:
                known = self._boots.boots.get(key)
                tried[key] = known.seen.copy() if known else Seen()
            offered += len(batch.samples)
            fresh.extend((key, s) for s in batch.samples if tried[key].offer(s.sequence, s.end_millis))
        if fresh:
            self._store(fresh)
        for key, seen in tried.items():
            if key in self._boots.boots:
                self._boots.boots[key].seen = seen
        return Appended(len(fresh), offered - len(fresh))

    def fold(self, before_millis: int, part: int = 0, parts: int = 1) -> int:
        """Turn the samples of slots that ended by `before_millis` into slot rows; returns how many samples.

        Only of each `parts`-th node, beginning with number `part`: of many nodes at once it takes long.
        Raises HistoryError; nothing is changed then.
        """
        edge = before_millis // SLOT_MILLIS * SLOT_MILLIS
        of_part = "end_millis <= $1 AND boot IN (SELECT id FROM boots WHERE node % $2 = $3)"
        chosen = [edge, parts, part]
        with Transaction(self._connection):
            count = number(self._connection, f"SELECT count(*) FROM samples WHERE {of_part}", chosen)  # noqa: S608 - our own text
            if count:
                fold(self._connection, edge, parts, part)
                self._boots.save(parts, part)
                self._connection.execute(f"DELETE FROM samples WHERE {of_part}", chosen)  # noqa: S608 - as above
        return count

    def prune(self, before_millis: int) -> None:
        """Remove what ended before `before_millis`. Raises HistoryError."""
        with Transaction(self._connection):
            self._boots.save()
            self._connection.execute("DELETE FROM node_slots WHERE slot < ?", [before_millis // SLOT_MILLIS])
            self._connection.execute("DELETE FROM samples WHERE end_millis < ?", [before_millis])
            self._connection.execute("DELETE FROM boots WHERE newest_millis < ?", [before_millis])
            self._pods.prune(before_millis // HOUR_MILLIS)
        with readable():
            self._boots.load()

    def forget_unused(self) -> None:
        """Remove nodes and pods of which nothing is left. Raises HistoryError."""
        with Transaction(self._connection):
            self._pods.forget_unused()
            self._boots.forget_unused()
        with readable():
            self._boots.load()

    def windows(self, since_millis: int) -> Iterator[Window]:
        """LS + SYSTEM use of every node since `since_millis`, oldest first; at least one part. Raises HistoryError."""
        return windows(self._connection, self._boots.nodes, since_millis // SLOT_MILLIS)

    def window(self, since_millis: int) -> Window:
        """The same in one part, which takes as much memory as there is history. Raises HistoryError."""
        return joined_windows(list(self.windows(since_millis)))

    def pod_hours(self, since_millis: int) -> Iterator[PodHours]:
        """Use of pods since `since_millis`, oldest first; the last part has the hours that go on.

        Raises HistoryError.
        """
        return self._pods.read(since_millis // HOUR_MILLIS)

    def save_pods(self, report: PodReport) -> None:
        """Store what is known of pods. Raises HistoryError; nothing is stored then."""
        self._pods.save(report)

    def save_state(self, key: str, value: bytes) -> None:
        """Keep `value` under `key`, in place of what was there. Raises HistoryError."""
        with Transaction(self._connection):
            self._connection.execute("DELETE FROM state WHERE key = ?", [key])
            self._connection.execute("INSERT INTO state VALUES (?, ?)", [key, value])

    def load_state(self, key: str) -> bytes | None:
        """What is kept under `key`. Raises HistoryError."""
        with readable():
            rows = self._connection.execute("SELECT value FROM state WHERE key = ?", [key]).fetchall()
        return bytes(rows[0][0]) if rows else None

    def states(self) -> dict[str, bytes]:
        """Everything that is kept under a key. Raises HistoryError."""
        with readable():
            return {str(k): bytes(v) for k, v in self._connection.execute("SELECT key, value FROM state").fetchall()}

    def import_slots(self, kinds: Mapping[str, SlotColumns]) -> Imported:
        """Store use from elsewhere, by kind; a slot of a node that was measured here already is left as it is.

        Doing it again changes nothing. Give the kinds of a time together, and `protected` (LS + SYSTEM) among them:
        it is what is forecast. Raises HistoryError; nothing is stored then.
        """
        with Transaction(self._connection):
            nodes = self._boots.ids_of(name for columns in kinds.values() for name in columns.names)
            imported = import_kinds(self._connection, kinds, nodes)
        self._boots.adopt(nodes, {})
        return imported

    def import_pods(self, hours: PodHours) -> Imported:
        """Store hours of pods from elsewhere, except those that are there already. Raises HistoryError."""
        return self._pods.take(hours)

    def retire(self, name: str) -> None:
        """Another machine has the name now: what was measured under it so far is no longer in `windows`.

        Raises HistoryError.
        """
        if name not in self._boots.nodes:
            return
        with Transaction(self._connection):
            self._boots.retire(name)
        with readable():
            self._boots.load()

    def limit(self, max_bytes: int) -> Dropped | None:
        """Remove the oldest day if rows take nearly `max_bytes`; None when nothing was removed. Raises HistoryError."""
        return drop_oldest_day(self._connection, self.path, max_bytes)

    def copy_if_larger(self, max_bytes: int) -> bool:
        """Whether the file was larger than `max_bytes` without need and has a smaller copy beside it now.

        Raises HistoryError; there is no copy then.
        """
        if not must_copy(self._connection, self.path, max_bytes):
            return False
        log.warning("history is larger than history_max_bytes: it is copied into a smaller file, which takes a while")
        copy_rows(self._connection, self.path)
        return True

    def write_parquet(self, query: str, path: str, progress: Callable[[float], None] | None) -> int:
        """Write what `query` answers to a Parquet file; returns the number of rows. Raises HistoryError.

        `progress` is called on another thread with the share done, 0 to 1.
        """
        return write_parquet(self._connection, query, path, progress)

    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self._boots.nodes)

    def sizes(self) -> Sizes:
        """Rows and bytes on disk. Raises HistoryError."""
        return sizes(self._connection, self.path)

    def close(self) -> None:
        """Close the file; what was appended is durable with or without this. Raises HistoryError."""
        with readable():
            self._connection.close()

    def _store(self, fresh: Sequence[tuple[BootKey, Sample]]) -> None:
        keys = dict.fromkeys(key for key, _ in fresh)
        missing = [key for key in keys if key not in self._boots.boots]
        nodes, created = self._boots.nodes, dict[BootKey, Boot]()
        with Transaction(self._connection):
            if missing:
                nodes = self._boots.ids_of(name for name, _ in missing)
                created = self._boots.create(missing, nodes)
            ids = {key: (created.get(key) or self._boots.boots[key]).id for key in keys}
            self._insert([ids[key] for key, _ in fresh], [sample for _, sample in fresh])
        self._boots.adopt(nodes, created)

    def _insert(self, boots: Sequence[int], samples: Sequence[Sample]) -> None:
        columns = {"boot": column(boots, np.int32)}
        for name, values in zip(Sample._fields, zip(*samples, strict=True), strict=True):
            columns[name] = column(values, np.int64 if name in SAMPLE_INTEGERS else np.float64)
        insert(self._connection, "samples", columns)


def open_history(directory: str, max_bytes: int | None = None) -> History:
    """Open or create the history in `directory`. One that takes more than `max_bytes` loses its oldest days first,
    and is copied into a smaller file, which may take minutes.

    Raises StateError when the history is of a newer version or in use, HistoryCorrupt when the file is damaged
    (`predictor.storage.set_aside` makes room for a new one), HistoryError when the disk says no.
    """
    path = os.path.join(directory, FILE_NAME)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        raise HistoryError(
            f"{directory}: {error.strerror}; make it writable or choose another --history-dir"
        ) from error
    remove_copy(path)
    history = _open(path)
    return history if max_bytes is None else _shrunk(history, max_bytes)


def _shrunk(history: History, max_bytes: int) -> History:
    """`history` within `max_bytes`, or as it is if there is no room for the copy."""
    path = history.path
    while (dropped := history.limit(max_bytes)) is not None:
        log.warning(
            "history is larger than history_max_bytes: its oldest part was removed",
            until=slot_text(dropped.until_slot),
            bytes_before=dropped.bytes_before,
        )
    try:
        if not history.copy_if_larger(max_bytes):
            return history
    except HistoryCorrupt:
        raise
    except HistoryError as error:
        log.warning("the history cannot be copied into a smaller file and stays as large as it is", error=str(error))
        return history
    history.close()
    adopt_copy(path)
    return _open(path)


def _open(path: str) -> History:
    connection = connect(path)
    remove_spilled(path)
    try:
        with readable():
            prepare(connection, path)
            return History(connection, path)
    except BaseException:
        connection.close()
        raise
