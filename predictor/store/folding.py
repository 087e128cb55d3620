"""Samples of past slots become slot rows."""

from __future__ import annotations

from typing import Final

from predictor.slots import SLOT_MILLIS
from predictor.storage import Connection
from predictor.store.schema import PROTECTED, VALUES

_RESOURCES: Final = ("cpu", "memory")
_TIERS: Final = ("ls", "system", "be")
_SOURCES: Final = {
    **{tier: f"{tier}_{{0}}" for tier in _TIERS},
    # A sum with a part that is NULL is NULL, as it must be.
    PROTECTED: "ls_{0} + system_{0}",
}


def _made_of() -> dict[str, str]:
    """What each column of `node_slots` is over the samples of a slot."""
    columns = {}
    for tier, source in _SOURCES.items():
        for resource in _RESOURCES:
            mean, highest = source.format(f"{resource}_mean"), source.format(f"{resource}_max")
            columns[f"{tier}_{resource}_mean"] = f"avg({mean})"
            columns[f"{tier}_{resource}_p90"] = f"quantile_disc({mean}, 0.9)"
            columns[f"{tier}_{resource}_max"] = f"max({highest})"
    return {**columns, **{column: f"max({column})" for column in VALUES if column not in columns}}


def _combined(column: str) -> str:
    """What stands for a slot of which some samples came late: never less than what stood."""
    if not column.endswith("_mean"):
        return f"max({column})"
    return f"sum({column}::DOUBLE * covered_millis) / (sum(covered_millis) FILTER ({column} IS NOT NULL))"


_MEASURED: Final = " + ".join(
    f"count({what})"
    for what in ("capacity_cpu", "capacity_memory", *(f"{tier}_{r}_max" for tier in _TIERS for r in _RESOURCES))
)
_FOLD: Final = f"""
    CREATE OR REPLACE TEMP TABLE folded AS
    SELECT ((end_millis - 1) // {SLOT_MILLIS})::INTEGER AS slot, node, false AS imported,
        sum(window_millis)::BIGINT AS covered_millis,
        {", ".join(f"({expression})::BIGINT AS {column}" for column, expression in _made_of().items())}
    FROM samples JOIN boots ON samples.boot = boots.id
    WHERE end_millis <= $1 AND node % $2 = $3
    GROUP BY slot, node
    HAVING {_MEASURED} > 0"""  # noqa: S608 - built from the constants above only
_STANDING: Final = "node_slots.slot BETWEEN ? AND ? AND node_slots.slot = folded.slot AND node_slots.node = folded.node"
_TAKE_STANDING: Final = f"""
    INSERT INTO folded BY NAME
    SELECT node_slots.* FROM node_slots, folded WHERE NOT node_slots.imported AND {_STANDING}"""  # noqa: S608 - as above
_STORE: Final = f"""
    INSERT INTO node_slots BY NAME
    SELECT slot, node, false AS imported, sum(covered_millis)::BIGINT AS covered_millis,
        {", ".join(f"({_combined(column)})::BIGINT AS {column}" for column in VALUES)}
    FROM folded GROUP BY slot, node ORDER BY slot, node"""  # noqa: S608 - as above


def fold(connection: Connection, edge_millis: int, parts: int, part: int) -> None:
    """Add slot rows for the samples that ended by `edge_millis` of each `parts`-th node, inside a transaction.

    What stands for the same time is combined with them; what was imported for it goes. Raises duckdb.Error.
    """
    connection.execute(_FOLD, [edge_millis, parts, part])
    rows = connection.execute("SELECT coalesce(min(slot), 0), coalesce(max(slot), -1) FROM folded").fetchall()
    span = list(rows[0])
    connection.execute(_TAKE_STANDING, span)
    connection.execute(f"DELETE FROM node_slots USING folded WHERE {_STANDING}", span)  # noqa: S608 - as above
    connection.execute(_STORE)
    connection.execute("DROP TABLE folded")
