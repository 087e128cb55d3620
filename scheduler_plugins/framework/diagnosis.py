"""Diagnosis: why a pod fits nowhere, for its condition, its event and the queue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from scheduler_plugins.framework.snapshot import Indices
from scheduler_plugins.framework.status import Code, Status
from scheduler_plugins.framework.verdicts import Verdicts

_MOST_REASONS: Final = 50
"""A message names no more reasons than this; those of the most nodes."""


@dataclass(slots=True)
class CountedReason:
    """One reason of one plugin: how many nodes fell to it, and the node nearest to fitting with its numbers."""

    text: str
    nodes: int = 0
    nearest: str = ""
    detail: str = ""
    miss: float = math.inf


@dataclass(frozen=True, slots=True)
class RefusedBy:
    """What one plugin refused: `reasons` is None where nobody asked for them.

    `point` is PreFilter for nodes that no Filter was asked about; `plugin` then may name several.
    """

    plugin: str
    nodes: int
    point: str
    reasons: Sequence[CountedReason] | None = None


@dataclass(frozen=True, slots=True)
class Refusals:
    """Nodes that one plugin refused: row `rows[k]` of the snapshot got verdict `positions[k]` of `verdicts`."""

    plugin: str
    rows: Indices
    positions: Indices
    verdicts: Verdicts

    def statuses(self) -> Iterator[tuple[int, Status]]:
        """(row, status) of each refused node."""
        for row, position in zip(self.rows, self.positions, strict=True):
            yield int(row), self.verdicts.status(int(position)).by(self.plugin)

    def kinds(self) -> Iterator[tuple[int, int, Status]]:
        """(number of nodes, row of the nearest, its status) of each kind of refusal; see `Verdicts.kinds`."""
        kinds, miss = self.verdicts.kinds, self.verdicts.miss
        if kinds is None:
            yield from ((1, row, status) for row, status in self.statuses())
            return
        of_refused = kinds[self.positions]
        for kind in np.unique(of_refused):
            where = np.flatnonzero(of_refused == kind)
            best = where[0] if miss is None else where[np.argmin(miss[self.positions[where]])]
            status = self.verdicts.status(int(self.positions[best])).by(self.plugin)
            yield len(where), int(self.rows[best]), status


@dataclass(slots=True)
class Diagnosis:
    """Everything one cycle learned about a pod that fits nowhere.

    `absent` is the status of every node that no Filter was asked about, because a PreFilter refused the pod or left
    the node out; `pre_filter_message` its words when the pod as a whole was refused.
    """

    names: Sequence[str]
    refusals: list[Refusals] = field(default_factory=list)
    absent: Status | None = None
    absent_count: int = 0
    pre_filter_message: str = ""
    post_filter_message: str = ""
    unschedulable_plugins: set[str] = field(default_factory=set)
    pending_plugins: set[str] = field(default_factory=set)

    def note(self, status: Status) -> None:
        """Remember who refused, for the queue."""
        if not status.plugin:
            return
        target = self.pending_plugins if status.code is Code.PENDING else self.unschedulable_plugins
        target.add(status.plugin)

    def statuses(self) -> dict[str, Status]:
        """Refusal of each node that a Filter was asked about."""
        return {self.names[row]: status for refusal in self.refusals for row, status in refusal.statuses()}

    def by_plugin(self, most_asked: int | None = None) -> list[RefusedBy]:
        """Who refused how many nodes and why, in the order in which they were asked.

        Reasons are left out (None) where more than `most_asked` nodes would have to be asked one by one.
        """
        found = []
        if self.absent is not None and self.absent_count:
            reasons = [CountedReason(p.text, self.absent_count, "", p.detail, p.miss) for p in self.absent.parts]
            found.append(RefusedBy(self.absent.plugin, self.absent_count, "PreFilter", reasons))
        for refusal in self.refusals:
            nodes = len(refusal.positions)
            asked = most_asked is None or nodes <= most_asked or refusal.verdicts.kinds is not None
            found.append(RefusedBy(refusal.plugin, nodes, "Filter", self._reasons(refusal) if asked else None))
        return found

    def _reasons(self, refusal: Refusals) -> list[CountedReason]:
        found: dict[str, CountedReason] = {}
        for count, row, status in refusal.kinds():
            for reason in status.parts:
                counted = found.setdefault(reason.text, CountedReason(reason.text))
                counted.nodes += count
                if not counted.nearest or reason.miss < counted.miss:
                    counted.nearest, counted.detail, counted.miss = self.names[row], reason.detail, reason.miss
        return list(found.values())

    def message(self) -> str:
        """One sentence in the stock scheduler's form: how many nodes there are and how many fell to each reason.

        Where reasons carry numbers, those of the node nearest to fitting follow in brackets.
        """
        text = f"0/{len(self.names)} nodes are available"
        if self.pre_filter_message:
            text += f": {self.pre_filter_message}"
        else:
            counted = self._counted()
            shown = sorted(counted, key=lambda one: -one.nodes)[:_MOST_REASONS]
            said = sorted(f"{one.nodes} {one.text}{_numbers(one)}" for one in shown)
            if len(counted) > len(shown):
                said.append(f"and {len(counted) - len(shown)} more reasons")
            if said:
                text += f": {', '.join(said)}"
        text += "."
        return f"{text} {self.post_filter_message}" if self.post_filter_message else text

    def _counted(self) -> list[CountedReason]:
        """Reasons of all plugins by their text, those of the nodes that no Filter saw last and numbers included."""
        found: dict[str, CountedReason] = {}
        for refusal in self.refusals:
            for reason in self._reasons(refusal):
                known = found.setdefault(reason.text, reason)
                if known is reason:
                    continue
                known.nodes += reason.nodes
                if reason.miss < known.miss:
                    known.nearest, known.detail, known.miss = reason.nearest, reason.detail, reason.miss
        if self.absent is not None and self.absent_count:
            for text in self.absent.reasons:
                found.setdefault(text, CountedReason(text)).nodes += self.absent_count
        return list(found.values())


def _numbers(reason: CountedReason) -> str:
    if not reason.detail:
        return ""
    return f" ({reason.detail})" if reason.nodes == 1 else f" (nearest {reason.nearest}: {reason.detail})"


class FitError(Exception):
    """The pod fits nowhere; the text is `Diagnosis.message`."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        super().__init__(diagnosis.message())
