"""Hourly use of pods in the history: storing what is known, and reading it back in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from predictor.storage import Connection, Transaction, insert, number, readable
from predictor.store.columns import Imported, Integers, Pod, PodHours, PodReport
from predictor.store.combine import combined_hours, picked_hours
from predictor.store.values import floats, integers, texts, whole

_PART_ROWS: Final = 1_500_000
_RECENT_HOURS: Final = 24
_MEASURES: Final = ("cpu_mean", "cpu_max", "memory_mean", "memory_max")


class PodTable:
    """Pods and their hours on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, tuple[int, Pod]] = {}

    def save(self, report: PodReport) -> None:
        """Store `report` in one transaction. Raises HistoryError; nothing is stored then."""
        pods = {pod.uid: pod for hours in report for pod in hours.pods}
        with Transaction(self._connection):
            known = self._store_pods(pods)
            self._insert("pod_hours", report.closed, known)
            self._connection.execute("DELETE FROM open_hours")
            self._insert("open_hours", report.open, known)
        # Only what was just spoken of is remembered: pods come and go, and any can be looked up again.
        self._known = known

    def take(self, hours: PodHours) -> Imported:
        """Store hours from elsewhere, except those that are there already. Raises HistoryError."""
        if not len(hours.pod):
            return Imported(0, 0)
        low, high = int(hours.hour.min()), int(hours.hour.max())
        with Transaction(self._connection):
            known = self._store_pods({pod.uid: pod for pod in hours.pods})
            found = self._connection.execute(
                "SELECT pod, hour FROM pod_hours WHERE hour BETWEEN ? AND ?", [low, high]
            ).fetchnumpy()
            there = integers(found["pod"]) * (high - low + 1) + integers(found["hour"]) - low
            ids = _ids(hours.pods, known)[hours.pod]
            fresh = ~np.isin(ids * (high - low + 1) + hours.hour - low, there)
            self._insert("pod_hours", picked_hours(hours, fresh), known)
        return Imported(int(fresh.sum()), int((~fresh).sum()))

    def read(self, since_hour: int) -> Iterator[PodHours]:
        """Hours from `since_hour` on, oldest first; the last part has those that go on. Raises HistoryError."""
        with readable():
            pods, index = self._read_pods(since_hour)
            first, last, rows = self._extent(since_hour)
        self._known = {
            pod.uid: (pod_id, pod) for pod_id, pod in zip(np.flatnonzero(index >= 0).tolist(), pods, strict=True)
        }
        step = max(1, _PART_ROWS * (last - first + 1) // max(rows, 1))
        for start in range(first, last + 1, step):
            with readable():
                part = self._read_part("pod_hours", pods, index, start, start + step)
            yield part
        with readable():
            part = self._read_part("open_hours", pods, index, since_hour, int(np.iinfo(np.int32).max))
        yield part

    def prune(self, before_hour: int) -> None:
        """Remove hours before `before_hour`, inside a transaction. Raises duckdb.Error."""
        self._connection.execute("DELETE FROM pod_hours WHERE hour < ?", [before_hour])
        self._connection.execute("DELETE FROM open_hours WHERE hour < ?", [before_hour])

    def forget_unused(self) -> None:
        """Remove pods of which no hour is left, inside a transaction. Raises duckdb.Error.

        Most have one in the newest days: only for the others all hours are read.
        """
        execute = self._connection.execute
        newest = number(self._connection, "SELECT coalesce(max(hour), 0) FROM pod_hours")
        execute(
            "CREATE OR REPLACE TEMP TABLE idle AS SELECT id FROM pods WHERE id NOT IN "
            "(SELECT pod FROM pod_hours WHERE hour > ? UNION SELECT pod FROM open_hours)",
            [newest - _RECENT_HOURS],
        )
        execute("DELETE FROM idle WHERE id IN (SELECT pod FROM pod_hours WHERE pod IN (FROM idle))")
        execute("DELETE FROM pods WHERE id IN (FROM idle)")
        execute("DROP TABLE idle")
        self._known = {}

    def _store_pods(self, pods: dict[str, Pod]) -> dict[str, tuple[int, Pod]]:
        """Ids of `pods` by uid; those that are new or changed are stored."""
        changed = [pod for uid, pod in pods.items() if self._known.get(uid, (0, None))[1] != pod]
        known = {uid: self._known[uid] for uid in pods if uid in self._known}
        if not changed:
            return known
        columns = {field: texts([str(getattr(pod, field)) for pod in changed]) for field in Pod._fields[:6]}
        requests = {field: whole(np.asarray([getattr(pod, field) for pod in changed])) for field in Pod._fields[6:]}
        first = number(self._connection, "SELECT coalesce(max(id), 0) + 1 FROM pods")
        self._connection.register("named", {"row": np.arange(len(changed)), **columns, **requests})
        try:
            self._connection.execute(
                "UPDATE pods SET owner = CASE named.group WHEN '' THEN owner ELSE named.group END, "
                "requested_cpu = coalesce(named.requested_cpu, pods.requested_cpu), "
                "requested_memory = coalesce(named.requested_memory, pods.requested_memory) "
                "FROM named WHERE pods.uid = named.uid"
            )
            self._connection.execute(
                'INSERT INTO pods SELECT ? + row, uid, namespace, name, node, "group", tier, '
                "requested_cpu, requested_memory FROM named WHERE uid NOT IN (SELECT uid FROM pods)",
                [first],
            )
            found = self._connection.execute("SELECT row, id FROM named JOIN pods ON pods.uid = named.uid").fetchnumpy()
        finally:
            self._connection.unregister("named")
        for row, pod_id in zip(found["row"], found["id"], strict=True):
            known[changed[row].uid] = (int(pod_id), changed[row])
        return known

    def _insert(self, table: str, hours: PodHours, known: dict[str, tuple[int, Pod]]) -> None:
        if not len(hours.pod):
            return
        ids = _ids(hours.pods, known)[hours.pod]
        order = np.lexsort((ids, hours.hour))
        values = {field: whole(getattr(hours, field)[order]) for field in _MEASURES}
        insert(
            self._connection,
            table,
            {"hour": hours.hour[order], "pod": ids[order], "slots": hours.slots[order], **values},
        )

    def _read_pods(self, since_hour: int) -> tuple[list[Pod], Integers]:
        """The pods with an hour since then, and where in that list each id is."""
        rows = self._connection.execute(
            "SELECT id, uid, namespace, name, node, owner, tier, requested_cpu, requested_memory FROM pods "
            "WHERE id IN (SELECT DISTINCT pod FROM pod_hours WHERE hour >= $1 UNION SELECT pod FROM open_hours) "
            "ORDER BY id",
            [since_hour],
        ).fetchall()
        index = np.full(1 + max((row[0] for row in rows), default=0), -1, dtype=np.int64)
        index[[row[0] for row in rows]] = np.arange(len(rows))
        return [Pod._make([*row[1:7], _known(row[7]), _known(row[8])]) for row in rows], index

    def _extent(self, since_hour: int) -> tuple[int, int, int]:
        rows = self._connection.execute(
            "SELECT min(hour), max(hour), count(*) FROM pod_hours WHERE hour >= ?", [since_hour]
        ).fetchall()
        first, last, count = rows[0]
        return (0, -1, 0) if first is None else (int(first), int(last), int(count))

    def _read_part(self, table: str, pods: list[Pod], index: Integers, start: int, end: int) -> PodHours:
        found = self._connection.execute(
            f"SELECT * FROM {table} WHERE hour >= ? AND hour < ?",  # noqa: S608 - our own table names
            [start, end],
        ).fetchnumpy()
        pod, hour = index[integers(found["pod"])], integers(found["hour"])
        named = pod >= 0
        measures = (floats(found[field]) for field in _MEASURES)
        part = PodHours._make([pods, pod, hour, integers(found["slots"]), *measures])
        part = part if named.all() else picked_hours(part, named)
        return combined_hours(part)


def _ids(pods: Sequence[Pod], known: dict[str, tuple[int, Pod]]) -> Integers:
    return np.asarray([known[pod.uid][0] for pod in pods], dtype=np.int64)


def _known(value: int | None) -> float:
    return float("nan") if value is None else float(value)
