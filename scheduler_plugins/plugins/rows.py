"""Rows of a snapshot as an index into its columns."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from scheduler_plugins.framework.snapshot import Indices, Snapshot


def index_of(snapshot: Snapshot, rows: Indices) -> Indices | slice:
    """`rows`, or a slice where they are all nodes in order: then a column is looked at without copying it."""
    size = len(snapshot)
    if len(rows) == size and bool((rows == _in_order(size)).all()):
        return slice(0, size)
    return rows


@lru_cache(maxsize=8)
def _in_order(size: int) -> Indices:
    order = np.arange(size, dtype=np.intp)
    order.flags.writeable = False
    return order
