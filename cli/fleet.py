"""All nodes of a cluster in one table: what each has, needs, has sold and may still sell. Pure."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cli.exits import USAGE, CommandError
from cli.forecasts import Standing, standing
from cli.output import MISSING
from cli.podview import show_age, show_bytes, show_cpu, show_share
from slacktide.forecast import Amount
from slacktide.objects import Node, Pod, is_terminal
from slacktide.tier import Tier, tier_of

COLUMNS: Final = (
    "NODE",
    "CPU",
    "LS NOW",
    "LS PEAK",
    "SOLD",
    "ROOM",
    "MEMORY ROOM",
    "BE PODS",
    "AGE",
    "TREND",
    "REASON",
)
WIDE: Final = ("MEMORY", "MEMORY NOW", "MEMORY PEAK", "MEMORY SOLD", "PUBLISHED", "MODEL", "FRESHNESS")
BARS: Final = "▁▂▃▄▅▆▇█"
PLAIN_BARS: Final = "_.-=*#%@"
TREND: Final = 20
"""Looks that a sparkline shows."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the nodes of a fleet; of what is not known there is nothing in them."""

    nodes: int
    silent: int
    closed: int
    capacity: Amount
    now: Amount
    peak: Amount
    sold: Amount
    room: Amount


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at one moment, `at` in seconds since the epoch. `pods` are counts of living BE pods by node."""

    at: float
    totals: Totals
    nodes: list[Standing]
    pods: dict[str, int]


def fleet(nodes: Iterable[Node], pods: Iterable[Pod], now: float) -> Fleet:
    """What stands on each node."""
    placed: dict[str, list[Pod]] = collections.defaultdict(list)
    for pod in pods:
        placed[pod.spec.node_name].append(pod)
    found = [standing(node, placed.get(node.metadata.name, []), now) for node in nodes]
    return Fleet(
        at=now,
        totals=_totals(found),
        nodes=found,
        pods={one.node: sum(map(_lives, placed.get(one.node, ()))) for one in found},
    )


def _lives(pod: Pod) -> bool:
    """Whether a BE pod that has not ended."""
    return tier_of(pod) is Tier.BE and not is_terminal(pod)


def _totals(found: Sequence[Standing]) -> Totals:
    forecasts = [one.forecast for one in found if one.forecast is not None]
    return Totals(
        nodes=len(found),
        silent=len(found) - len(forecasts),
        closed=sum(bool(forecast.closed) for forecast in forecasts),
        capacity=_sum(forecast.terms.capacity for forecast in forecasts),
        now=_sum(forecast.terms.now for forecast in forecasts),
        peak=_sum(forecast.peak for forecast in forecasts),
        sold=_sum(one.sold for one in found),
        room=_sum(one.room for one in found),
    )


def _sum(amounts: Iterable[Amount]) -> Amount:
    cpu, memory = 0, 0
    known_cpu = known_memory = False
    for amount in amounts:
        if amount.cpu_millis is not None:
            cpu, known_cpu = cpu + amount.cpu_millis, True
        if amount.memory_bytes is not None:
            memory, known_memory = memory + amount.memory_bytes, True
    return Amount(cpu_millis=cpu if known_cpu else None, memory_bytes=memory if known_memory else None)


def _now(one: Standing) -> Amount:
    return one.forecast.terms.now if one.forecast is not None else Amount()


def _peak(one: Standing) -> Amount:
    return one.forecast.peak if one.forecast is not None else Amount()


def _largest(read: Callable[[Standing], Amount]) -> Callable[[Standing], tuple[float, str]]:
    """Sorts by CPU, the largest first, what is not known last."""

    def key(one: Standing) -> tuple[float, str]:
        value = read(one).cpu_millis
        return (float("inf") if value is None else -value, one.node)

    return key


ORDERS: Final[Mapping[str, Callable[[Standing], tuple[object, str]]]] = {
    "name": lambda one: (0, one.node),
    "now": _largest(_now),
    "peak": _largest(_peak),
    "sold": _largest(lambda one: one.sold),
    "room": _largest(lambda one: one.room),
    "age": lambda one: (float("-inf") if one.age_seconds is None else -one.age_seconds, one.node),
}


def check_order(order: str) -> None:
    """Raises CommandError that lists the orders there are, where `order` is none of them."""
    if order not in ORDERS:
        raise CommandError(f"cannot sort by {order!r}; there are: {', '.join(ORDERS)}", USAGE)


def chosen(nodes: Sequence[Standing], order: str, wanted: str, only: str) -> list[Standing]:
    """Nodes whose name has `wanted` in it and that are `only` (all, closed, silent, selling), sorted by `order`."""
    check_order(order)
    tests: Mapping[str, Callable[[Standing], bool]] = {
        "all": lambda _: True,
        "closed": lambda one: one.forecast is not None and bool(one.forecast.closed),
        "silent": lambda one: one.forecast is None or one.freshness != "fresh",
        "selling": lambda one: bool(one.room.cpu_millis),
    }
    kept = [one for one in nodes if wanted in one.node and tests[only](one)]
    return sorted(kept, key=ORDERS[order])


class Trends:
    """The last looks at what LS uses of each node, as shares of its capacity."""

    def __init__(self, length: int = TREND) -> None:
        self._length = length
        self._seen: dict[str, collections.deque[float | None]] = {}

    def add(self, nodes: Iterable[Standing]) -> None:
        """Take one look; nodes that are gone are forgotten."""
        kept: dict[str, collections.deque[float | None]] = {}
        for one in nodes:
            series = self._seen.get(one.node) or collections.deque(maxlen=self._length)
            series.append(_share(one))
            kept[one.node] = series
        self._seen = kept

    def line(self, node: str, bars: str = BARS) -> str:
        """The looks as a sparkline; a blank is not known."""
        last = len(bars) - 1
        return "".join(
            " " if value is None else bars[max(0, min(last, round(value * last)))] for value in self._seen.get(node, ())
        )


def _share(one: Standing) -> float | None:
    if one.forecast is None:
        return None
    now, capacity = one.forecast.terms.now.cpu_millis, one.forecast.terms.capacity.cpu_millis
    return now / capacity if now is not None and capacity else None


def columns(*, wide: bool) -> tuple[str, ...]:
    """Columns of the table; with `wide` also those that few need."""
    return (*COLUMNS[:-1], *WIDE, COLUMNS[-1]) if wide else COLUMNS


def cells(one: Standing, pods: int, trend: str, *, wide: bool = False) -> list[str]:
    """One row."""
    *usual, reason = _usual(one, pods, trend)
    return [*usual, *(_rarely_wanted(one) if wide else ()), reason]


def _rarely_wanted(one: Standing) -> list[str]:
    terms = one.forecast.terms if one.forecast is not None else None
    return [
        show_bytes(terms.capacity.memory_bytes if terms is not None else None),
        show_bytes(_now(one).memory_bytes),
        show_bytes(_peak(one).memory_bytes),
        show_bytes(one.sold.memory_bytes),
        show_cpu(one.published.cpu_millis),
        (terms.cpu.model or terms.model if terms is not None else "") or MISSING,
        one.freshness,
    ]


def _usual(one: Standing, pods: int, trend: str) -> list[str]:
    forecast = one.forecast
    capacity = forecast.terms.capacity.cpu_millis if forecast is not None else None
    return [
        one.node,
        show_cpu(capacity),
        _of(_now(one).cpu_millis, capacity),
        _of(_peak(one).cpu_millis, capacity),
        show_cpu(one.sold.cpu_millis),
        show_cpu(one.room.cpu_millis),
        show_bytes(one.room.memory_bytes),
        str(pods),
        show_age(None if one.age_seconds is None else max(0.0, one.age_seconds)),
        trend,
        one.reason,
    ]


def headline(totals: Totals) -> str:
    """The sums in a line."""
    known = f"{totals.nodes} nodes, {totals.closed} closed, {totals.silent} without a forecast"
    cpu = totals.capacity.cpu_millis
    return (
        f"{known}; of {show_cpu(cpu)} cores LS uses {_of(totals.now.cpu_millis, cpu)}, "
        f"is expected to need {_of(totals.peak.cpu_millis, cpu)}; sold {show_cpu(totals.sold.cpu_millis)}, "
        f"room for {show_cpu(totals.room.cpu_millis)}"
    )


def _of(part: int | None, whole: int | None) -> str:
    if part is None:
        return MISSING
    return f"{show_cpu(part)} {show_share(part / whole)}" if whole else show_cpu(part)
