"""Nodes of a trace: those that it names, those that are packed, or each series by itself."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from predictor.backtest.pack import pack
from predictor.backtest.replay import Replay, carry_forward, node_usage
from predictor.backtest.trace import BadInput, Trace
from predictor.models.base import DAY_SECONDS, HOUR_SECONDS

CARRY_SECONDS: Final = HOUR_SECONDS
"""How long a series that was not measured counts with its last use in the sum of its node."""
WARMUP_DAYS: Final = 14.0
"""Not scored unless asked otherwise; half the trace where that is shorter."""


@dataclasses.dataclass(frozen=True, slots=True)
class Split:
    """Keep the series of fold `fold` (from 0) of `folds`: by name, so that it is the same in every file."""

    fold: int
    folds: int


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How nodes are made.

    pack            series a node; None: as the trace says.
    passes, seed    how often, and by which dice.
    split           which series are kept; None: all.
    warmup_seconds  not scored; None: `WARMUP_DAYS`, at most half the trace.
    """

    pack: int | None = None
    passes: int = 1
    seed: int = 0
    split: Split | None = None
    warmup_seconds: float | None = None


def fold_of(name: str, folds: int) -> int:
    """Fold of a series by its name: the same everywhere and for ever."""
    return zlib.crc32(name.encode()) % folds


def replays(traces: Sequence[Trace], layout: Layout) -> tuple[list[Replay], list[str]]:
    """The replays, and notes on how they were made. Nodes of several traces are told apart by the trace's name."""
    made, notes = [], []
    for trace in traces:
        notes += list(trace.notes)
        replay, note = _replay(_split(trace, layout.split), layout, prefix=len(traces) > 1)
        made.append(replay)
        notes += note
    return made, notes


def _split(trace: Trace, split: Split | None) -> Trace:
    if split is None:
        return trace
    kept = np.array([i for i, name in enumerate(trace.series) if fold_of(name, split.folds) == split.fold], dtype=int)
    if not len(kept):
        raise BadInput(f"{trace.name}: no series falls into part {split.fold + 1} of {split.folds}; take fewer parts")
    return dataclasses.replace(
        trace,
        usage=trace.usage[:, kept],
        requested=trace.requested[..., kept],
        series=tuple(trace.series[i] for i in kept),
        node=None if trace.node is None else tuple(trace.node[i] for i in kept),
    )


def _replay(trace: Trace, layout: Layout, *, prefix: bool) -> tuple[Replay, list[str]]:
    order = np.array(
        sorted(range(len(trace.series)), key=lambda i: (trace.node[i] if trace.node else "", trace.series[i]))
    )
    usage = carry_forward(trace.usage[:, order], max(1, round(CARRY_SECONDS / trace.slot_seconds)))
    requested = trace.requested[..., order]
    names = [trace.series[i] for i in order]
    notes = []
    if layout.pack is not None:
        packing = pack(usage, layout.pack, layout.passes, layout.seed)
        chosen, owner = packing.members, packing.owner
        nodes = [f"node-{number}" for number in range(packing.nodes)]
        notes.append(f"{trace.name}: {len(names)} series packed into {len(nodes)} nodes, {layout.passes} passes")
    else:
        of = [trace.node[i] for i in order] if trace.node else names
        nodes = list(dict.fromkeys(of))
        index = {name: number for number, name in enumerate(nodes)}
        chosen, owner = np.arange(len(names)), np.array([index[name] for name in of], dtype=np.int64)
        if trace.node is None:
            notes.append(f"{trace.name}: no column for the node, so each series is a node of its own; --pack N joins N")
    members = usage[:, chosen]
    return (
        Replay(
            name=trace.name,
            slot_seconds=trace.slot_seconds,
            at0=trace.at0,
            nodes=tuple(f"{trace.name}/{node}" if prefix else node for node in nodes),
            usage=node_usage(members, owner, len(nodes)),
            members=members,
            owner=owner,
            requested=requested[..., chosen],
            warmup_slots=_warmup(trace, layout),
        ),
        notes,
    )


def _warmup(trace: Trace, layout: Layout) -> int:
    if layout.warmup_seconds is not None:
        return round(layout.warmup_seconds / trace.slot_seconds)
    return min(round(WARMUP_DAYS * DAY_SECONDS / trace.slot_seconds), len(trace.usage) // 2)
