"""Answers of one piece of time as columns of the history. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from predictor.prometheus import windows
from predictor.prometheus.answers import Points
from predictor.prometheus.fetch import Raw
from predictor.prometheus.plan import Span
from predictor.prometheus.windows import Slots, Tiered, Use
from predictor.slots import SLOT_MILLIS, SLOT_SECONDS
from predictor.store.columns import SlotColumns

_MILLIS: Final = 1000.0


class Columns(NamedTuple):
    """What goes into the history by kind, and how many values were refused as beyond the machine."""

    kinds: dict[str, SlotColumns]
    refused: int


def columns_of(raw: Raw, span: Span, step: int, window: int) -> Columns:
    """Columns of `raw`, which is of `span`; `step` and `window` are those of its CPU, in seconds."""
    cpu, refused_cpu = _slots(raw.cpu, raw.capacity_cpu, step, window, _MILLIS)
    memory, refused_memory = _slots(raw.memory, raw.capacity_memory, raw.memory_step, raw.memory_window, 1.0)
    if raw.memory_step == SLOT_SECONDS:
        # One highest value a slot says nothing about the mean.
        memory = {kind: part._replace(mean=np.full_like(part.mean, np.nan)) for kind, part in memory.items()}
    ls = (raw.ls_requested_cpu * _MILLIS, raw.ls_requested_memory)
    requests = {"ls": ls, "protected": ls, "be": (raw.be_requested_cpu, raw.be_requested_memory)}
    kinds = {kind: _kind(raw.nodes, span, cpu[kind], memory[kind], requests.get(kind)) for kind in Tiered._fields}
    if not raw.be_seen:
        del kinds["be"]
    kinds["capacity"] = _capacity(raw, span, kinds)
    return Columns({kind: part for kind, part in kinds.items() if len(part.slot)}, refused_cpu + refused_memory)


def _slots(use: Use, capacity: Points, step: int, window: int, scale: float) -> tuple[dict[str, Slots], int]:
    kept, refused = windows.believed(use, windows.per_window(capacity, SLOT_SECONDS // step))
    tiered = windows.tiered(kept)
    return {
        kind: windows.to_slots(values * scale, step, window)
        for kind, values in zip(Tiered._fields, tiered, strict=True)
    }, refused


def _kind(
    nodes: list[str], span: Span, cpu: Slots, memory: Slots, requests: tuple[Points, Points] | None
) -> SlotColumns:
    node, place = np.nonzero(~np.isnan(cpu.p90) | ~np.isnan(memory.p90))
    share = np.fmax(np.where(np.isnan(cpu.p90), 0.0, cpu.share), np.where(np.isnan(memory.p90), 0.0, memory.share))
    unknown = np.full(len(node), np.nan)
    return SlotColumns(
        names=nodes,
        node=node,
        slot=span.first + place,
        covered_millis=np.rint(share[node, place] * SLOT_MILLIS).astype(np.int64),
        cpu_mean=cpu.mean[node, place],
        cpu_p90=cpu.p90[node, place],
        cpu_max=cpu.highest[node, place],
        memory_mean=memory.mean[node, place],
        memory_p90=memory.p90[node, place],
        memory_max=memory.highest[node, place],
        requested_cpu=unknown if requests is None else requests[0][node, place],
        requested_memory=unknown if requests is None else requests[1][node, place],
    )


def _capacity(raw: Raw, span: Span, kinds: dict[str, SlotColumns]) -> SlotColumns:
    """Capacity where use is known: alone it would look like a slot that was measured."""
    used = np.zeros(raw.capacity_cpu.shape, dtype=bool)
    for columns in kinds.values():
        used[columns.node, columns.slot - span.first] = True
    node, place = np.nonzero(used & (~np.isnan(raw.capacity_cpu) | ~np.isnan(raw.capacity_memory)))
    cpu, memory = raw.capacity_cpu[node, place] * _MILLIS, raw.capacity_memory[node, place]
    unknown = np.full(len(node), np.nan)
    # How much of the slot was measured is said by the kinds of use.
    covered = np.zeros(len(node), dtype=np.int64)
    return SlotColumns(
        raw.nodes, node, span.first + place, covered, cpu, cpu, cpu, memory, memory, memory, unknown, unknown
    )
