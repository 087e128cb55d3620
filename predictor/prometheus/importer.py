"""The whole import: look at the server, fetch piece by piece, store, remember what is done.

What is too much for the server is asked for in halves: of the time first, of the nodes when the time is short or the
server speaks of series. A piece of which the server says that data is missing is not stored at all: lower use than
the true one would sell what is not there. It stays open for the next run, like everything after an error that does not
pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from predictor.prometheus.client import Client
from predictor.prometheus.columns import columns_of
from predictor.prometheus.errors import Away, Partial, PrometheusError, TooHeavy
from predictor.prometheus.fetch import Fetcher, Shard
from predictor.prometheus.plan import Span, halves, missing, pieces, span_of
from predictor.prometheus.pods import fetch_pods
from predictor.prometheus.progress import KEY, Ledger
from predictor.prometheus.survey import Survey, survey
from predictor.slots import SLOT_SECONDS
from predictor.store.columns import SLOTS_PER_HOUR, Imported, PodHours, SlotColumns

SETTLE_SECONDS: Final = 600
"""The newest minutes are left out: their samples may still be on their way."""

_POINTS: Final = 400_000
"""Values in one answer, about: some 100 MB while it is decoded."""
_MOST_POINTS: Final = 10_000
"""Values of one series in one answer; Prometheus refuses more than 11,000."""
_PODS_A_NODE: Final = 30
_FAILURES: Final = 4
"""Pieces in a row that came to nothing until the import stops."""


class Target(Protocol):
    """The history as the import uses it."""

    def import_slots(self, kinds: dict[str, SlotColumns], /) -> Imported:
        """Store use of nodes."""
        ...

    def import_pods(self, hours: PodHours, /) -> Imported:
        """Store use of pods."""
        ...

    def load_state(self, key: str, /) -> bytes | None:
        """What is kept under `key`."""
        ...

    def save_state(self, key: str, value: bytes, /) -> None:
        """Keep `value` under `key`."""
        ...


class Wish(NamedTuple):
    """What the operator asked for.

    from_second, to_second  epoch seconds; the end is at most ten minutes before the server's now
    extra                   PromQL matchers on every series
    node_label, step        None = find it
    pods                    whether single pods are imported too
    again                   also what was imported before
    """

    from_second: float
    to_second: float
    extra: tuple[str, ...] = ()
    node_label: str | None = None
    step: int | None = None
    pods: bool = True
    again: bool = False


class Step(NamedTuple):
    """Where the import is: slots done of those that were open, and the piece that is done next."""

    what: str
    done: int
    total: int
    span: Span


@dataclass(slots=True)
class Outcome:
    """What an import did. `problems` is empty when everything that the server has of what was asked for is there.

    stored, measured  slots of nodes that were written, and that were left since Slacktide measured them itself
    pod_hours         hours of pods that were written
    refused           values above what the machine has
    empty_slots       slots of time of which the server has nothing; they stay open, since it may come back
    """

    stored: int = 0
    measured: int = 0
    pod_hours: int = 0
    refused: int = 0
    empty_slots: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing stayed open."""
        return not self.problems

    def problem(self, text: str) -> None:
        """Note what stayed open, once."""
        if text not in self.problems:
            self.problems.append(text)


class Plan(NamedTuple):
    """What would be fetched."""

    survey: Survey
    wanted: Span
    nodes: list[Span]
    pods: list[Span]
    node_piece: int
    pod_piece: int

    @property
    def queries(self) -> int:
        """About how many queries it takes."""
        each = 4 + 4 * (self.survey.form is not None) + 2 * self.survey.requests
        count = sum(1 for _ in pieces(self.nodes, self.node_piece)) * each
        return count + sum(1 for _ in pieces(self.pods, self.pod_piece)) * 6


class Importer:
    """One import. `target` may be None for a look only."""

    def __init__(self, client: Client, target: Target | None, wish: Wish) -> None:
        self._client = client
        self._target = target
        self._wish = wish
        self._ledger = Ledger(None if target is None else target.load_state(KEY), client.access.base, wish.extra)
        if wish.again:
            self._ledger.forget()

    def plan(self) -> Plan:
        """Look at the server and at what is done. Raises PrometheusError."""
        wish = self._wish
        self._client.greet()
        end = min(wish.to_second, self._client.now() - SETTLE_SECONDS)
        wanted = span_of(wish.from_second, end)
        if not wanted.slots:
            raise PrometheusError(
                f"there is no whole slot of {SLOT_SECONDS} s between --from and --to; the newest "
                f"{SETTLE_SECONDS // 60} minutes are left out"
            )
        found = survey(self._client, wanted.from_second, wanted.to_second, wish.extra, wish.node_label, wish.step)
        hours = span_of(wanted.from_second, wanted.to_second, SLOTS_PER_HOUR)
        pods = wish.pods and found.pods and found.form is not None
        return Plan(
            found,
            wanted,
            missing(wanted, self._ledger.spans(pods=False)),
            missing(hours, self._ledger.spans(pods=True)) if pods else [],
            *piece_sizes(len(found.nodes), found.step_seconds),
        )

    def run(self, plan: Plan, tell: Callable[[Step], None]) -> Outcome:
        """Do it. Raises HistoryError; what the server refuses stands in the outcome."""
        assert self._target is not None, "a look stores nothing"
        outcome = Outcome()
        fetcher = Fetcher(self._client, plan.survey, self._wish.extra)
        for work in (_Nodes(fetcher, self._target, outcome), _Pods(fetcher, self._target, outcome)):
            spans, size = (plan.pods, plan.pod_piece) if work.pods else (plan.nodes, plan.node_piece)
            if not _Run(work, fetcher, self._client, outcome, self._done).all(spans, size, tell):
                break
        return outcome

    def _done(self, span: Span, pods: bool) -> None:
        assert self._target is not None, "a look stores nothing"
        self._ledger.add(span, pods=pods)
        self._target.save_state(KEY, self._ledger.blob())


