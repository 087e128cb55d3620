"""Records of the last cycles: where each pod went and why, or why it fitted nowhere, with every plugin's numbers.

Of the scores those of the best nodes are kept, whatever the size of the cluster; text is made when somebody asks.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from scheduler_plugins.framework.diagnosis import Diagnosis, RefusedBy
from scheduler_plugins.framework.kept import SHOWN_NODES, best_positions
from scheduler_plugins.framework.runtime import ScoreTable
from slacktide.observe import get_logger

_log = get_logger("scheduler.scores")
_standard = logging.getLogger("scheduler.scores")

KEPT_CYCLES: Final = 256
"""Some kilobytes each, with the scores of the best nodes."""

SHOWN_CYCLES: Final = 32
"""Of these in an answer that asks for no pod."""

KEPT_UNPLACED: Final = 500
"""Of so many pods that are not placed the last cycle is kept, however long ago it was."""

_MOST_EXPLAINED: Final = 100
NO_QUERY: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of the best nodes of one cycle, by node in the order of `names`."""

    names: Sequence[str]
    table: ScoreTable

    @classmethod
    def of(cls, table: ScoreTable, names: Sequence[str], chosen: str, most: int = SHOWN_NODES) -> Scores:
        """The `most` best of `table`, and the chosen node; `names` are those of the snapshot's rows."""
        kept = [names[row] for row in table.rows] if len(table.rows) <= most + 1 else []
        if chosen in kept:
            # What a cycle that reused shows is chosen already.
            return cls(kept, table)
        at = int(np.flatnonzero(table.rows == names.index(chosen))[0])
        best = best_positions(table.totals, np.flatnonzero(table.totals == table.totals.max()), at, most)
        kept = [names[row] for row in table.rows[best]]
        return cls(
            kept,
            ScoreTable(
                table.rows[best],
                table.totals[best],
                {name: scores[best] for name, scores in table.by_plugin.items()},
                {name: scores[best] for name, scores in table.raw.items()},
                table.weights,
                {name: added[best] for name, added in table.by_extender.items()},
                table.unrated,
            ),
        )

    def shown(self) -> list[dict[str, Any]]:
        """Nodes, best first: total, and raw, normalised and weighted by plugin."""
        return [self._node(i) for i in np.argsort(-self.table.totals, kind="stable").tolist()]

    def _node(self, i: int) -> dict[str, Any]:
        table = self.table
        plugins = {
            plugin: {
                "raw": _number(table.raw[plugin][i]) if plugin in table.raw else None,
                "normalised": int(scores[i]),
                "weighted": int(scores[i]) * table.weights.get(plugin, 1),
            }
            for plugin, scores in table.by_plugin.items()
        }
        shown: dict[str, Any] = {"node": self.names[i], "total": int(table.totals[i]), "plugins": plugins}
        if table.by_extender:
            shown["extenders"] = {name: int(added[i]) for name, added in table.by_extender.items()}
        return shown


def _number(value: Any) -> float | int | None:
    """A plain number; None for one that JSON does not have, such as NaN."""
    number = value.item()
    return number if np.isfinite(number) else None


@dataclass(frozen=True, slots=True)
class Cycle:
    """One scheduling cycle. `result` is chosen, unschedulable or error; `at` seconds since the epoch when it ended.

    `scores` is None where no node was rated.
    """

    profile: str
    pod: str
    uid: str
    attempt: int
    at: float
    seconds: float
    result: str
    node: str = ""
    message: str = ""
    evaluated: int = 0
    feasible: int = 0
    scores: Scores | None = None
    refusals: Sequence[Mapping[str, Any]] = ()

    def shown(self) -> dict[str, Any]:
        """As the debug endpoint tells it."""
        shown: dict[str, Any] = {
            "profile": self.profile,
            "pod": self.pod,
            "uid": self.uid,
            "attempt": self.attempt,
            "at": self.at,
            "milliseconds": round(self.seconds * 1000, 3),
            "result": self.result,
            "node": self.node,
            "message": self.message,
            "evaluated": self.evaluated,
            "feasible": self.feasible,
            "refusals": list(self.refusals),
        }
        if self.scores is not None:
            table = self.scores.table
            shown["weights"] = {name: table.weights.get(name, 1) for name in table.by_plugin}
            shown["scores"] = self.scores.shown()
            shown["unrated"] = table.unrated
        return shown


class Records:
    """The last cycles of a process, kept since `since` (seconds since the epoch). Thread safe."""

    def __init__(self, wall_seconds: Callable[[], float], kept: int = KEPT_CYCLES) -> None:
        self.wall = wall_seconds
        self.since = wall_seconds()
        self._lock = threading.Lock()
        self._cycles: deque[Cycle] = deque(maxlen=kept)
        self._unplaced: dict[str, Cycle] = {}

    def add(self, cycle: Cycle) -> None:
        """A cycle ended. Its score table goes to the log at level debug."""
        with self._lock:
            self._cycles.append(cycle)
            self._unplaced.pop(cycle.uid, None)
            if cycle.result != "chosen":
                self._unplaced[cycle.uid] = cycle
                if len(self._unplaced) > KEPT_UNPLACED:
                    del self._unplaced[next(iter(self._unplaced))]
        if cycle.scores is not None and _standard.isEnabledFor(logging.DEBUG):
            _log.debug("scores", pod=cycle.pod, profile=cycle.profile, chosen=cycle.node, nodes=cycle.scores.shown())

    def last(self) -> Sequence[Cycle]:
        """The cycles kept, the newest first."""
        with self._lock:
            return tuple(reversed(self._cycles))

    def unplaced(self) -> Sequence[Cycle]:
        """The last cycle of each pod that found no node, the newest first; some of these pods may be gone by now."""
        with self._lock:
            return tuple(reversed(self._unplaced.values()))

    def body(self, query: Mapping[str, str] = NO_QUERY) -> bytes:
        """Answer of the debug endpoint: JSON {"since", "cycles": [...], "unplaced": [...]}, the newest first.

        With `uid` in the query only cycles of that pod, of all that are kept; else as many as are shown.
        """
        uid = query.get("uid", "")
        shown: dict[str, Any] = {"since": self.since}
        for name, cycles in (("cycles", self.last()), ("unplaced", self.unplaced())):
            chosen = [cycle for cycle in cycles if cycle.uid == uid] if uid else cycles
            most = SHOWN_CYCLES if name == "cycles" and not uid else len(chosen)
            shown[name] = [cycle.shown() for cycle in chosen[:most]]
        return msgspec.json.encode(shown)


def counted(refusals: Mapping[str, int]) -> list[Mapping[str, Any]]:
    """For each plugin how many nodes it refused."""
    return [{"plugin": plugin, "nodes": nodes} for plugin, nodes in refusals.items()]


def refused(diagnosis: Diagnosis) -> list[Mapping[str, Any]]:
    """For each plugin how many nodes it refused, why, and which node was nearest to fitting.

    Reasons are left out where many nodes would have to be asked one by one; the message of the cycle has them.
    Refusals before any Filter was asked have `point` PreFilter.
    """
    return [_refusal(refusal) for refusal in diagnosis.by_plugin(_MOST_EXPLAINED)]


def _refusal(refusal: RefusedBy) -> Mapping[str, Any]:
    shown: dict[str, Any] = {"plugin": refusal.plugin, "nodes": refusal.nodes}
    if refusal.point != "Filter":
        shown["point"] = refusal.point
    if refusal.reasons is not None:
        shown["reasons"] = [
            {"reason": one.text, "nodes": one.nodes, "nearest": one.nearest, "detail": one.detail}
            for one in refusal.reasons
        ]
    return shown
