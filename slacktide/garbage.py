"""Garbage collection of a daemon: what it has at its start stays, and is not worth being looked through again."""

from __future__ import annotations

import gc


def keep_what_is_here(thresholds: tuple[int, int, int] | None = None) -> None:
    """Collect once, then leave what is left out of every later collection; call it when the daemon has what stays.

    `thresholds`: objects made, and younger collections, before each generation is looked through; None leaves those
    that are set. Source: the gc module's documentation of `freeze` and `set_threshold`.
    """
    gc.collect()
    gc.freeze()
    if thresholds is not None:
        gc.set_threshold(*thresholds)