def piece_sizes(nodes: int, step: int) -> tuple[int, int]:
    """Slots of a piece of nodes, and of one of pods, so that no answer is too long."""
    each = SLOT_SECONDS // step
    of_nodes = min(_POINTS // (max(nodes, 1) * each), _MOST_POINTS // each, 288)
    hours = min(_POINTS // (max(nodes, 1) * _PODS_A_NODE * SLOTS_PER_HOUR), 24)
    return max(of_nodes, SLOTS_PER_HOUR), max(hours, 1) * SLOTS_PER_HOUR


class _Work(Protocol):
    """A kind of data that is fetched by pieces."""

    what: str
    pods: bool
    multiple: int

    def store(self, span: Span, shard: Shard | None) -> bool:
        """Fetch and store one piece; whether there was anything."""
        ...


class _Nodes:
    what = "nodes"
    pods = False
    multiple = 1

    def __init__(self, fetcher: Fetcher, target: Target, outcome: Outcome) -> None:
        self._fetcher, self._target, self._outcome = fetcher, target, outcome

    def store(self, span: Span, shard: Shard | None) -> bool:
        raw = self._fetcher.fetch(span, shard)
        survey = self._fetcher.survey
        columns = columns_of(raw, span, survey.step_seconds, survey.window_seconds)
        self._outcome.refused += columns.refused
        if columns.kinds:
            did = self._target.import_slots(columns.kinds)
            self._outcome.stored += did.stored
            self._outcome.measured += did.measured
        elif shard is None:
            self._outcome.empty_slots += span.slots
        return bool(columns.kinds)


class _Pods:
    what = "pods"
    pods = True
    multiple = SLOTS_PER_HOUR

    def __init__(self, fetcher: Fetcher, target: Target, outcome: Outcome) -> None:
        self._fetcher, self._target, self._outcome = fetcher, target, outcome

    def store(self, span: Span, shard: Shard | None) -> bool:
        hours = fetch_pods(self._fetcher, span, shard)
        if len(hours.pod):
            self._outcome.pod_hours += self._target.import_pods(hours).stored
        return len(hours.pod) > 0


class _Run:
    """Fetches the pieces of one kind of data."""

    def __init__(
        self,
        work: _Work,
        fetcher: Fetcher,
        client: Client,
        outcome: Outcome,
        done: Callable[[Span, bool], None],
    ) -> None:
        self._work = work
        self._fetcher = fetcher
        self._client = client
        self._outcome = outcome
        self._done = done
        self._smallest: int | None = None

    def all(self, spans: list[Span], size: int, tell: Callable[[Step], None]) -> bool:
        """Every piece; False when the server is of no use any more."""
        total, at, failures = sum(span.slots for span in spans), 0, 0
        for span in self._pieces(spans, size):
            tell(Step(self._work.what, at, total, span))
            try:
                failures = 0 if self._piece(span, None) else failures + 1
            except PrometheusError as error:
                self._outcome.problem(str(error))
                return False
            if failures == _FAILURES:
                self._outcome.problem(f"{failures} pieces in a row came to nothing: stopped")
                return False
            at += span.slots
        return True

    def _pieces(self, spans: list[Span], size: int) -> Iterator[Span]:
        """Pieces of `size`, smaller from the first one on that was too much for the server."""
        for span in pieces(spans, size):
            if self._smallest is None or self._smallest >= span.slots:
                yield span
            else:
                yield from pieces([span], self._smallest)

    def _piece(self, span: Span, shard: Shard | None) -> bool:
        """Whether all of the piece is stored. Raises PrometheusError when the next one would fare no better."""
        try:
            found = self._work.store(span, shard)
        except TooHeavy as error:
            if not self._client.alive():
                raise Away(f"{error}; and now it does not answer at all") from error
            return self._in_parts(span, shard, error)
        except Partial as error:
            self._outcome.problem(str(error))
            return False
        if shard is None and found:
            self._done(span, self._work.pods)
        return True

    def _in_parts(self, span: Span, shard: Shard | None, error: TooHeavy) -> bool:
        by_time = halves(span, self._work.multiple)
        by_node = self._by_node(span, shard) if error.series or by_time is None else None
        if by_node is not None:
            stored = [self._piece(span, part) for part in by_node]
            if all(stored) and shard is None:
                self._done(span, self._work.pods)
            return all(stored)
        if by_time is not None:
            if shard is None:
                self._smallest = by_time[1].slots
            stored = [self._piece(part, shard) for part in by_time]
            return all(stored)
        self._outcome.problem(f"not even one node and {span.slots} slots can be had at once: {error}")
        return False

    def _by_node(self, span: Span, shard: Shard | None) -> tuple[Shard, Shard] | None:
        with contextlib.suppress(TooHeavy, Partial):
            return self._fetcher.shards(span) if shard is None else self._fetcher.split(shard)
        return None
