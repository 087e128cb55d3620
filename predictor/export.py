"""The history as a Parquet file that the backtest and other tools read: one row a series and time.

    time         end of the slot (of the hour, for pods), seconds since the epoch
    series       as `node`; of a pod `namespace/name/uid`
    node         name of the node; `name#number` for a machine whose name another one has now
    usage        cores or bytes: of a slot the 90th percentile of CPU and the highest memory, as `predictor.slots` says;
                 of a pod's hour the highest slot
    request      cores or bytes, empty when unknown
    usage_mean   of a pod's hour only: mean of the slots

A time that nobody measured has no row, and no series has a time twice.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Final

from predictor.history import open_history
from predictor.slots import SLOT_SECONDS
from predictor.storage import FILE_NAME, HistoryError
from predictor.store.columns import HOUR_SECONDS
from predictor.store.schema import KINDS
from slacktide.errors import StateError

PODS: Final = "pods"
RESOURCES: Final = {"cpu": 1000.0, "memory": 1.0}
"""What one unit of the file is in the unit of the history."""

_MACHINE: Final = "CASE WHEN retired THEN name || '#' || nodes.id ELSE name END"


def export_history(
    directory: str,
    out_path: str,
    kind: str = "protected",
    resource: str = "cpu",
    since: float | None = None,
    progress: Callable[[float], None] | None = None,
) -> int:
    """Write the history in `directory` to `out_path`; returns the number of rows.

    kind      one of `KINDS` or `pods`.
    resource  `cpu` or `memory`.
    since     seconds since the epoch; nothing older is written.
    progress  is called now and then with the share done, 0 to 1.

    Raises ValueError for an unknown kind or resource, StateError when there is no history or the predictor has it
    open, HistoryError when it cannot be read or `out_path` cannot be written: no file is left then, and one that was
    there before is as it was.
    """
    if resource not in RESOURCES or kind not in (*KINDS, PODS):
        known = f"kinds: {', '.join((*KINDS, PODS))}; resources: {', '.join(RESOURCES)}"
        raise ValueError(f"kind {kind!r} of resource {resource!r} is not known; {known}")
    if not os.path.exists(os.path.join(directory, FILE_NAME)):
        raise StateError(f"{directory} has no history ({FILE_NAME}); name the predictor's history_dir")
    history = open_history(directory)
    partial = f"{out_path}.{os.getpid()}.part"
    try:
        query = _pods(resource, since) if kind == PODS else _slots(kind, resource, since)
        rows = history.write_parquet(query, partial, progress)
        os.replace(partial, out_path)
        return rows
    except OSError as error:
        raise HistoryError(f"{out_path}: {error.strerror}; name a file in a directory that can be written") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        history.close()


def _slots(kind: str, resource: str, since: float | None) -> str:
    columns = KINDS[kind]
    unit = RESOURCES[resource]
    usage = columns.cpu_p90 if resource == "cpu" else columns.memory_max
    request = columns.requested_cpu if resource == "cpu" else columns.requested_memory
    first = 0 if since is None else int(since // SLOT_SECONDS)
    return f"""
        SELECT (slot + 1) * {SLOT_SECONDS}::DOUBLE AS time, {_MACHINE} AS series, {_MACHINE} AS node,
            {usage} / {unit} AS usage, {f"{request} / {unit}" if request else "NULL::DOUBLE"} AS request
        FROM node_slots JOIN nodes ON node_slots.node = nodes.id
        WHERE slot >= {first} AND {usage} IS NOT NULL"""  # noqa: S608 - numbers and our own column names only


def _pods(resource: str, since: float | None) -> str:
    unit = RESOURCES[resource]
    first = 0 if since is None else int(since // HOUR_SECONDS)
    return f"""
        SELECT (hour + 1) * {HOUR_SECONDS}::DOUBLE AS time, namespace || '/' || name || '/' || uid AS series, node,
            highest / {unit} AS usage, requested_{resource} / {unit} AS request, mean / {unit} AS usage_mean
        FROM (
            SELECT hour, pod, max({resource}_max) AS highest,
                sum({resource}_mean::DOUBLE * slots) / sum(slots) FILTER ({resource}_mean IS NOT NULL) AS mean
            FROM pod_hours WHERE hour >= {first} GROUP BY hour, pod) AS hours
        JOIN pods ON hours.pod = pods.id WHERE highest IS NOT NULL"""  # noqa: S608 - numbers and our own column names only
