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
* A silent node whose room fades only ever falls.

More may be due than the API server is to bear: `urgency` says what goes first. What did not go out stays as it was and
is judged anew in the next pass, so that always the newest numbers go out.

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


_UNKNOWN = Amount()


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
    mid: Amount = _UNKNOWN


@dataclasses.dataclass(frozen=True, slots=True)
class Publication:
    """One patch: the status amounts (None = leave the key alone) and the annotation.

    urgency  the smaller, the sooner: what kind of change it is, then how much it matters among its like
    """

    published: Amount
    forecast: Forecast
    cause: Cause
    urgency: tuple[int, float] = (0, 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What to write now, and what stands once it is written. Without a publication only what waits may differ.

    held  what stands when the publication does not go out
    """

    publication: Publication | None
    standing: Standing | None
    held: Standing | None


def decide_publication(
    previous: Standing | None, forecast: Forecast, sold: Amount, now: Instant, rules: PublishRules
) -> Decision:
    """Judge `forecast` (what was computed) against what stands on the node.

    `sold` is what BE pods hold there; a part that is None is not known and then nothing falls or rises.
    `previous` is None for a node on which nothing was ever published.
    """
    if previous is None and not (sold.cpu_millis or sold.memory_bytes) and _untouched(forecast):
        return Decision(None, None, None)
    cpu = _resource(previous, forecast, sold, now, rules, "cpu_millis")
    memory = _resource(previous, forecast, sold, now, rules, "memory_bytes")
    standing = Standing(
        offered=Amount(cpu_millis=cpu.offered, memory_bytes=memory.offered),
        published=Amount(cpu_millis=cpu.published, memory_bytes=memory.published),
        closed=forecast.closed,
        written=previous.written if previous else None,
        cpu_rise=cpu.rise,
        memory_rise=memory.rise,
        mid=forecast.mid,
    )
    cause = _cause(previous, standing, forecast, now)
    if cause is None:
        return Decision(None, standing, standing)
    adjusted = _adjust(forecast, standing, now)
    written = dataclasses.replace(standing, written=now.monotonic)
    held = previous and dataclasses.replace(previous, cpu_rise=cpu.held, memory_rise=memory.held)
    urgency = _urgency(previous, standing, forecast, cause, now)
    return Decision(Publication(standing.published, adjusted, cause, urgency), written, held)


def _untouched(forecast: Forecast) -> bool:
    """Whether a node without a forecast stays without: nobody measures there, or not any more.

    Where an agent does measure, a closed node says why, or its pods would wait for a forecast without a reason.
    """
    unmeasured = None in {forecast.terms.now.cpu_millis, forecast.terms.now.memory_bytes}
    return forecast.terms.fading is not None or bool(forecast.closed and unmeasured)


@dataclasses.dataclass(frozen=True, slots=True)
class _Resource:
    """`held` is the rise that waits on when nothing goes out."""

    offered: int | None
    published: int | None
    rise: Rise | None
    held: Rise | None = None


def _resource(
    previous: Standing | None, forecast: Forecast, sold: Amount, now: Instant, rules: PublishRules, field: str
) -> _Resource:
    computed: int | None = None if forecast.closed else getattr(forecast.reclaimable, field)
    held: int | None = getattr(sold, field)
    before: int | None = getattr(previous.published, field) if previous else None
    waits: Rise | None = None
    if computed is None:
        offered, rise = None, None
    elif previous is None:
        offered, rise = computed, None
    else:
        base = getattr(previous.offered, field)
        start = (held or 0) if base is None else base
        waiting = previous.cpu_rise if field == "cpu_millis" else previous.memory_rise
        if forecast.terms.fading is not None:
            offered, rise = min(start, computed), None
        else:
            offered, rise = _offer(start, computed, waiting, getattr(forecast.terms.capacity, field), now, rules)
            waits = rise if offered == start else _held(waiting, computed, now) if offered > start else None
    floor = before if held is None else held
    if offered is None and floor is None:
        return _Resource(None, before, rise, waits)
    return _Resource(offered, max(offered or 0, floor or 0), rise, waits)


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


def _held(waiting: Rise | None, computed: int, now: Instant) -> Rise:
    """A rise that is due and does not go out: it goes on waiting."""
    return Rise(now.monotonic, computed) if waiting is None else Rise(waiting.since, min(waiting.least, computed))


def _cause(previous: Standing | None, standing: Standing, forecast: Forecast, now: Instant) -> Cause | None:
    if previous is None:
        return Cause.FIRST
    if bool(previous.closed) != bool(standing.closed):
        return Cause.CLOSED if standing.closed else Cause.REOPENED
    if _any_below(standing.offered, previous.offered) or _any_below(standing.mid, previous.mid):
        return Cause.DROP
    if standing.published != previous.published and standing.offered == previous.offered:
        return Cause.SOLD
    if standing.offered != previous.offered:
        return Cause.RISE
    if standing.closed != previous.closed:
        return Cause.CLOSED
    due = previous.written is None or now.monotonic - previous.written >= forecast.ttl_seconds / REFRESH_SHARE
    return Cause.REFRESH if due else None


_RANKS = {Cause.CLOSED: 0, Cause.DROP: 0, Cause.SOLD: 1, Cause.FIRST: 3, Cause.REOPENED: 3, Cause.RISE: 4}
_OVERDUE_RANK = 2
_REFRESH_RANK = 5
_OVERDUE_SHARE = 2.0 / REFRESH_SHARE
"""Of the ttl: an annotation this old is about to make its node stale for every reader."""


def _urgency(
    previous: Standing | None, standing: Standing, forecast: Forecast, cause: Cause, now: Instant
) -> tuple[int, float]:
    if cause is Cause.REFRESH:
        written = previous.written if previous else None
        age = float("inf") if written is None else (now.monotonic - written) / forecast.ttl_seconds
        return (_OVERDUE_RANK if age >= _OVERDUE_SHARE else _REFRESH_RANK), -age
    if cause is Cause.DROP and previous is not None:
        fallen = (
            _share(getattr(old, field), getattr(new, field), getattr(forecast.terms.capacity, field))
            for old, new in ((previous.offered, standing.offered), (previous.mid, standing.mid))
            for field in ("cpu_millis", "memory_bytes")
        )
        return _RANKS[cause], -max(fallen)
    # A node that closes sells nothing more: nothing is more urgent.
    return _RANKS[cause], -1.0 if cause is Cause.CLOSED else 0.0


def _share(old: int | None, new: int | None, capacity: int | None) -> float:
    return 0.0 if old is None or not capacity else max(0, old - (new or 0)) / capacity


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
