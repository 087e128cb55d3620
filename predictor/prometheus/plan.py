"""Which slots are still to fetch, and in which pieces. Pure.

A span is a half-open range of slot numbers. Newest first: an import that is cut short leaves the days that count most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from predictor.slots import SLOT_SECONDS


class Span(NamedTuple):
    """Slots `first` up to, and without, `end`."""

    first: int
    end: int

    @property
    def slots(self) -> int:
        """How many."""
        return self.end - self.first

    @property
    def from_second(self) -> int:
        """Epoch second at which the first slot begins."""
        return self.first * SLOT_SECONDS

    @property
    def to_second(self) -> int:
        """Epoch second at which the last slot ends."""
        return self.end * SLOT_SECONDS


def span_of(from_second: float, to_second: float, multiple: int = 1) -> Span:
    """Whole slots between two epoch seconds; both edges on multiples of `multiple` slots, moved inwards."""
    size = SLOT_SECONDS * multiple
    first = -int(-from_second // size) * multiple
    return Span(first, max(first, int(to_second // size) * multiple))


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same slots as spans that are apart and in order; empty ones fall away."""
    out: list[Span] = []
    for span in sorted(span for span in spans if span.slots > 0):
        if out and span.first <= out[-1].end:
            out[-1] = Span(out[-1].first, max(out[-1].end, span.end))
        else:
            out.append(span)
    return out


def missing(wanted: Span, done: Iterable[Span]) -> list[Span]:
    """What of `wanted` is in none of `done`, in order."""
    out: list[Span] = []
    at = wanted.first
    for span in merged(done):
        if span.first > at:
            out.append(Span(at, min(span.first, wanted.end)))
        at = max(at, span.end)
        if at >= wanted.end:
            break
    if at < wanted.end:
        out.append(Span(at, wanted.end))
    return [span for span in out if span.slots > 0]


def pieces(spans: Iterable[Span], size: int) -> Iterator[Span]:
    """`spans` in pieces of at most `size` slots, newest first. Edges lie on multiples of `size` where they can."""
    for span in sorted(spans, reverse=True):
        end = span.end
        while end > span.first:
            first = max(span.first, (end - 1) // size * size)
            yield Span(first, end)
            end = first


def halves(span: Span, multiple: int = 1) -> tuple[Span, Span] | None:
    """The newer and the older half; None when there is but one unit of `multiple` slots."""
    units = span.slots // multiple
    if units < 2:
        return None
    middle = span.first + units // 2 * multiple
    return Span(middle, span.end), Span(span.first, middle)
