"""Tables of the history, format 2, and how a file of format 1 becomes one of format 2.

    meta        format and version
    nodes       a name may have several: `retired` ones were replaced by another machine of the same name
    boots       which samples of a boot are durable (see `predictor.sequences`)
    samples     every sample that is not folded yet, as it came
    node_slots  use per node and 5-minute slot: mean, p90 and maximum of CPU and memory of each kind. Rows stand in
                order of time, so that a question about some days reads those days only; no slot has a node twice.
    pods        name, group, tier, node and newest requests of a pod
    pod_hours   use of a pod in an hour that is over; open_hours the same for the hour that goes on
    state       what others keep here under a key

Amounts are whole: millicores and bytes. NULL is "not measured".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from predictor.samples import Sample
from predictor.storage import Connection, HistoryCorrupt, Transaction, number
from slacktide import __version__
from slacktide.errors import StateError

FORMAT: Final = 2
PROTECTED: Final = "protected"
"""Kind of the use that is forecast: LS + SYSTEM."""

SAMPLE_INTEGERS: Final = tuple(name for name in Sample._fields if name != "ls_pressure")

_MEASURES: Final = tuple(f"{resource}_{what}" for resource in ("cpu", "memory") for what in ("mean", "p90", "max"))
_TIERS: Final = ("ls", "system", "be")
_REQUESTS: Final = ("requested_cpu", "requested_memory")


class Kind(NamedTuple):
    """Columns of `node_slots` of one kind of use, in the order of `predictor.store.columns.SlotColumns`; None where
    the kind has no such thing."""

    cpu_mean: str
    cpu_p90: str
    cpu_max: str
    memory_mean: str
    memory_p90: str
    memory_max: str
    requested_cpu: str | None
    requested_memory: str | None


def _kind(name: str, requests_of: str | None) -> Kind:
    requests = [None if requests_of is None else f"{requests_of}_{request}" for request in _REQUESTS]
    return Kind._make([*(f"{name}_{measure}" for measure in _MEASURES), *requests])


KINDS: Final[dict[str, Kind]] = {
    "ls": _kind("ls", "ls"),
    "system": _kind("system", None),
    "be": _kind("be", "be"),
    PROTECTED: _kind(PROTECTED, "ls"),
    "capacity": Kind._make([*["capacity_cpu"] * 3, *["capacity_memory"] * 3, None, None]),
}

VALUES: Final = tuple(dict.fromkeys(column for kind in KINDS.values() for column in kind if column is not None))
"""Columns of `node_slots` behind the first four."""

_SAMPLE_COLUMNS: Final = ", ".join(
    f"{name} {'BIGINT' if name in SAMPLE_INTEGERS else 'DOUBLE'}" for name in Sample._fields
)
_HOUR_COLUMNS: Final = (
    "hour INTEGER, pod INTEGER, slots INTEGER, cpu_mean BIGINT, cpu_max BIGINT, memory_mean BIGINT, memory_max BIGINT"
)
_NEW_TABLES: Final = f"""
CREATE TABLE node_slots (slot INTEGER, node INTEGER, imported BOOLEAN, covered_millis BIGINT,
    {", ".join(f"{column} BIGINT" for column in VALUES)});
CREATE TABLE pods (id INTEGER, uid VARCHAR, namespace VARCHAR, name VARCHAR, node VARCHAR, owner VARCHAR,
    tier VARCHAR, requested_cpu BIGINT, requested_memory BIGINT);
CREATE TABLE pod_hours ({_HOUR_COLUMNS});
CREATE TABLE open_hours ({_HOUR_COLUMNS});
CREATE TABLE state (key VARCHAR, value BLOB);
"""
_SCHEMA: Final = f"""
CREATE TABLE meta (key VARCHAR, value VARCHAR);
CREATE TABLE nodes (id INTEGER, name VARCHAR, retired BOOLEAN);
CREATE TABLE boots (id INTEGER, node INTEGER, boot VARCHAR, high BIGINT, newest_millis BIGINT, holes VARCHAR);
CREATE TABLE samples (boot INTEGER, {_SAMPLE_COLUMNS});
{_NEW_TABLES}"""


def prepare(connection: Connection, path: str) -> None:
    """Make the tables of a new file, bring an older format up to date.

    Raises StateError when the file is of a newer version, HistoryCorrupt when it does not say which, duckdb.Error.
    """
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
    if found == 1:
        _from_format_1(connection)


def _from_format_1(connection: Connection) -> None:
    """Format 1 had a row per kind in a table `slots`, and no pods."""
    with Transaction(connection):
        connection.execute(_NEW_TABLES)
        connection.execute("ALTER TABLE nodes ADD COLUMN retired BOOLEAN DEFAULT false")
        connection.execute(
            f"""INSERT INTO node_slots BY NAME
                SELECT slot, node, false AS imported, max(covered_millis) AS covered_millis, {_pivot()}
                FROM slots JOIN series ON slots.series = series.id
                GROUP BY slot, node ORDER BY slot, node"""  # noqa: S608 - built from the constants above only
        )
        connection.execute("DROP TABLE slots")
        connection.execute("DROP TABLE series")
        connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", [str(FORMAT)])


def _pivot() -> str:
    """Columns of `node_slots` out of the rows of format 1, whose kinds had columns of the same names."""
    picked = {}
    for name, kind in KINDS.items():
        for old, column in zip(Kind._fields, kind, strict=True):
            if column is not None:
                picked[column] = f"(max({old}) FILTER (kind = '{name}'))::BIGINT AS {column}"
    return ", ".join(picked.values())
