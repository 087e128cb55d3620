"""Nodes by name, and which samples of each of their boots are durable."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from predictor.sequences import Seen, holes_from_text, holes_to_text
from predictor.storage import Connection, insert, number
from predictor.store.values import texts

BootKey = tuple[str, str]
"""Node name and boot id."""


@dataclasses.dataclass(slots=True)
class Boot:
    """A boot with what is durable of it."""

    id: int
    node: int
    seen: Seen


class BootTable:
    """Nodes and boots on one connection. What is written here is part of the caller's transaction, and what is in
    memory changes by `adopt` only, once that transaction is durable. Methods raise duckdb.Error."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.nodes: dict[str, int] = {}
        self.boots: dict[BootKey, Boot] = {}
        self.load()

    def load(self) -> None:
        """Read everything anew."""
        execute = self._connection.execute
        rows = execute("SELECT id, name FROM nodes WHERE NOT retired").fetchall()
        self.nodes = {str(name): int(node) for node, name in rows}
        boots = execute(
            "SELECT boots.id, node, name, boot, high, newest_millis, holes FROM boots JOIN nodes ON node = nodes.id"
        ).fetchall()
        self.boots = {
            (name, boot): Boot(i, node, Seen(high, newest, holes_from_text(holes)))
            for i, node, name, boot, high, newest, holes in boots
        }
        self._load_pending()

    def ids_of(self, names: Iterable[str]) -> dict[str, int]:
        """Ids of these nodes; those that are new are added."""
        known = dict(self.nodes)
        new = [name for name in dict.fromkeys(names) if name not in known]
        if new:
            first = self._next("nodes")
            known.update(zip(new, range(first, first + len(new)), strict=True))
            ids = np.asarray([known[name] for name in new])
            insert(
                self._connection, "nodes", {"id": ids, "name": texts(new), "retired": np.zeros(len(new), dtype=bool)}
            )
        return known

    def create(self, keys: Iterable[BootKey], nodes: dict[str, int]) -> dict[BootKey, Boot]:
        """Boots of `keys`, as yet without samples."""
        first = self._next("boots")
        created = {key: Boot(i, nodes[key[0]], Seen()) for i, key in enumerate(keys, first)}
        insert(
            self._connection,
            "boots",
            {
                "id": np.asarray([boot.id for boot in created.values()]),
                "node": np.asarray([boot.node for boot in created.values()]),
                "boot": texts([boot for _, boot in created]),
                "high": np.zeros(len(created), dtype=np.int64),
                "newest_millis": np.zeros(len(created), dtype=np.int64),
                "holes": texts([""] * len(created)),
            },
        )
        return created

    def adopt(self, nodes: dict[str, int], created: dict[BootKey, Boot]) -> None:
        """Take over what `ids_of` and `create` answered."""
        self.nodes = nodes
        self.boots.update(created)

    def save(self, parts: int = 1, part: int = 0) -> None:
        """Write what is durable of the boots of each `parts`-th node, for when the samples it is known by go."""
        boots = [boot for boot in self.boots.values() if boot.node % parts == part]
        if not boots:
            return
        self._connection.register(
            "seen",
            {
                "id": np.asarray([boot.id for boot in boots], dtype=np.int32),
                "high": np.asarray([boot.seen.high for boot in boots], dtype=np.int64),
                "newest": np.asarray([boot.seen.newest_millis for boot in boots], dtype=np.int64),
                "holes": texts([holes_to_text(boot.seen.holes) for boot in boots]),
            },
        )
        try:
            self._connection.execute(
                "UPDATE boots SET high = seen.high, newest_millis = seen.newest, holes = seen.holes "
                "FROM seen WHERE boots.id = seen.id AND (boots.high <> seen.high OR boots.newest_millis <> seen.newest "
                "OR boots.holes <> seen.holes)"
            )
        finally:
            self._connection.unregister("seen")

    def retire(self, name: str) -> None:
        """Begin anew under `name`: its boots go on as those of another node."""
        old, new = self.nodes[name], self._next("nodes")
        self._connection.execute("UPDATE nodes SET retired = true WHERE id = ?", [old])
        self._connection.execute("INSERT INTO nodes VALUES (?, ?, false)", [new, name])
        self._connection.execute("UPDATE boots SET node = ? WHERE node = ?", [new, old])

    def forget_unused(self) -> None:
        """Remove nodes without boots and without slots. Few come into question: only for them all slots are read."""
        execute = self._connection.execute
        execute("CREATE OR REPLACE TEMP TABLE idle AS SELECT id FROM nodes WHERE id NOT IN (SELECT node FROM boots)")
        execute("DELETE FROM idle WHERE id IN (SELECT node FROM node_slots WHERE node IN (FROM idle))")
        execute("DELETE FROM nodes WHERE id IN (FROM idle)")
        execute("DROP TABLE idle")

    def _next(self, table: str) -> int:
        return number(self._connection, f"SELECT coalesce(max(id), 0) + 1 FROM {table}")  # noqa: S608 - our own table names

    def _load_pending(self) -> None:
        """Samples that are not folded are the only place that says they are durable."""
        rows = self._connection.execute(
            "SELECT boot, min(sequence), max(sequence), count(*), max(end_millis) FROM samples GROUP BY boot"
        ).fetchall()
        by_id = {boot.id: boot.seen for boot in self.boots.values()}
        ragged = []
        for boot, first, last, count, newest in rows:
            seen = by_id.get(boot)
            if seen is None:
                continue
            if first == seen.high + 1 and last - first + 1 == count:
                seen.high, seen.newest_millis = last, max(seen.newest_millis, newest)
            else:
                ragged.append(boot)
        if ragged:
            pending = self._connection.execute(
                "SELECT boot, sequence, end_millis FROM samples WHERE boot IN (SELECT unnest(?)) ORDER BY rowid",
                [ragged],
            ).fetchall()
            for boot, sequence, end_millis in pending:
                by_id[boot].offer(sequence, end_millis)
