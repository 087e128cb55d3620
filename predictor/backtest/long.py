"""Long CSV and Parquet, one row a sample: read with DuckDB, every row that cannot be used found with its number."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt

from predictor.backtest import columns
from predictor.backtest.trace import BadInput, Reading
from predictor.models.base import Floats, Integers

_ZONE: Final = r"\d:\d\d.*?\s?(Z|z|[+-]\d{2}(:?\d{2})?|[A-Za-z]+(/[A-Za-z_]+)*)$"
_MISSING: Final = "('', 'nan', 'null', 'none', 'na', 'n/a', '-')"
_SNIFFED_ROWS: Final = 1000
_MEDIAN_TIMES: Final = 1e6
"""A usage so many times the file's median is a slip of the unit, not a use."""

_PROBLEMS: Final = {
    1: ("time {time!r} cannot be read", "give epoch seconds, or ISO 8601 such as 2026-01-31T13:05:00Z"),
    2: ("time {time!r} has no time zone while others have", "give all times one, or none (then they are UTC)"),
    3: ("usage {usage!r} is no number", "leave it empty where nothing was measured"),
    4: ("usage {usage!r} is negative", "leave it empty where nothing was measured"),
    5: ("usage {usage!r} is not finite", "leave it empty where nothing was measured"),
    6: ("request {request!r} is no number of at least 0", "leave it empty where it is not known"),
    7: ("the node is empty", "name the node in each row, or leave the column out"),
    8: ("the series is empty", "name the series in each row, or leave the column out"),
    9: ("usage {usage!r} is over a million times the median", "give all usages in one unit"),
}
"""What can be wrong with a row, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Samples of one or several files, in the order of `keys` and time.

    micros (rows,) microseconds since the epoch. key (rows,) index into keys. file, row: where it stands.
    keys   (node or None, series).
    """

    files: tuple[str, ...]
    micros: Integers
    key: Integers
    usage: Floats
    requested: Floats
    file: Integers
    row: Integers
    keys: tuple[tuple[str | None, str], ...]
    notes: tuple[str, ...]

    def place(self, index: int) -> str:
        """File and row, for a person: a CSV's line, counting its heading; a Parquet's row, counting from 1."""
        return place(self.files[int(self.file[index])], int(self.row[index]))


def is_parquet(path: str) -> bool:
    """Whether the file is Parquet, by its first bytes. Raises BadInput when it cannot be opened."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PAR1"
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name a CSV or Parquet file that can be read") from error


def place(path: str, row: int) -> str:
    """File and row as a person finds it."""
    return f"{path} row {row}" if is_parquet(path) else f"{path} line {row + 1}"


def source(connection: duckdb.DuckDBPyConnection, path: str) -> duckdb.DuckDBPyRelation:
    """The file as a relation; a CSV's columns are text. Raises BadInput."""
    try:
        if is_parquet(path):
            return connection.from_parquet(path)
        return connection.read_csv(path, header=True, all_varchar=True)
    except duckdb.Error as error:
        raise _unreadable(path, error) from error


