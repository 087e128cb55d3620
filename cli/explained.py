"""A published forecast in words: every term of every number, and what made it. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from slacktide import forecast as wire
from slacktide.forecast import Amount, Forecast, Freshness, Origin, Terms

_PATHS = {
    "requests": "too little was measured to forecast: the requests of the LS pods and what SYSTEM uses now count",
    "short": "forecast by a model that saw under a day of this node",
    "week": "forecast by a model that saw under a week of this node",
    "model": "forecast by a model that saw a week of this node or more",
    "fallback": "the model in force had no answer for this node, the fallback did",
    "stale model": "no forecast came in time: the highest use of the last seven days counts",
}
_UNKNOWN_PATH = "made in a way that this version of the command does not know"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One term: how it enters (`sign` is empty, -, =), its amounts, and why it is what it is."""

    term: str
    sign: str
    amount: Amount
    why: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What stands on a node at one moment. `left` is what may still be sold, `remarks` what else is to be said."""

    node: str
    freshness: str
    age_seconds: float
    closed: str
    lines: list[Line]
    left: Amount
    remarks: list[str]
    forecast: Forecast


def explain(node: str, forecast: Forecast, sold: Amount, published: Amount, now: float) -> Explanation:
    """Explain what `forecast` says of `node` at `now` (seconds since the epoch).

    `sold` is what the BE pods there hold now, `published` what stands in the node's status.
    """
    lines = [*_terms(forecast.terms), *_result(forecast, sold, published, now)]
    return Explanation(
        node=node,
        freshness=wire.freshness(forecast, now).value,
        age_seconds=now - forecast.at,
        closed=forecast.closed,
        lines=lines,
        left=wire.room(forecast, sold, now),
        remarks=_remarks(forecast),
        forecast=forecast,
    )


def computed(terms: Terms) -> Amount:
    """What the terms come to before cap, floor and fading; a part is None when a term of it is."""
    return _each(_computed, terms)


def _terms(terms: Terms) -> list[Line]:
    need = _each(lambda part, field: _largest(_of(part.peak, field), _of(part.now, field)), terms)
    pods = terms.newcomer_pods
    return [
        _line("capacity", "", terms.capacity, "the smaller of what the agent measured and the node object says"),
        _line("reserve", "-", terms.reserve, _reserve(terms)),
        _line("held", "-", terms.held, "kept from pods by the node object (capacity - allocatable), less SYSTEM's use"),
        _line("peak", "", terms.peak, _origins(terms)),
        _line("use now", "", terms.now, "LS and SYSTEM in the newest sample: mean CPU, highest memory"),
        _line("need", "-", need, "the larger of peak and use now; what BE uses is no part of it"),
        _line("newcomers", "-", terms.newcomers, _newcomers(pods)),
        _line("computed", "=", computed(terms), "never more than allocatable less need and newcomers"),
    ]


def _result(forecast: Forecast, sold: Amount, published: Amount, now: float) -> list[Line]:
    terms = forecast.terms
    lines = [
        _line(name, "", amount, why)
        for name, amount, why in (
            ("cap", terms.cap, "most that the settings let be sold here"),
            ("floor", terms.floor, "least that the settings offer here, as far as use now allows"),
        )
        if amount != Amount()
    ]
    lines.append(_line("reclaimable", "=", forecast.reclaimable, _offered(forecast)))
    lines.append(_line("sold", "-", sold, "batch requests of the BE pods that are bound here"))
    lines.append(_line("room", "=", wire.room(forecast, sold, now), _room(forecast, now)))
    lines.append(_line("in the status", "", published, "the larger of reclaimable and sold: a kubelet checks it"))
    if forecast.mid != Amount():
        why = "requests and SYSTEM's use less need, within what is left and the cap of the mid tier"
        lines.append(_line("mid tier", "", forecast.mid, why))
    lines += [
        _line(f"zone {zone.id}", "", zone.reclaimable, f"part of reclaimable; {_cores(zone.capacity)} are there")
        for zone in forecast.zones
    ]
    return lines


def _line(term: str, sign: str, amount: Amount, why: str) -> Line:
    return Line(term=term, sign=sign, amount=amount, why=why)


def _reserve(terms: Terms) -> str:
    pool = f" of pool {terms.pool}" if terms.pool else ""
    return f"share of capacity that the settings{pool} never sell"


def _newcomers(pods: int) -> str:
    if not pods:
        return "no LS pod here is too young to know"
    count = f"{pods} LS pod{'s are' if pods > 1 else ' is'}"
    return f"{count} young or not measured: requests, or the peak of their like, beyond what is counted already"


def _origins(terms: Terms) -> str:
    cpu, memory = _origin(terms.cpu), _origin(terms.memory)
    return cpu if cpu == memory else f"cpu: {cpu}; memory: {memory}"


def _origin(origin: Origin) -> str:
    said = _PATHS.get(origin.path, _UNKNOWN_PATH)
    if origin.path == "requests" or not origin.model:
        return said
    parts = [f"{said} ({origin.model}"]
    if origin.risk is not None:
        parts.append(f", asked risk {origin.risk:.2%}")
    if origin.shift is not None:
        parts.append(f", calibration {origin.shift:+.1%} of the week's highest use")
    widened = f", widened: {origin.widened}" if origin.widened else ""
    return "".join(parts) + ")" + widened


def _offered(forecast: Forecast) -> str:
    if forecast.closed:
        return wire.closed_words(forecast.closed)
    if forecast.terms.fading is not None:
        return f"the node is silent: {forecast.terms.fading:.0%} of its room is left"
    waits = any(
        offered is not None and made is not None and offered < made
        for offered, made in zip(_both(forecast.reclaimable), _both(_bounded(forecast.terms)), strict=True)
    )
    return "less than computed: a rise waits, and goes out by steps" if waits else "what is offered"


def _bounded(terms: Terms) -> Amount:
    cap = terms.cap
    made = computed(terms)
    return _each(lambda _, field: _smallest(_of(made, field), _of(cap, field)), terms)


def _room(forecast: Forecast, now: float) -> str:
    state = wire.freshness(forecast, now)
    if state is Freshness.FRESH:
        return "what may still be sold; the forecast is fresh"
    if state is Freshness.AGEING:
        return f"the forecast ages: {wire.trust(forecast, now):.0%} of the room is left"
    return "the forecast is expired: nothing more is sold"


def _remarks(forecast: Forecast) -> list[str]:
    ahead = forecast.horizon_seconds
    remarks = [] if ahead is None else [f"the peak is that of the next {ahead / 60:g} minutes"]
    return remarks + [part for part in forecast.terms.note.split("; ") if part]


def _computed(terms: Terms, field: str) -> int | None:
    capacity, reserve = _of(terms.capacity, field), _of(terms.reserve, field)
    peak, now = _of(terms.peak, field), _of(terms.now, field)
    if capacity is None or reserve is None or peak is None or now is None:
        return None
    need = max(peak, now) + (_of(terms.newcomers, field) or 0)
    allocatable = _of(terms.allocatable, field)
    left = capacity - reserve - (_of(terms.held, field) or 0) - need
    return max(0, left if allocatable is None else min(left, allocatable - need))


def _each(of: Callable[[Terms, str], int | None], terms: Terms) -> Amount:
    return Amount(cpu_millis=of(terms, "cpu_millis"), memory_bytes=of(terms, "memory_bytes"))


def _of(amount: Amount, field: str) -> int | None:
    value: int | None = getattr(amount, field)
    return value


def _both(amount: Amount) -> tuple[int | None, int | None]:
    return amount.cpu_millis, amount.memory_bytes


def _largest(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def _smallest(one: int | None, other: int | None) -> int | None:
    return one if other is None or one is None else min(one, other)


def _cores(capacity: Amount) -> str:
    return "unknown cores" if capacity.cpu_millis is None else f"{capacity.cpu_millis / 1000:g} cores"
