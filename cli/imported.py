"""What an import will do and did, and what a history holds, for people and for programs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np

from predictor.slots import SLOT_SECONDS
from slacktide.quantity import format_bytes

if TYPE_CHECKING:
    from predictor.history import History
    from predictor.prometheus.importer import Outcome, Plan, Step

_DAY: Final = 86400
_SLOTS_A_DAY: Final = _DAY // SLOT_SECONDS
_MOST_ROWS: Final = 50
_LINE_SECONDS: Final = 10.0


def stamp(at: float) -> str:
    """An epoch second in UTC."""
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(at))


class Planned(msgspec.Struct, frozen=True):
    """What an import would do. Times are epoch seconds."""

    nodes: int
    from_second: int
    to_second: int
    open_slots: int
    total_cpu: str | None
    total_memory: str | None
    pod_series: str | None
    node_label: str | None
    scrape_seconds: float
    step_seconds: int
    window_seconds: int
    queries: int
    remarks: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.nodes} nodes, {stamp(self.from_second)} to {stamp(self.to_second)}, " + (
            f"{self.open_slots / _SLOTS_A_DAY:.1f} days of it still to fetch, about {self.queries} queries"
            if self.open_slots
            else "all of it imported before (--again does it anew)"
        )
        yield (
            f"whole node: {self.total_cpu or 'unknown'} (CPU), {self.total_memory or 'unknown'} (memory); pods: "
            f"{self.pod_series or 'unknown'}; nodes are named by `{self.node_label}`"
        )
        yield (
            f"scraped each {self.scrape_seconds:.0f} s: windows of {self.window_seconds} s, {self.step_seconds} s apart"
        )


def describe(plan: Plan) -> Planned:
    """What `plan` means."""
    found = plan.survey
    source = found.cadvisor or found.exporter
    return Planned(
        nodes=len(found.nodes),
        from_second=plan.wanted.from_second,
        to_second=plan.wanted.to_second,
        open_slots=sum(span.slots for span in plan.nodes),
        total_cpu=found.total_cpu,
        total_memory=found.total_memory,
        pod_series=found.form,
        node_label=source.label if source else None,
        scrape_seconds=round(found.scrape_seconds, 1),
        step_seconds=found.step_seconds,
        window_seconds=found.window_seconds,
        queries=plan.queries,
        remarks=found.remarks,
    )


class Told(msgspec.Struct, frozen=True):
    """What an import did."""

    complete: bool
    stored_slots: int
    measured_slots: int
    pod_hours: int
    refused_values: int
    empty_slots: int
    queries: int
    problems: list[str]
    remarks: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """For people."""
        yield (
            f"imported {self.stored_slots} slots of nodes ({self.stored_slots / _SLOTS_A_DAY:.1f} node days) and "
            f"{self.pod_hours} hours of pods, with {self.queries} queries"
        )
        if self.measured_slots:
            yield f"{self.measured_slots} slots were left as they are: Slacktide measured them itself"
        if self.refused_values:
            yield f"{self.refused_values} values were left out: above what the machine has"
        if self.empty_slots:
            yield f"of {self.empty_slots / _SLOTS_A_DAY:.1f} days the server has nothing: they stay a gap"


def result(plan: Plan, outcome: Outcome, queries: int) -> Told:
    """What `outcome` means."""
    return Told(
        complete=outcome.complete,
        stored_slots=outcome.stored,
        measured_slots=outcome.measured,
        pod_hours=outcome.pod_hours,
        refused_values=outcome.refused,
        empty_slots=outcome.empty_slots,
        queries=queries,
        problems=outcome.problems,
        remarks=plan.survey.remarks,
    )


class ProgressLine:
    """Where the import is: one line that is redrawn on a terminal, a line each ten seconds elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began = time.monotonic()
        self._told_at = -math.inf
        self._width = 0

    def tell(self, step: Step) -> None:
        """Show `step`."""
        now = time.monotonic()
        if not self._terminal and now - self._told_at < _LINE_SECONDS:
            return
        self._told_at = now
        share = step.done / max(step.total, 1)
        text = f"slacktide: {step.what} {100 * share:3.0f} %, now {stamp(step.span.from_second)}"
        if share > 0.02:
            text += f", about {_duration((now - self._began) * (1 - share) / share)} left"
        if self._terminal:
            sys.stderr.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Leave an empty line."""
        if self._terminal and self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


class HeldNode(msgspec.Struct, frozen=True):
    """Protected use of one node. Times are epoch seconds."""

    name: str
    from_second: int
    to_second: int
    days: float
    gap_percent: float


class Held(msgspec.Struct, frozen=True):
    """What a history holds."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("NODE", "FROM", "TO", "DAYS", "GAPS")

    path: str
    file_bytes: int
    samples: int
    slots: int
    pod_hours: int
    nodes: list[HeldNode]

    def lines(self) -> Iterator[str]:
        """For people."""
        yield (
            f"{self.path}: {format_bytes(self.file_bytes)}, {len(self.nodes)} nodes, {self.slots} slots, "
            f"{self.samples} samples that are not in a slot yet, {self.pod_hours} hours of pods"
        )
        if len(self.nodes) > _MOST_ROWS:
            yield f"the {_MOST_ROWS} nodes with most gaps (--output json has all):"

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Table rows."""
        shown = self.nodes
        if len(shown) > _MOST_ROWS:
            shown = sorted(shown, key=lambda node: (-node.gap_percent, node.name))[:_MOST_ROWS]
        for node in shown:
            yield (
                node.name,
                stamp(node.from_second),
                stamp(node.to_second),
                f"{node.days:.1f}",
                f"{node.gap_percent:.1f} %",
            )


def holding(history: History) -> Held:
    """What `history` holds. Raises HistoryError."""
    names: list[str] = []
    count = np.zeros(0, dtype=np.int64)
    first = last = count
    for part in history.windows(0):
        names = part.names
        if len(count) < len(names):
            more = len(names) - len(count)
            count = np.concatenate([count, np.zeros(more, dtype=np.int64)])
            first = np.concatenate([first, np.full(more, np.iinfo(np.int64).max)])
            last = np.concatenate([last, np.full(more, -1)])
        known = ~(np.isnan(part.cpu_millis) & np.isnan(part.memory_bytes))
        np.add.at(count, part.node[known], 1)
        np.minimum.at(first, part.node[known], part.slot[known])
        np.maximum.at(last, part.node[known], part.slot[known])
    sizes = history.sizes()
    nodes = [
        HeldNode(
            name,
            int(first[i]) * SLOT_SECONDS,
            (int(last[i]) + 1) * SLOT_SECONDS,
            round(int(count[i]) / _SLOTS_A_DAY, 2),
            round(100.0 * (1.0 - int(count[i]) / (int(last[i]) - int(first[i]) + 1)), 2),
        )
        for i, name in enumerate(names)
        if count[i]
    ]
    return Held(
        history.path, sizes.file_bytes, sizes.samples, sizes.slots, sizes.pod_hours, sorted(nodes, key=lambda n: n.name)
    )
