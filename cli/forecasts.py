"""Forecasts of the nodes as they stand in the API: annotation, status and what is sold, for the commands."""

from __future__ import annotations

from typing import Final

import msgspec

from cli.exits import FAILED, CommandError
from cli.gather import sold_on
from cli.near import hint
from cli.output import MISSING
from cli.podview import show_age, show_bytes, show_cpu
from slacktide import forecast as wire
from slacktide.errors import QuantityError
from slacktide.forecast import Amount, Forecast
from slacktide.names import BATCH_CPU, BATCH_MEMORY, FORECAST_ANNOTATION
from slacktide.objects import Node, Pod
from slacktide.quantity import parse

COLUMNS: Final = ("NODE", "CAPACITY", "PEAK", "NOW", "SOLD", "ROOM", "MODEL", "PATH", "AGE", "REASON")
WIDE: Final = ("RECLAIMABLE", "PUBLISHED", "RESERVE", "RISK", "TTL", "POOL")


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `forecast` is None where none was published, or it cannot be read: `reason` says which.

    `room` is what may still be sold; `published` what stands in the node's status.
    """

    node: str
    forecast: Forecast | None
    sold: Amount
    room: Amount
    published: Amount
    freshness: str
    age_seconds: float | None
    reason: str


class Forecasts(msgspec.Struct, frozen=True, kw_only=True):
    """What `forecast` prints for programs."""

    nodes: list[Standing]


def standing(node: Node, pods: list[Pod], now: float) -> Standing:
    """What stands on `node` at `now`, in seconds since the epoch."""
    name = node.metadata.name
    forecast, reason = _read(node)
    try:
        sold = sold_on(name, pods)
    except QuantityError as error:
        sold, reason = Amount(), str(error)
    if forecast is None:
        room, freshness, age = Amount(), MISSING, None
    else:
        room, freshness = wire.room(forecast, sold, now), wire.freshness(forecast, now).value
        age = now - forecast.at
        reason = reason or _reason(forecast, freshness)
    return Standing(
        node=name,
        forecast=forecast,
        sold=sold,
        room=room,
        published=_published(node),
        freshness=freshness,
        age_seconds=age,
        reason=reason,
    )


def columns(*, wide: bool) -> tuple[str, ...]:
    """Columns of the table; with `wide` also those that few need."""
    return (*COLUMNS[:-1], *WIDE, COLUMNS[-1]) if wide else COLUMNS


def cells(one: Standing, *, wide: bool = False) -> list[str]:
    """Row of the table; CPU in cores and memory, as `cpu / memory`."""
    *usual, reason = _usual(one)
    return [*usual, *(_rarely_wanted(one) if wide else ()), reason]


def _rarely_wanted(one: Standing) -> list[str]:
    forecast = one.forecast
    if forecast is None:
        return [MISSING, _both(one.published), *[MISSING] * 4]
    terms = forecast.terms
    risks = [MISSING if origin.risk is None else f"{origin.risk:.2%}" for origin in (terms.cpu, terms.memory)]
    return [
        _both(forecast.reclaimable),
        _both(one.published),
        _both(terms.reserve),
        _pair(*risks),
        show_age(forecast.ttl_seconds),
        terms.pool or MISSING,
    ]


def _usual(one: Standing) -> list[str]:
    forecast = one.forecast
    if forecast is None:
        return [one.node, *[MISSING] * 3, _both(one.sold), *[MISSING] * 4, one.reason]
    terms = forecast.terms
    return [
        one.node,
        _both(terms.capacity),
        _both(forecast.peak),
        _both(terms.now),
        _both(one.sold),
        _both(one.room),
        _pair(terms.cpu.model, terms.memory.model),
        _pair(terms.cpu.path, terms.memory.path),
        show_age(None if one.age_seconds is None else max(0.0, one.age_seconds)),
        one.reason,
    ]


def missing_node(name: str, known: list[str]) -> CommandError:
    """The error for a node that is not there, or was not named where there are several."""
    what = f"no node {name!r};" if name else "which node?"
    return CommandError(f"{what} {hint(name, known)}", FAILED)


def _read(node: Node) -> tuple[Forecast | None, str]:
    text = node.metadata.annotations.get(FORECAST_ANNOTATION)
    if text is None:
        return None, "no forecast was published yet"
    try:
        return wire.decode(text), ""
    except wire.ForecastError as error:
        return None, str(error)


def _reason(forecast: Forecast, freshness: str) -> str:
    if forecast.closed:
        return wire.closed_words(forecast.closed)
    return forecast.terms.note if freshness == "fresh" else freshness


def _published(node: Node) -> Amount:
    cpu, memory = (_amount(node, name) for name in (BATCH_CPU, BATCH_MEMORY))
    return Amount(cpu_millis=cpu, memory_bytes=memory)


def _amount(node: Node, name: str) -> int | None:
    try:
        return parse(node.status.allocatable[name]).value()
    except (KeyError, QuantityError):
        return None


def _both(amount: Amount) -> str:
    return f"{show_cpu(amount.cpu_millis)} / {show_bytes(amount.memory_bytes)}"


def _pair(cpu: str, memory: str) -> str:
    return (cpu or MISSING) if cpu == memory else f"{cpu or MISSING} / {memory or MISSING}"
