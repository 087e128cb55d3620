"""Answers of the history as Parquet files, written by DuckDB with little memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from predictor.storage import Connection, number, quoted, readable

_PROGRESS_SECONDS: Final = 0.5


def write_parquet(connection: Connection, query: str, path: str, progress: Callable[[float], None] | None) -> int:
    """Write the rows of `query` to `path`; returns how many. Raises HistoryError.

    `progress` is called twice a second, on a thread of its own, with the share done, 0 to 1.
    """
    over = threading.Event()

    def tell() -> None:
        while progress is not None and not over.wait(_PROGRESS_SECONDS):
            progress(min(1.0, max(0.0, connection.query_progress() / 100)))

    teller = threading.Thread(target=tell, name="export-progress", daemon=True)
    with readable():
        connection.execute("SET enable_progress_bar = true")
        connection.execute("SET enable_progress_bar_print = false")
        teller.start()
        try:
            return number(connection, f"COPY ({query}) TO '{quoted(path)}' (FORMAT parquet, COMPRESSION zstd)")
        finally:
            over.set()
            teller.join()
