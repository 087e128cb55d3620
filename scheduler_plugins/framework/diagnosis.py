"""Diagnosis: why a pod fits nowhere, for its condition, its event and the queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler_plugins.framework.snapshot import Indices
from scheduler_plugins.framework.status import Code, Reason, Status
from scheduler_plugins.framework.verdicts import Verdicts


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

    def message(self) -> str:
        """One sentence in the stock scheduler's form: how many nodes there are and how many fell to each reason.

        Where reasons carry numbers, those of the node nearest to fitting follow in brackets.
        """
        text = f"0/{len(self.names)} nodes are available"
        if self.pre_filter_message:
            text += f": {self.pre_filter_message}"
        else:
            counted = sorted(self._counted())
            if counted:
                text += f": {', '.join(counted)}"
        text += "."
        return f"{text} {self.post_filter_message}" if self.post_filter_message else text

    def _counted(self) -> Iterator[str]:
        counts: dict[str, int] = {}
        nearest: dict[str, tuple[Reason, str]] = {}
        for refusal in self.refusals:
            for count, row, status in refusal.kinds():
                for reason in status.parts:
                    counts[reason.text] = counts.get(reason.text, 0) + count
                    best = nearest.get(reason.text)
                    if best is None or reason.miss < best[0].miss:
                        nearest[reason.text] = (reason, self.names[row])
        if self.absent is not None and self.absent_count:
            for text in self.absent.reasons:
                counts[text] = counts.get(text, 0) + self.absent_count
        for text, count in counts.items():
            yield f"{count} {text}{self._detail(nearest.get(text), count)}"

    @staticmethod
    def _detail(nearest: tuple[Reason, str] | None, count: int) -> str:
        if nearest is None or not nearest[0].detail:
            return ""
        reason, node = nearest
        return f" ({reason.detail})" if count == 1 else f" (nearest {node}: {reason.detail})"


class FitError(Exception):
    """The pod fits nowhere; the text is `Diagnosis.message`."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        super().__init__(diagnosis.message())
