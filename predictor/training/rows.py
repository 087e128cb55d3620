"""Rows to fit on: features of nodes packed of the traces' series, and how their next peaks turned out.

Nodes are packed within a fold of the series, so that rows of one fold never hold a series of another. A user's nodes
often have a short history; so decisions are also made as if nothing older than a random number of hours was known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks import traces
from predictor.backtest.nodes import fold_of
from predictor.backtest.pack import Packing, pack, packed
from predictor.backtest.replay import Replay, decision_slots, decisions
from predictor.models.base import HOUR_SECONDS, Floats, History, Integers, Members
from predictor.models.features import feature_names, features

FOLDS: Final = 3
_HOURS_KNOWN: Final = feature_names(HOUR_SECONDS).index("hours_known")
"""Column of a feature that is at the same place for every horizon."""
_SHORTEST_HOURS: Final = 4.0
LONGEST_CUT_HOURS: Final = 320
_SHORT_TRACE_SLOTS: Final = 288


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one trace.

    table  (rows, features) as `features` gives them.
    peak   (rows,) highest use over the horizon, in shares of S.
    limit  (rows,) requests, in shares of S. Only for scoring: no feature.
    node, slot, fold (rows,): where a row comes from.
    cut    (rows,) whether the history was cut short.
    scored (rows,) whether it is of nodes as they are scored. All other rows are only fitted on, and those with
           shortened histories stand for young nodes, too.
    """

    table: npt.NDArray[np.float32]
    peak: Floats
    limit: Floats
    node: Integers
    slot: Integers
    fold: Integers
    cut: npt.NDArray[np.bool_]
    scored: npt.NDArray[np.bool_]

    @property
    def hours_known(self) -> npt.NDArray[np.float32]:
        """(rows,) hours of history behind each."""
        return self.table[:, _HOURS_KNOWN]

    def where(self, kept: npt.NDArray[np.bool_]) -> Rows:
        """The rows that are kept."""
        return Rows(*(getattr(self, field.name)[kept] for field in dataclasses.fields(self)))


def joined(parts: Iterable[Rows]) -> Rows:
    """One after the other."""
    listed = list(parts)
    return Rows(*(np.concatenate([getattr(part, f.name) for part in listed]) for f in dataclasses.fields(Rows)))


def folds_of(parts: Iterable[Rows]) -> list[int]:
    """The folds that there are rows of."""
    return sorted({int(fold) for part in parts for fold in np.unique(part.fold)})


@dataclasses.dataclass(frozen=True, slots=True)
class Nodes:
    """How series are made into nodes.

    seed    of the packing, and of all else that is random.
    size    series of a node; None for as many as nodes are scored with.
    spread  standard deviation of the logarithm of the factor that each series of a node is multiplied by. A series in
            other proportion to its neighbours is a new one for what is fitted.
    """

    seed: int
    size: int | None = None
    spread: float = 0.0


def trace_rows(name: str, horizon_seconds: float, nodes: Nodes, *, every_seconds: float, cut: int = 0) -> Rows:
    """Rows of all folds of a trace, in one packing; of planetlab none beyond the 14 h that its days leave.

    With `cut` each decision sees a history of a random length from 4 to 320 h, and those of more than `cut` hours are
    left out. Raises SlacktideError when the traces are not there.
    """
    parts: list[Rows] = []
    plan = traces.PLANS[name]
    seed = nodes.seed
    for number, (label, table) in enumerate(plan.tables(traces.directory())):
        replay, fold = _packed(name, label, table, nodes)
        cutter = _Cutter(np.random.default_rng((seed, number)), cut) if cut else None
        made = list(_replay_rows(replay, fold, horizon_seconds, every_seconds, cutter))
        if made:
            rows = joined(made)
            parts.append(dataclasses.replace(rows, node=rows.node + 1000 * number))
    return joined(parts)


def _packed(name: str, label: str, table: traces.Table, made: Nodes) -> tuple[Replay, Integers]:
    """One replay of the nodes of all folds, and the fold of each node."""
    plan = traces.PLANS[name]
    if label.startswith("planetlab"):
        folds = np.full(len(table.names), fold_of(label, FOLDS))
    else:
        folds = np.array([fold_of(series, FOLDS) for series in table.names])
    members, owners = [], []
    nodes: list[int] = []
    for fold in np.unique(folds):
        kept = np.flatnonzero(folds == fold)
        packing = pack(table.usage[:, kept], made.size or plan.size, plan.passes, made.seed)
        members.append(kept[packing.members])
        owners.append(packing.owner + len(nodes))
        nodes += [int(fold)] * packing.nodes
    usage = table.usage[:, np.concatenate(members)]
    if made.spread:
        usage = usage * np.random.default_rng(made.seed).lognormal(0.0, made.spread, usage.shape[1])
    packing = Packing(np.arange(usage.shape[1]), np.concatenate(owners), len(nodes))
    replay = packed(label, traces.SLOT_SECONDS, table.at0, usage, packing, warmup_slots=plan.warmup_slots)
    return replay, np.array(nodes)


def _replay_rows(
    replay: Replay, fold: Integers, horizon_seconds: float, every_seconds: float, cutter: _Cutter | None
) -> Iterator[Rows]:
    """Rows of each decision; with `cutter` its history is cut."""
    horizon = replay.slots_of(horizon_seconds)
    slots = decision_slots(replay, every_seconds)
    first = replay.warmup_slots if cutter is None or len(replay.usage) <= _SHORT_TRACE_SLOTS else 0
    made = [slot for slot in slots if slot + 1 >= max(first, 12) and slot + horizon < len(replay.usage)]
    if not made:
        return
    nodes = np.arange(len(replay.nodes))
    for slot, history in decisions(replay, horizon_seconds, slots=range(made[0], made[-1] + 1, slots.step)):
        seen = history if cutter is None else cutter.shortened(history)
        if seen is None:
            continue
        scale, table = features(seen, horizon_seconds)
        peak = np.fmax.reduce(replay.usage[slot + 1 : slot + 1 + horizon], axis=0)
        size = np.where(scale > 0, scale, 1.0)
        usable = scale > 0
        rows = Rows(
            table,
            peak / size,
            history.requested / size,
            nodes,
            np.full(len(nodes), slot),
            fold,
            np.full(len(nodes), cutter is not None),
            np.full(len(nodes), cutter is None),
        )
        yield rows.where(usable)


@dataclasses.dataclass(frozen=True, slots=True)
class _Cutter:
    """Cuts histories to random lengths: as many short ones as long ones, by their logarithm."""

    rng: np.random.Generator
    longest: int

    def shortened(self, history: History) -> History | None:
        """What it would have been had measuring begun later; None when that is longer than wanted."""
        hours = int(np.exp(self.rng.uniform(np.log(_SHORTEST_HOURS), np.log(LONGEST_CUT_HOURS))))
        slots = min(len(history.usage), round(hours * HOUR_SECONDS / history.slot_seconds))
        if slots * history.slot_seconds >= (self.longest + 1) * HOUR_SECONDS:
            return None
        members = history.members
        if members is not None:
            last = slice(-hours, None)
            members = Members(members.series, members.hourly_max[last], members.hourly_mean[last], members.requested)
        return dataclasses.replace(history, usage=history.usage[-slots:], members=members)
