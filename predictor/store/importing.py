"""Use that was measured elsewhere, such as by Prometheus, becomes slot rows. What Slacktide measured stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from predictor.slots import SLOT_MILLIS
from predictor.storage import Connection, insert, number
from predictor.store.columns import Imported, SlotColumns
from predictor.store.schema import KINDS, VALUES, Kind
from predictor.store.values import whole

_SAME: Final = "node_slots.slot = fresh.slot AND node_slots.node = fresh.node"


def import_kinds(connection: Connection, kinds: Mapping[str, SlotColumns], ids: Mapping[str, int]) -> Imported:
    """Store `kinds` of use, of nodes with these `ids`, inside a transaction; a row that was imported before is
    completed or replaced. Raises duckdb.Error."""
    connection.execute("CREATE OR REPLACE TEMP TABLE given AS FROM node_slots LIMIT 0")
    for name, columns in kinds.items():
        _give(connection, KINDS[name], columns, ids)
    highest = ", ".join(f"max({column}) AS {column}" for column in ("covered_millis", *VALUES))
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE fresh AS SELECT slot, node, true AS imported, {highest} FROM given "  # noqa: S608 - our own column names
        "GROUP BY slot, node"
    )
    offered = number(connection, "SELECT count(*) FROM fresh")
    span = _span(connection)
    _leave_measured(connection, span)
    stored = number(connection, "SELECT count(*) FROM fresh")
    _replace(connection, span)
    for table in ("given", "fresh"):
        connection.execute(f"DROP TABLE {table}")
    return Imported(stored, offered - stored)


def _give(connection: Connection, kind: Kind, columns: SlotColumns, ids: Mapping[str, int]) -> None:
    node = np.asarray([ids[name] for name in columns.names], dtype=np.int64)[columns.node]
    given: dict[str, npt.NDArray[np.generic]] = {
        "slot": columns.slot,
        "node": node,
        "covered_millis": columns.covered_millis,
    }
    for field, column in zip(Kind._fields, kind, strict=True):
        if column is not None:
            given[column] = whole(getattr(columns, field))
    insert(connection, "given", given)


def _span(connection: Connection) -> list[int]:
    """First and last slot that are given: a bound lets DuckDB skip all other days of a large table."""
    rows = connection.execute("SELECT coalesce(min(slot), 0), coalesce(max(slot), -1) FROM fresh").fetchall()
    return [int(value) for value in rows[0]]


def _leave_measured(connection: Connection, span: list[int]) -> None:
    connection.execute(
        f"DELETE FROM fresh USING node_slots WHERE NOT node_slots.imported AND {_SAME} "  # noqa: S608 - as above
        "AND node_slots.slot BETWEEN ? AND ?",
        span,
    )
    connection.execute(
        "DELETE FROM fresh WHERE (slot, node) IN (SELECT ((end_millis - 1) // ?)::INTEGER, boots.node "
        "FROM samples JOIN boots ON samples.boot = boots.id)",
        [SLOT_MILLIS],
    )


def _replace(connection: Connection, span: list[int]) -> None:
    filled = ", ".join(f"coalesce(fresh.{column}, old.{column}) AS {column}" for column in VALUES)
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE given AS SELECT slot, node, true AS imported, "  # noqa: S608 - as above
        f"greatest(fresh.covered_millis, old.covered_millis) AS covered_millis, {filled} FROM fresh LEFT JOIN "
        "(FROM node_slots WHERE imported AND slot BETWEEN ? AND ?) AS old USING (slot, node)",
        span,
    )
    connection.execute(
        f"DELETE FROM node_slots USING fresh WHERE node_slots.imported AND {_SAME} "  # noqa: S608 - as above
        "AND node_slots.slot BETWEEN ? AND ?",
        span,
    )
    connection.execute("INSERT INTO node_slots BY NAME SELECT * FROM given ORDER BY slot, node")
