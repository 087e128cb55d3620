"""Durable history of usage: one DuckDB file that survives kill -9 of the predictor.

Tables (format 1):

    samples   every sample that is not folded yet, as it came
    slots     use per series and 5-minute slot: time covered, mean, p90 and maximum of CPU and memory, requests
    series    what a slot row is of: a node and a kind (ls, be, system, protected = LS + SYSTEM, capacity) and a key
              that is free for finer kinds
    nodes, boots, meta

A sample is durable once `append` returned. `fold` turns samples of past slots into slot rows and removes them in one
transaction, so each is counted once whatever dies in between; a late sample adds another row for its slot, and
readers combine rows. A slot that nobody measured has no row: gaps stay gaps.

All functions block on disk; one thread at a time may use a store. Source: DuckDB documentation, "Concurrency" (one
process owns the file) and measurements: a commit of 1 to 1000 samples takes 5 to 15 ms.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor.samples import Sample
from predictor.sequences import Seen, holes_from_text, holes_to_text
from predictor.slots import SLOT_MILLIS
from predictor.storage import (
    FILE_NAME,
    Connection,
    HistoryCorrupt,
    HistoryError,
    Transaction,
    connect,
    number,
    readable,
)
from slacktide import __version__
from slacktide.errors import StateError

FORMAT: Final = 1
PROTECTED: Final = "protected"
"""Kind of the series that is forecast: LS + SYSTEM."""

_INTEGERS: Final = tuple(name for name in Sample._fields if name != "ls_pressure")

_SAMPLE_COLUMNS: Final = ", ".join(f"{name} {'BIGINT' if name in _INTEGERS else 'DOUBLE'}" for name in Sample._fields)
_SCHEMA: Final = f"""
CREATE TABLE meta (key VARCHAR, value VARCHAR);
CREATE TABLE nodes (id INTEGER, name VARCHAR);
CREATE TABLE boots (id INTEGER, node INTEGER, boot VARCHAR, high BIGINT, newest_millis BIGINT, holes VARCHAR);
CREATE TABLE series (id INTEGER, node INTEGER, kind VARCHAR, key VARCHAR);
CREATE TABLE samples (boot INTEGER, {_SAMPLE_COLUMNS});
CREATE TABLE slots (
    series INTEGER, slot BIGINT, covered_millis BIGINT,
    cpu_mean DOUBLE, cpu_p90 DOUBLE, cpu_max BIGINT,
    memory_mean DOUBLE, memory_p90 DOUBLE, memory_max BIGINT,
    requested_cpu BIGINT, requested_memory BIGINT);