def read_long(paths: Sequence[str], reading: Reading) -> Rows:
    """All rows of the files. Raises BadInput with every kind of problem and its first row."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone='UTC'")
        connection.execute(
            "CREATE TABLE sample (file INT, row BIGINT, micros BIGINT, zone VARCHAR, node VARCHAR, series VARCHAR,"
            " usage DOUBLE, request DOUBLE, problem INT)"
        )
        notes = [note for number, path in enumerate(paths) for note in _load(connection, number, path)]
        notes += _drop_bad(connection, paths, reading)
        notes += _zones(connection)
        return _fetch(connection, paths, notes)


def _load(connection: duckdb.DuckDBPyConnection, number: int, path: str) -> list[str]:
    relation = source(connection, path)
    found = columns.long(path, relation.columns)
    picked = _picked(relation, found)  # noqa: F841 - DuckDB finds the relation by this name
    try:
        sniffed = connection.execute(
            "SELECT max(abs(try_cast(time AS DOUBLE))) FILTER (isfinite(try_cast(time AS DOUBLE))),"
            " coalesce(count_if(regexp_matches(time, ?)), 0), count(time)"
            " FROM (SELECT trim(time) AS time FROM picked WHERE time IS NOT NULL LIMIT ?)",
            [_ZONE, _SNIFFED_ROWS],
        ).fetchone()
        assert sniffed is not None
        largest, zoned, rows = sniffed
        unit = columns.micros_per_unit(largest or 0.0)
        connection.execute(_INSERT, {"file": number, "zone": _ZONE, "unit": unit, "is_zoned": zoned > 0})
    except duckdb.Error as error:
        raise _unreadable(path, error) from error
    if not rows:
        raise BadInput(f"{path}: no rows; give at least two samples a series")
    notes = [] if largest is not None or zoned else [f"{path}: times without a zone are taken as UTC"]
    if "series" not in found and "node" not in found:
        notes.append(f"{path}: no column for the series, so all rows are one series")
    return notes


def _picked(relation: duckdb.DuckDBPyRelation, found: dict[str, str]) -> duckdb.DuckDBPyRelation:
    """Five columns as text, and the two numbers as they are where they are numbers: text would round a float."""
    types = dict(zip(relation.columns, map(str, relation.types), strict=True))
    nothing = duckdb.ConstantExpression(None)
    chosen: list[duckdb.Expression] = []
    for meaning in columns.ALIASES:
        column = found.get(meaning)
        text: duckdb.Expression = nothing if column is None else duckdb.ColumnExpression(column)
        chosen.append(text.cast("VARCHAR").alias(meaning))
        if meaning in {"usage", "request"}:
            numeric = column is not None and types[column] != "VARCHAR"
            chosen.append((text if numeric else nothing).cast("DOUBLE").alias(f"{meaning}_number"))
    single = "series" not in found and "node" not in found
    chosen.append(duckdb.ConstantExpression("all" if single else None).cast("VARCHAR").alias("single"))
    chosen.append(duckdb.ConstantExpression("node" in found).alias("has_node"))
    return relation.select(*chosen)


_INSERT: Final = f"""
INSERT INTO sample BY NAME
WITH text AS (
    SELECT row_number() OVER () AS row, trim(time) AS time, has_node,
           nullif(trim(node), '') AS node, nullif(trim(coalesce(single, series, node)), '') AS series,
           trim(usage) AS usage, usage_number, trim(request) AS request, request_number
    FROM picked),
cast_ AS (
    SELECT row, has_node, node, series,
           CASE WHEN try_cast(time AS DOUBLE) IS NULL THEN epoch_us(try_cast(time AS TIMESTAMPTZ))
                WHEN NOT isfinite(try_cast(time AS DOUBLE)) THEN NULL
                WHEN $unit > 0 THEN CAST(round(try_cast(time AS DOUBLE) * $unit) AS BIGINT)
                ELSE CAST(round(try_cast(time AS DOUBLE) / 1000) AS BIGINT) END AS micros,
           CASE WHEN try_cast(time AS DOUBLE) IS NULL THEN regexp_extract(time, $zone, 1) END AS zone,
           coalesce(usage_number, try_cast(usage AS DOUBLE)) AS usage,
           usage IS NULL OR lower(usage) IN {_MISSING} AS usage_missing,
           coalesce(request_number, try_cast(request AS DOUBLE)) AS request,
           request IS NULL OR lower(request) IN {_MISSING} AS request_missing
    FROM text)
SELECT $file AS file, row, micros, nullif(zone, '') AS zone, node, series,
       CASE WHEN NOT usage_missing THEN usage END AS usage,
       CASE WHEN NOT request_missing THEN request END AS request,
       CASE WHEN micros IS NULL THEN 1
            WHEN zone = '' AND $is_zoned THEN 2
            WHEN has_node AND node IS NULL THEN 7
            WHEN series IS NULL THEN 8
            WHEN usage_missing AND request_missing THEN NULL
            WHEN NOT usage_missing AND usage IS NULL THEN 3
            WHEN NOT usage_missing AND NOT isfinite(usage) THEN 5
            WHEN NOT usage_missing AND usage < 0 THEN 4
            WHEN NOT request_missing AND (request IS NULL OR NOT isfinite(request) OR request < 0) THEN 6
       END AS problem
