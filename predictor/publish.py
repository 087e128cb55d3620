"""What goes out to a node, and when. Pure: the previous state and the new forecast in, a publication or nothing out.

Rules (design, section 4):

* A drop goes out at once, whatever its size.
* A rise must last `rise_wait_seconds`, then at most `rise_step_percent` of capacity goes out, and never more than the
  least that was computed while it waited. A rise below the dead band is not worth a write and does not go out.
* The first publication of a node goes out whole.
* The node status is never below what is sold: a kubelet that restarts would reject pods that run. A node that must
  sell nothing more says so in `closed`.
* A closed node offers nothing. When it reopens it starts at what is sold and rises by the rules.
* The annotation is written again every third of its ttl, so that readers see that the predictor lives.

What was published is read back from the node, so that a restart or a fail-over raises no number.
Two numbers per resource: `offered` (annotation, `reclaimable`) is what the scheduler sells by; `published` (node
status) is the larger of offered and sold.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Protocol

import msgspec

from predictor.clock import Instant
from slacktide.forecast import Amount, Forecast

REFRESH_SHARE = 3.0
RISE_NOTE = "rise waits"


class PublishRules(Protocol):
    """The settings that decide."""

    @property
    def rise_wait_seconds(self) -> float:
        """How long a rise must last."""
        ...

    @property
    def rise_step_percent(self) -> float:
        """Largest rise at a time, of capacity."""
        ...

    @property
    def dead_band_percent(self) -> float:
        """Smallest rise, of capacity."""
        ...


class Cause(enum.StrEnum):
    """What made a publication due; the label of the metric."""

    FIRST = "first"
    CLOSED = "closed"
    DROP = "drop"
    SOLD = "sold"
    REOPENED = "reopened"
    RISE = "rise"
    REFRESH = "refresh"


@dataclasses.dataclass(frozen=True, slots=True)
class Rise:
    """A rise that waits: since when (monotonic seconds), and the least that was computed meanwhile."""

    since: float
    least: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What stands on a node, and what waits.

    offered     reclaimable of the annotation; None = nothing is offered
    published   amounts in the node status
    written     monotonic time of our last patch, None when somebody else wrote it
    """

    offered: Amount
    published: Amount
    closed: str = ""
    written: float | None = None
    cpu_rise: Rise | None = None
    memory_rise: Rise | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Publication:
    """One patch: the status amounts (None = leave the key alone) and the annotation."""

    published: Amount
    forecast: Forecast
    cause: Cause


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What to write now, and what stands once it is written. Without a publication only what waits may differ."""

    publication: Publication | None
    standing: Standing | None


def decide_publication(
    previous: Standing | None, forecast: Forecast, sold: Amount, now: Instant, rules: PublishRules
) -> Decision:
    """Judge `forecast` (what was computed) against what stands on the node.

    `sold` is what BE pods hold there; a part that is None is not known and then nothing falls or rises.
    `previous` is None for a node on which nothing was ever published.
    """
    if previous is None and forecast.closed and not (sold.cpu_millis or sold.memory_bytes):
        return Decision(None, None)
    cpu = _resource(previous, forecast, sold, now, rules, "cpu_millis")
    memory = _resource(previous, forecast, sold, now, rules, "memory_bytes")
    standing = Standing(
        offered=Amount(cpu_millis=cpu.offered, memory_bytes=memory.offered),
        published=Amount(cpu_millis=cpu.published, memory_bytes=memory.published),
        closed=forecast.closed,
        written=previous.written if previous else None,
        cpu_rise=cpu.rise,
        memory_rise=memory.rise,
    )
    cause = _cause(previous, standing, forecast, now)
    if cause is None:
        return Decision(None, standing)
    adjusted = _adjust(forecast, standing, now)
    written = dataclasses.replace(standing, written=now.monotonic)
    return Decision(Publication(standing.published, adjusted, cause), written)


@dataclasses.dataclass(frozen=True, slots=True)
class _Resource:
    offered: int | None
    published: int | None
    rise: Rise | None


def _resource(
    previous: Standing | None, forecast: Forecast, sold: Amount, now: Instant, rules: PublishRules, field: str
) -> _Resource:
    computed: int | None = None if forecast.closed else getattr(forecast.reclaimable, field)
    held: int | None = getattr(sold, field)
    before: int | None = getattr(previous.published, field) if previous else None
    if computed is None:
        offered, rise = None, None
    elif previous is None:
        offered, rise = computed, None
    else:
        base = getattr(previous.offered, field)
        waiting = previous.cpu_rise if field == "cpu_millis" else previous.memory_rise
        start = (held or 0) if base is None else base
        offered, rise = _offer(start, computed, waiting, getattr(forecast.terms.capacity, field), now, rules)
    floor = before if held is None else held
    if offered is None and floor is None:
        return _Resource(None, before, rise)
    return _Resource(offered, max(offered or 0, floor or 0), rise)


def _offer(
    base: int, computed: int, waiting: Rise | None, capacity: int | None, now: Instant, rules: PublishRules
) -> tuple[int, Rise | None]:
    if computed <= base:
        return computed, None
    room = capacity or 0
    if computed - base < room * rules.dead_band_percent / 100:
        return base, None
    least = computed if waiting is None else min(waiting.least, computed)
    since = now.monotonic if waiting is None else waiting.since
    if now.monotonic - since < rules.rise_wait_seconds:
        return base, Rise(since, least)
    step = max(1, int(room * rules.rise_step_percent / 100))
    risen = min(least, base + step)
    return risen, None if risen >= computed else Rise(now.monotonic, computed)


def _cause(previous: Standing | None, standing: Standing, forecast: Forecast, now: Instant) -> Cause | None:
    if previous is None:
        return Cause.FIRST
    if bool(previous.closed) != bool(standing.closed):
        return Cause.CLOSED if standing.closed else Cause.REOPENED
    if _any_below(standing.offered, previous.offered):
        return Cause.DROP
    if standing.published != previous.published and standing.offered == previous.offered:
        return Cause.SOLD
    if standing.offered != previous.offered:
        return Cause.RISE
    if standing.closed != previous.closed:
        return Cause.CLOSED
    due = previous.written is None or now.monotonic - previous.written >= forecast.ttl_seconds / REFRESH_SHARE
    return Cause.REFRESH if due else None


def _any_below(new: Amount, old: Amount) -> bool:
    return _below(new.cpu_millis, old.cpu_millis) or _below(new.memory_bytes, old.memory_bytes)


def _below(new: int | None, old: int | None) -> bool:
    return old is not None and (new is None or new < old)


def _adjust(forecast: Forecast, standing: Standing, now: Instant) -> Forecast:
    waits = standing.cpu_rise is not None or standing.memory_rise is not None
    note = forecast.terms.note
    if waits:
        note = f"{note}; {RISE_NOTE}" if note else RISE_NOTE
    return msgspec.structs.replace(
        forecast,
        at=now.wall,
        reclaimable=standing.offered,
        terms=msgspec.structs.replace(forecast.terms, note=note),
    )