"""

_SUM: Final = "ls_{0} + system_{0}"
_KINDS: Final[dict[str, tuple[str, str, str, str, str, str]]] = {
    # kind: expressions over samples for CPU mean and maximum, memory mean and maximum, requested CPU and memory.
    # A sum with a part that is NULL is NULL, as it must be.
    "ls": ("ls_cpu_mean", "ls_cpu_max", "ls_memory_mean", "ls_memory_max", "ls_requested_cpu", "ls_requested_memory"),
    "be": ("be_cpu_mean", "be_cpu_max", "be_memory_mean", "be_memory_max", "be_requested_cpu", "be_requested_memory"),
    "system": ("system_cpu_mean", "system_cpu_max", "system_memory_mean", "system_memory_max", "NULL", "NULL"),
    PROTECTED: (
        _SUM.format("cpu_mean"),
        _SUM.format("cpu_max"),
        _SUM.format("memory_mean"),
        _SUM.format("memory_max"),
        "ls_requested_cpu",
        "ls_requested_memory",
    ),
    "capacity": ("capacity_cpu", "capacity_cpu", "capacity_memory", "capacity_memory", "NULL", "NULL"),
}


class Appended(NamedTuple):
    """What `append` did."""

    stored: int
    duplicates: int


class Window(NamedTuple):
    """LS + SYSTEM use per node and slot, as columns of one length; NaN = not measured.

    cpu_millis    90th percentile of the means of the sample windows in the slot (see `predictor.slots`)
    memory_bytes  highest working set in the slot
    """

    names: list[str]
    node: npt.NDArray[np.int64]
    slot: npt.NDArray[np.int64]
    cpu_millis: npt.NDArray[np.float64]
    memory_bytes: npt.NDArray[np.float64]


class Sizes(NamedTuple):
    """How much the history holds."""

    samples: int
    slots: int
    file_bytes: int


class Batch(NamedTuple):
    """Samples of one boot of one node, in the order they came."""

    node: str
    boot_id: str
    samples: Sequence[Sample]


class _Boot:
    """A boot with what is durable of it."""

    __slots__ = ("id", "node_id", "seen")

    def __init__(self, boot_id: int, node_id: int, seen: Seen) -> None:
        self.id = boot_id
        self.node_id = node_id
        self.seen = seen


class History:
    """The open history of one directory. Build it with `open_history`."""

    def __init__(self, connection: Connection, path: str) -> None:
        self.path = path
        self._connection = connection
        self._nodes: dict[str, int] = {}
        self._boots: dict[tuple[str, str], _Boot] = {}
        self._series: set[int] = set()
        self._load()

    def append(self, batches: Iterable[Batch]) -> Appended:
        """Store what is new of `batches` in one transaction; durable when this returns.

        Raises HistoryError when nothing was stored.
        """
        tried: dict[tuple[str, str], Seen] = {}
        fresh: list[tuple[tuple[str, str], Sample]] = []
        offered = 0
        for batch in batches:
            key = (batch.node, batch.boot_id)
            if key not in tried:
                known = self._boots.get(key)
                tried[key] = known.seen.copy() if known else Seen()
            offered += len(batch.samples)
            fresh.extend((key, s) for s in batch.samples if tried[key].offer(s.sequence, s.end_millis))
        if fresh:
            self._store(fresh)
        for key, seen in tried.items():
            if key in self._boots:
                self._boots[key].seen = seen
        return Appended(len(fresh), offered - len(fresh))

    def fold(self, before_millis: int) -> int:
        """Turn the samples of slots that ended by `before_millis` into slot rows; returns how many samples.

        Raises HistoryError; nothing is changed then.
        """
        edge = before_millis // SLOT_MILLIS * SLOT_MILLIS
        with Transaction(self._connection):
            count = number(self._connection, "SELECT count(*) FROM samples WHERE end_millis <= ?", [edge])
            if count:
                self._add_series()
                for kind, columns in _KINDS.items():
                    self._connection.execute(_fold_statement(columns), [kind, edge])
                self._save_boots()
                self._connection.execute("DELETE FROM samples WHERE end_millis <= ?", [edge])
        return count

    def prune(self, before_millis: int) -> None:
        """Remove what ended before `before_millis`. Raises HistoryError."""
        with Transaction(self._connection):
            self._save_boots()
            self._connection.execute("DELETE FROM slots WHERE slot < ?", [before_millis // SLOT_MILLIS])
            self._connection.execute("DELETE FROM samples WHERE end_millis < ?", [before_millis])
            self._connection.execute("DELETE FROM boots WHERE newest_millis < ?", [before_millis])
            self._connection.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM slots)")
            self._connection.execute(
                "DELETE FROM nodes WHERE id NOT IN (SELECT node FROM boots) AND id NOT IN (SELECT node FROM series)"
            )
        self._load()

    def window(self, since_millis: int) -> Window:
        """LS + SYSTEM use of every node since `since_millis`. Raises HistoryError."""
        ids = {node: index for index, node in enumerate(self._nodes.values())}
        with readable():
            columns = self._connection.execute(
                f"""
                SELECT node, slot, max(cpu) AS cpu, max(memory) AS memory FROM (
                    SELECT series.node, slot, cpu_p90 AS cpu, memory_max AS memory
                    FROM slots JOIN series ON slots.series = series.id WHERE kind = '{PROTECTED}' AND slot >= $1
                    UNION ALL
                    SELECT boots.node, (end_millis - 1) // {SLOT_MILLIS} AS slot,
                        quantile_disc(ls_cpu_mean + system_cpu_mean, 0.9), max(ls_memory_max + system_memory_max)
                    FROM samples JOIN boots ON samples.boot = boots.id
                    WHERE (end_millis - 1) // {SLOT_MILLIS} >= $1 GROUP BY ALL)
                GROUP BY node, slot""",  # noqa: S608 - built from our own constants only
                [since_millis // SLOT_MILLIS],
            ).fetchnumpy()
        to_index = np.zeros(max(ids, default=0) + 1, dtype=np.int64)
        to_index[list(ids)] = list(ids.values())
        nodes = np.asarray(columns["node"], dtype=np.int64)
        return Window(
            list(self._nodes),
            to_index[nodes],
            np.asarray(columns["slot"], dtype=np.int64),
            _floats(columns["cpu"]),
            _floats(columns["memory"]),
        )

    def sizes(self) -> Sizes:
        """Rows and bytes on disk. Raises HistoryError."""
        with readable():
            samples = number(self._connection, "SELECT count(*) FROM samples")
            slots = number(self._connection, "SELECT count(*) FROM slots")
        return Sizes(samples, slots, sum(_size(self.path + suffix) for suffix in ("", ".wal")))

    def close(self) -> None:
        """Close the file; what was appended is durable with or without this. Raises HistoryError."""
        with readable():
            self._connection.close()

    def _load(self) -> None:
        with readable():
            self._nodes = {
                str(name): int(i) for i, name in self._connection.execute("SELECT id, name FROM nodes").fetchall()
            }
            self._series = {
                int(node) for (node,) in self._connection.execute("SELECT DISTINCT node FROM series").fetchall()
            }
            boots = self._connection.execute(
                "SELECT boots.id, node, name, boot, high, newest_millis, holes "
                "FROM boots JOIN nodes ON boots.node = nodes.id"
            ).fetchall()
            pending = self._connection.execute(
                "SELECT boot, sequence, end_millis FROM samples ORDER BY rowid"
            ).fetchall()
        self._boots = {
            (name, boot): _Boot(i, node, Seen(high, newest, holes_from_text(holes)))
            for i, node, name, boot, high, newest, holes in boots
        }
        by_id = {boot.id: boot.seen for boot in self._boots.values()}
        for boot_id, sequence, end_millis in pending:
            if boot_id in by_id:
                by_id[boot_id].offer(sequence, end_millis)

    def _store(self, fresh: Sequence[tuple[tuple[str, str], Sample]]) -> None:
        created: dict[tuple[str, str], _Boot] = {}
        nodes = dict(self._nodes)
        with Transaction(self._connection):
            for key in dict.fromkeys(key for key, _ in fresh):
                if key not in self._boots:
                    created[key] = self._create_boot(key, nodes, len(created))
            boots = {**self._boots, **created}
            self._insert([boots[key].id for key, _ in fresh], [sample for _, sample in fresh])
        self._nodes = nodes
        self._boots.update(created)

    def _create_boot(self, key: tuple[str, str], nodes: dict[str, int], offset: int) -> _Boot:
        name, boot_id = key
        if name not in nodes:
            nodes[name] = 1 + max(nodes.values(), default=0)
            self._connection.execute("INSERT INTO nodes VALUES (?, ?)", [nodes[name], name])
        boot = _Boot(1 + max((b.id for b in self._boots.values()), default=0) + offset, nodes[name], Seen())
        self._connection.execute("INSERT INTO boots VALUES (?, ?, ?, 0, 0, '')", [boot.id, boot.node_id, boot_id])
        return boot

    def _insert(self, boots: Sequence[int], samples: Sequence[Sample]) -> None:
        columns: dict[str, npt.NDArray[np.generic]] = {"boot": np.asarray(boots, dtype=np.int32)}
        for name, values in zip(Sample._fields, zip(*samples, strict=True), strict=True):
            columns[name] = _column(values, np.int64 if name in _INTEGERS else np.float64)
        self._insert_columns("samples", columns)

    def _insert_columns(self, table: str, columns: dict[str, npt.NDArray[np.generic]]) -> None:
        self._connection.register("incoming", columns)
        try:
            self._connection.execute(f"INSERT INTO {table} SELECT * FROM incoming")  # noqa: S608 - our own table names
        finally:
            self._connection.unregister("incoming")

    def _add_series(self) -> None:
        missing = [node for node in self._nodes.values() if node not in self._series]
        if not missing:
            return
        first = 1 + number(self._connection, "SELECT coalesce(max(id), 0) FROM series")
        pairs = [(node, kind) for node in missing for kind in _KINDS]
        self._insert_columns(
            "series",
            {
                "id": np.arange(first, first + len(pairs), dtype=np.int32),
                "node": np.asarray([node for node, _ in pairs], dtype=np.int32),
                "kind": np.asarray([kind for _, kind in pairs], dtype=object),
                "key": np.asarray([""] * len(pairs), dtype=object),
            },
        )
        self._series.update(missing)

    def _save_boots(self) -> None:
        boots = list(self._boots.values())
        if not boots:
            return
        self._connection.register(
            "incoming",
            {
                "id": np.asarray([boot.id for boot in boots], dtype=np.int32),
                "high": np.asarray([boot.seen.high for boot in boots], dtype=np.int64),
                "newest": np.asarray([boot.seen.newest_millis for boot in boots], dtype=np.int64),
                "holes": np.asarray([holes_to_text(boot.seen.holes) for boot in boots], dtype=object),
            },
        )
        try:
            self._connection.execute(
                "UPDATE boots SET high = incoming.high, newest_millis = incoming.newest, holes = incoming.holes "
                "FROM incoming WHERE boots.id = incoming.id AND boots.newest_millis <> incoming.newest"
            )
        finally:
            self._connection.unregister("incoming")


def open_history(directory: str) -> History:
    """Open or create the history in `directory`.

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
    connection = connect(path)
    try:
        with readable():
            _prepare(connection, path)
            return History(connection, path)
    except BaseException:
        connection.close()
        raise


def _prepare(connection: Connection, path: str) -> None:
    if not number(connection, "SELECT count(*) FROM information_schema.tables WHERE table_name = 'meta'"):
        with Transaction(connection):
            connection.execute(_SCHEMA)
            connection.execute("INSERT INTO meta VALUES ('format', ?), ('created_by', ?)", [str(FORMAT), __version__])
        return
    rows = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchall()
    found = int(rows[0][0]) if rows and str(rows[0][0]).isdigit() else None
    if found is None:
        raise HistoryCorrupt(f"{path} does not say which format it has")
    if found > FORMAT:
        raise StateError(
            f"{path} has history format {found}, this version knows up to {FORMAT}: upgrade Slacktide, or choose "
            "another --history-dir to start without history"
        )


def _fold_statement(columns: tuple[str, str, str, str, str, str]) -> str:
    cpu_mean, cpu_max, memory_mean, memory_max, requested_cpu, requested_memory = columns
    return f"""
        INSERT INTO slots
        SELECT series.id, (end_millis - 1) // {SLOT_MILLIS}, sum(window_millis),
            avg({cpu_mean}), quantile_disc({cpu_mean}, 0.9), max({cpu_max}),
            avg({memory_mean}), quantile_disc({memory_mean}, 0.9), max({memory_max}),
            max({requested_cpu})::BIGINT, max({requested_memory})::BIGINT
        FROM samples JOIN boots ON samples.boot = boots.id
            JOIN series ON series.node = boots.node AND series.kind = $1 AND series.key = ''
        WHERE end_millis <= $2
        GROUP BY ALL
        HAVING count({cpu_max}) + count({memory_max}) > 0"""  # noqa: S608 - built from the constants above only


def _column(values: Sequence[int | float | None], dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    missing = [value is None for value in values]
    filled = np.asarray([0 if value is None else value for value in values], dtype=dtype)
    return np.ma.MaskedArray(filled, mask=missing) if any(missing) else filled


def _floats(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    return np.ma.filled(np.ma.asarray(values).astype(np.float64), np.nan)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0