FROM cast_
"""  # noqa: S608 - our own text


def _drop_bad(connection: duckdb.DuckDBPyConnection, paths: Sequence[str], reading: Reading) -> list[str]:
    connection.execute(
        "UPDATE sample SET problem = 9 WHERE problem IS NULL AND usage > ? *"
        " (SELECT median(usage) FROM sample WHERE problem IS NULL AND usage > 0)",
        [_MEDIAN_TIMES],
    )
    bad = connection.execute(
        "SELECT file, problem, min(row), count(*) FROM sample WHERE problem IS NOT NULL GROUP BY ALL ORDER BY 1, 3"
    ).fetchall()
    if not bad:
        return []
    connection.execute("DELETE FROM sample WHERE problem IS NOT NULL")
    said = [_said(connection, paths[file], problem, row, count) for file, problem, row, count in bad]
    if not reading.skip_bad_rows:
        raise BadInput("; ".join(said) + "; or let --skip-bad-rows drop such rows")
    if connection.execute("SELECT count(*) FROM sample").fetchone() == (0,):
        raise BadInput("; ".join(said) + "; no row is left")
    dropped = sum(count for *_, count in bad)
    return [f"{dropped} bad rows dropped: " + "; ".join(said)]


def _said(connection: duckdb.DuckDBPyConnection, path: str, problem: int, row: int, count: int) -> str:
    relation = source(connection, path)
    picked = _picked(relation, columns.long(path, relation.columns))
    values = dict(zip(picked.columns, picked.limit(1, offset=row - 1).fetchall()[0], strict=True))
    wrong, remedy = _PROBLEMS[problem]
    more = f" (and {count - 1} more such rows)" if count > 1 else ""
    return f"{place(path, row)}: {wrong.format_map(values)}{more}: {remedy}"


def _zones(connection: duckdb.DuckDBPyConnection) -> list[str]:
    found = connection.execute("SELECT DISTINCT zone FROM sample WHERE zone IS NOT NULL ORDER BY 1").fetchall()
    names = [zone for (zone,) in found]
    if len(names) < 2:
        return []
    return [f"times are in {len(names)} zones ({', '.join(names[:5])}): each is taken as the instant that it is"]


def _fetch(connection: duckdb.DuckDBPyConnection, paths: Sequence[str], notes: list[str]) -> Rows:
    connection.execute(
        "CREATE TABLE key AS SELECT row_number() OVER (ORDER BY node, series) - 1 AS key, node, series"
        " FROM (SELECT DISTINCT node, series FROM sample)"
    )
    keys = connection.execute("SELECT node, series FROM key ORDER BY key").fetchall()
    taken: dict[str, npt.NDArray[Any]] = connection.execute(
        "SELECT key, micros, usage, request, file, row FROM sample JOIN key"
        " ON sample.series = key.series AND sample.node IS NOT DISTINCT FROM key.node"
    ).fetchnumpy()
    order = np.lexsort((taken["row"], taken["file"], taken["micros"], taken["key"]))

    def column(name: str) -> npt.NDArray[Any]:
        values = taken[name]
        return np.asarray(np.ma.filled(values, np.nan) if values.dtype.kind == "f" else values)[order]

    return Rows(
        files=tuple(paths),
        micros=column("micros"),
        key=column("key"),
        usage=column("usage"),
        requested=column("request"),
        file=column("file"),
        row=column("row"),
        keys=tuple((node, series) for node, series in keys),
        notes=tuple(notes),
    )


def _unreadable(path: str, error: duckdb.Error) -> BadInput:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = "; ".join(lines[:3])
    return BadInput(f"{path}: cannot be read as CSV or Parquet: {said}")
