"""The DuckDB file below the history: opening, transactions, what its errors mean, setting a damaged one aside.

Source: DuckDB documentation, "Concurrency" (one process owns the file) and "Configuration"; which message means what
was found by damaging files on purpose (tests/predictor/test_history_damage.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import duckdb
import numpy as np
import numpy.typing as npt

from slacktide.errors import SlacktideError, StateError

FILE_NAME: Final = "history.duckdb"

_CORRUPT_SIGNS: Final = (
    "not a valid DuckDB database file",
    "Corrupt database file",
    "Could not read enough bytes",
    "checksum",
    "Failed to deserialize",
    "Serialization Error",
    "Failure while replaying WAL",
)
_LOG_SIGN: Final = "replaying WAL"


class HistoryError(SlacktideError):
    """The history cannot be read or written now: no space, no right, a failing disk."""


class HistoryCorrupt(HistoryError):
    """The file is damaged and must be set aside; `in_log`: only its log, which holds the newest minutes."""

    def __init__(self, message: str, *, in_log: bool = False) -> None:
        super().__init__(message)
        self.in_log = in_log


class Connection(Protocol):
    """The part of a DuckDB connection that is used; a test puts a failing one in its place."""

    def execute(self, query: str, parameters: object = ..., /) -> duckdb.DuckDBPyConnection:
        """Run one statement."""
        ...

    def register(self, view_name: str, python_object: object, /) -> duckdb.DuckDBPyConnection:
        """Name a columnar object so that statements can read it."""
        ...

    def unregister(self, view_name: str, /) -> duckdb.DuckDBPyConnection:
        """Forget it."""
        ...

    def query_progress(self) -> float:
        """How much of the running statement is done, in percent; -1 when that is not known. From any thread."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def connect(path: str) -> duckdb.DuckDBPyConnection:
    """Open or create the file. Raises StateError when it is in use or newer, else HistoryError or HistoryCorrupt."""
    try:
        return duckdb.connect(
            path,
            config={
                "threads": 2,
                "memory_limit": "256MB",
                # Nothing is ever fetched or loaded behind the operator's back.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )
    except duckdb.Error as error:
        text = _first_line(error)
        if "Could not set lock" in text:
            raise StateError(f"{path} is in use by another process; stop it or choose another --history-dir") from error
        if "version number" in text:
            raise StateError(f"{path} was written by a newer version: {text}; upgrade Slacktide") from error
        raise translate(error, path) from error


def remove_spilled(path: str) -> None:
    """Remove what a process that was killed had moved out of memory; for the owner of the file at `path`."""
    shutil.rmtree(path + ".tmp", ignore_errors=True)


def set_aside(directory: str) -> str:
    """Rename a damaged history so that a new one can begin; returns the new path. Raises HistoryError."""
    path = os.path.join(directory, FILE_NAME)
    target = _free_name(path)
    _rename(path, target)
    if os.path.exists(path + ".wal"):
        _rename(path + ".wal", target + ".wal")
    return target


def set_log_aside(directory: str) -> str:
    """Rename the damaged log of a history, which goes on from its last checkpoint; returns the new path.

    Raises HistoryError.
    """
    path = os.path.join(directory, FILE_NAME)
    target = _free_name(path) + ".wal"
    _rename(path + ".wal", target)
    return target


def _free_name(path: str) -> str:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = f"{path}.corrupt-{stamp}"
    number = 1
    while os.path.exists(target) or os.path.exists(target + ".wal"):
        number += 1
        target = f"{path}.corrupt-{stamp}-{number}"
    return target


def _rename(path: str, target: str) -> None:
    try:
        os.rename(path, target)
    except OSError as error:
        raise HistoryError(f"{path} is damaged and cannot be set aside: {error.strerror}") from error


class Transaction:
    """One transaction; errors of DuckDB leave as HistoryError and nothing is changed then."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        with readable():
            self._connection.execute("BEGIN")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            with readable():
                self._connection.execute("COMMIT")
            return
        # The statement that failed may have ended the transaction already; the first error is the one that tells.
        with contextlib.suppress(duckdb.Error):
            self._connection.execute("ROLLBACK")
        if isinstance(error, duckdb.Error):
            raise translate(error, "history") from error


class readable:  # noqa: N801 - reads as a statement
    """Turns errors of DuckDB into HistoryError."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, duckdb.Error):
            raise translate(error, "history") from error


def translate(error: duckdb.Error, where: str) -> HistoryError:
    """What an error of DuckDB means here."""
    text = _first_line(error)
    if any(sign in text for sign in _CORRUPT_SIGNS) or isinstance(error, duckdb.InternalException):
        return HistoryCorrupt(f"{where} is damaged: {text}", in_log=_LOG_SIGN in text)
    return HistoryError(f"{where}: {text}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def number(connection: Connection, query: str, parameters: Sequence[int] = ()) -> int:
    """The one number that `query` answers. All rows are fetched: an unfinished result blocks the connection."""
    rows = connection.execute(query, list(parameters)).fetchall()
    return int(rows[0][0]) if rows else 0


def insert(connection: Connection, table: str, columns: Mapping[str, npt.NDArray[np.generic]]) -> None:
    """Append rows to `table`: columns by name, those that are not given are NULL. Raises duckdb.Error."""
    connection.register("incoming", dict(columns))
    try:
        connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")  # noqa: S608 - our own table names
    finally:
        connection.unregister("incoming")


def quoted(text: str) -> str:
    """Text inside the quotes of a statement that takes no parameter there."""
    return text.replace("'", "''")
