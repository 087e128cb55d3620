"""Nodes made from series that have none: how the shared traces become machines (overcommit.md, section 4)."""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from predictor.backtest.replay import Replay, node_usage
from predictor.models.base import Floats, Integers, Usage

_NOISE: Final = 0.15
"""Standard deviation of the noise on a series' rank (0 to 1) in the passes that group by level."""


@dataclasses.dataclass(frozen=True, slots=True)
class Packing:
    """members (members,): series of each member. owner (members,): node of each member. nodes: how many."""

    members: Integers
    owner: Integers
    nodes: int


def pack(usage: Usage, size: int, passes: int, seed: int) -> Packing:
    """Put (slots, series) on nodes of `size` series each, `passes` times over; what does not fill a node is left out.

    Even passes pack at random, odd ones put series of like level (mean over peak) together, with noise, so that nodes
    differ. Nodes of different passes share series. Fewer series than `size` make one node.
    """
    rng = np.random.default_rng(seed)
    series = usage.shape[1]
    size = min(size, series)
    rank = _level_rank(usage)
    picked = []
    for number in range(passes):
        order = rng.permutation(series) if number % 2 == 0 else np.argsort(rank + rng.normal(0.0, _NOISE, series))
        picked.append(order[: series // size * size])
    members = np.concatenate(picked)
    return Packing(members, np.repeat(np.arange(len(members) // size), size), len(members) // size)


def packed(
    name: str, slot_seconds: float, at0: float, usage: Usage, packing: Packing, *, warmup_slots: int = 0
) -> Replay:
    """A replay of packed series; each asks for its own highest use over the whole timeline, an owner who sized right.

    That request is known from the future: it is what savings are measured against, and no feature of a model.
    """
    members = usage[:, packing.members]
    return Replay(
        name=name,
        slot_seconds=slot_seconds,
        at0=at0,
        nodes=tuple(f"node-{number}" for number in range(packing.nodes)),
        usage=node_usage(members, packing.owner, packing.nodes),
        members=members,
        owner=packing.owner,
        requested=peaks(members),
        warmup_slots=warmup_slots,
    )


def peaks(usage: Usage) -> Floats:
    """(series,) highest use over the whole timeline; NaN for one without any."""
    return np.asarray(np.fmax.reduce(usage, axis=0, initial=np.nan), dtype=np.float64)


def _level_rank(usage: Usage) -> Floats:
    """(series,) rank of mean over peak, from 0 to 1; a series that never used anything is the lowest."""
    known = np.maximum((~np.isnan(usage)).sum(axis=0), 1)
    peak = np.nan_to_num(peaks(usage))
    level = np.divide(np.nansum(usage, axis=0) / known, peak, out=np.zeros(usage.shape[1]), where=peak > 0)
    ranks: Floats = np.argsort(np.argsort(level, kind="stable")) / max(1, len(level) - 1)
    return ranks
