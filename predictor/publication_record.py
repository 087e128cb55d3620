"""The last changes of what each node offers, and what moved them, so that `explain` can say why a number is what it is.

In memory and bounded: `KEPT` changes a node, each of some hundred bytes. Refreshes, which change nothing, are left out.
It begins with leadership: what another leader published is in its own record, as long as its process lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from predictor.publish import Cause, Publication, Standing
from slacktide.explaining import Published, PublishedChange, Waiting
from slacktide.forecast import Origin, Terms
from slacktide.quantity import format_bytes

KEPT: Final = 8
_TERMS: Final = ("capacity", "allocatable", "reserve", "held", "peak", "now", "newcomers", "cap", "floor")
_MOST_TERMS: Final = 3
_FIRST: Final = "first since this predictor leads"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a node is not as it should be: the last patch failed, or nothing is published there; empty where it is."""

    refused: str = ""
    stopped: str = ""


class PublishedRecord:
    """Written by the forecaster's thread, read by any: what is read is replaced as a whole."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._changes: dict[str, tuple[PublishedChange, ...]] = {}
        self._terms: dict[str, Terms] = {}

    def begin(self, wall: float) -> None:
        """Leadership begins: what was kept may have been overtaken by another's numbers."""
        self._since = wall
        self._changes, self._terms = {}, {}

    def forget(self, node: str) -> None:
        """The node is gone."""
        self._changes.pop(node, None)
        self._terms.pop(node, None)

    def add(self, node: str, publication: Publication) -> None:
        """What went out to a node."""
        forecast = publication.forecast
        before = self._terms.get(node)
        change = PublishedChange(
            at=forecast.at,
            cause=publication.cause.value,
            offered=forecast.reclaimable,
            published=publication.published,
            why=_FIRST if before is None else _why(publication, before),
            closed=forecast.closed,
        )
        self._terms[node] = forecast.terms
        self._changes[node] = (*self._changes.get(node, ()), change)[-KEPT:]

    def told(
        self, node: str, standing: Standing | None, monotonic: float, trouble: Trouble, *, leads: bool
    ) -> Published:
        """What is known of a node; `standing` is what stands there and waits."""
        return Published(
            node=node,
            changes=tuple(reversed(self._changes.get(node, ()))),
            since=self._since if leads else None,
            waiting=tuple(_waiting(standing, monotonic)),
            refused=trouble.refused,
            stopped=trouble.stopped,
        )


def _why(publication: Publication, before: Terms) -> str:
    after = publication.forecast.terms
    sold = _changes_of(before, after, ("sold",)) if publication.cause is Cause.SOLD else []
    return "; ".join(part for part in (*sold, moved(before, after)) if part)


def _waiting(standing: Standing | None, monotonic: float) -> Iterator[Waiting]:
    if standing is None:
        return
    for resource, rise in (("cpu", standing.cpu_rise), ("memory", standing.memory_rise)):
        if rise is not None:
            yield Waiting(resource=resource, seconds=max(0.0, monotonic - rise.since), least=rise.least)


def moved(before: Terms, after: Terms) -> str:
    """Which terms moved, the most first, and how the peak was made if that is another way now; empty: none did."""
    parts = _changes_of(before, after, _TERMS)
    for resource, old, new in (("cpu", before.cpu, after.cpu), ("memory", before.memory, after.memory)):
        if (old.path, old.model) != (new.path, new.model):
            parts.append(f"peak of {resource} by {_way(new)}, before by {_way(old)}")
    if before.fading != after.fading and after.fading is not None:
        parts.append(f"the node is silent: {after.fading:.0%} of its room is left")
    return "; ".join(parts)


def _changes_of(before: Terms, after: Terms, names: Sequence[str]) -> list[str]:
    """Those of the terms that changed, for each resource the largest changes first."""
    parts = []
    for resource, field, show in (("cpu", "cpu_millis", _cores), ("memory", "memory_bytes", _size)):
        pairs = ((name, getattr(getattr(before, name), field), getattr(getattr(after, name), field)) for name in names)
        # What is the same to a reader is no reason.
        moves = [
            (abs((new or 0) - (old or 0)), f"{name} {show(old)} -> {show(new)}")
            for name, old, new in pairs
            if show(old) != show(new)
        ]
        moves.sort(key=lambda move: -move[0])
        if moves:
            parts.append(f"{resource}: {', '.join(text for _, text in moves[:_MOST_TERMS])}")
    return parts


def _cores(millis: int | None) -> str:
    return "unknown" if millis is None else f"{millis / 1000:.2f}"


def _size(count: int | None) -> str:
    return "unknown" if count is None else format_bytes(count)


def _way(origin: Origin) -> str:
    return f"{origin.path} ({origin.model})" if origin.model else origin.path
