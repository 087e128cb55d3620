"""Forecasts as Parquet, one row a node and decision, so that anybody can score them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

import duckdb
import numpy as np
import pandas as pd

from predictor.backtest.forecasts import seen
from predictor.backtest.run import Result
from slacktide.errors import SlacktideError

COLUMNS: Final = ("node", "at", "horizon_seconds", "risk", "peak", "model")
"""node             as the input names it.
at               time of the last slot that the forecast has seen, as the input names it: the start of that slot in
                 epoch seconds, or in seconds from the start where the input counts slots. The forecast is about the
                 slots whose time is above `at` and at most `at + horizon_seconds`.
horizon_seconds  how far it reaches.
risk             asked chance that the peak turns out higher.
peak             in the unit of the usage; null when nothing is known of the node.
model            name of the forecaster."""


class WriteError(SlacktideError):
    """Forecasts that cannot be written."""


def write(results: Sequence[Result], path: str) -> int:
    """Write the forecasts in order of model, time and node; how many. Raises WriteError, and leaves no half file."""
    partial = f"{path}.partial"
    try:
        with duckdb.connect() as connection:
            connection.execute(
                'CREATE TABLE forecast (node VARCHAR, "at" DOUBLE, horizon_seconds DOUBLE, risk DOUBLE, peak DOUBLE,'
                " model VARCHAR)"
            )
            for result in results:
                _insert(connection, result)
            whole = connection.execute('SELECT coalesce(bool_and("at" = floor("at")), true) FROM forecast').fetchone()
            kind = "BIGINT" if whole == (True,) else "DOUBLE"
            connection.execute(f'ALTER TABLE forecast ALTER "at" TYPE {kind}')
            connection.table("forecast").order('model, horizon_seconds, risk, "at", node').write_parquet(partial)
            rows = connection.execute("SELECT count(*) FROM forecast").fetchone()
        os.replace(partial, path)
    except (duckdb.Error, OSError) as error:
        if os.path.exists(partial):
            os.unlink(partial)
        raise WriteError(f"{path}: cannot be written: {error}; name a file in a directory that exists") from error
    return int(rows[0]) if rows else 0


def _insert(connection: duckdb.DuckDBPyConnection, result: Result) -> None:
    decision, node = np.nonzero(seen(result.script))
    script = result.script
    frame = pd.DataFrame(
        {
            "node": node,
            "at": script.at0 + script.slots[decision] * script.slot_seconds,
            "peak": result.peaks[decision, node],
        }
    )
    names = pd.DataFrame({"node": np.arange(len(script.nodes)), "name": script.nodes})
    connection.register("frame", frame)
    connection.register("names", names)
    connection.execute(
        'INSERT INTO forecast SELECT name, "at", ?, ?, CASE WHEN isnan(peak) THEN NULL ELSE peak END, ?'
        " FROM frame JOIN names USING (node)",
        [result.horizon_seconds, result.risk, result.model],
    )
