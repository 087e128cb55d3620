"""Use of all nodes, read back from the history in parts that fit in little memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from predictor.slots import SLOT_MILLIS
from predictor.storage import Connection, readable
from predictor.store.columns import Integers, Window
from predictor.store.combine import combined_window, joined_windows, picked_window
from predictor.store.values import floats, integers

_PART_ROWS: Final = 500_000

_UNFOLDED: Final = f"""
    SELECT node, (end_millis - 1) // {SLOT_MILLIS} AS slot,
        quantile_disc(ls_cpu_mean + system_cpu_mean, 0.9) AS cpu, max(ls_memory_max + system_memory_max) AS memory
    FROM samples JOIN boots ON samples.boot = boots.id GROUP BY node, slot"""  # noqa: S608 - our own constants only
_FOLDED: Final = """
    SELECT node, slot, protected_cpu_p90 AS cpu, protected_memory_max AS memory
    FROM node_slots WHERE slot >= ? AND slot < ?"""


def windows(connection: Connection, nodes: Mapping[str, int], since_slot: int) -> Iterator[Window]:
    """LS + SYSTEM use of `nodes` (id by name) from `since_slot` on. Raises HistoryError."""
    names = list(nodes)
    index = np.full(1 + max(nodes.values(), default=0), -1, dtype=np.int64)
    index[list(nodes.values())] = np.arange(len(names))
    with readable():
        unfolded = _window(connection, _UNFOLDED, [], names, index)
        first, end, rows = _extent(connection, unfolded, since_slot)
    step = max(1, _PART_ROWS * (end - first) // max(rows, 1))
    for start in range(first, end, step):
        with readable():
            folded = _window(connection, _FOLDED, [start, start + step], names, index)
        late = (unfolded.slot >= start) & (unfolded.slot < start + step)
        yield combined_window(joined_windows([folded, picked_window(unfolded, late)]))
    if first >= end:
        yield picked_window(unfolded, np.zeros(len(unfolded.slot), dtype=np.bool_))


def _window(connection: Connection, query: str, values: list[int], names: list[str], index: Integers) -> Window:
    found = connection.execute(query, values).fetchnumpy()
    node = index[integers(found["node"])]
    part = Window(names, node, integers(found["slot"]), floats(found["cpu"]), floats(found["memory"]))
    wanted = node >= 0
    return part if wanted.all() else picked_window(part, wanted)


def _extent(connection: Connection, unfolded: Window, since_slot: int) -> tuple[int, int, int]:
    """First slot, end and number of rows of what there is."""
    rows = connection.execute(
        "SELECT min(slot), max(slot) + 1, count(*) FROM node_slots WHERE slot >= ?", [since_slot]
    ).fetchall()
    first, end, count = rows[0]
    recent = unfolded.slot[unfolded.slot >= since_slot]
    firsts, ends = ([], []) if first is None else ([int(first)], [int(end)])
    if len(recent):
        firsts.append(int(recent.min()))
        ends.append(int(recent.max()) + 1)
    return (min(firsts), max(ends), int(count)) if firsts else (0, 0, 0)
