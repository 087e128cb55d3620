"""The forecast of a node as published in annotation `slacktide.io/forecast`, and how it ages.

The predictor writes it, scheduler plugins, agent and command read it. Freshness is judged by the reader's clock:
fresh -> ageing (the room decays linearly, so that reclaimable falls towards what is sold) -> expired (nothing
more is sold). No data means less, never more.
"""

from __future__ import annotations

import enum

import msgspec

from slacktide.errors import SlacktideError


class ForecastError(SlacktideError):
    """An annotation that is no forecast: treated as expired by every reader."""


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in millicores and memory in bytes; None is not known, never 0."""

    cpu_millis: int | None = None
    memory_bytes: int | None = None


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every term of reclaimable = capacity - reserve - max(peak, now), so that each number explains itself."""

    capacity: Amount
    reserve: Amount
    peak: Amount
    now: Amount
    sold: Amount
    requested: Amount = Amount()
    model: str = ""
    risk: float | None = None
    note: str = ""


class Forecast(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node may sell to best-effort pods, since when and for how long.

    `at` is the publishing time and `ttl_seconds` the time it stays fresh, in seconds since the epoch (UTC).
    `reclaimable` is what was computed; the published node status never falls below what is already sold, so a
    node that must sell nothing more says so in `closed`, with the reason in words.
    """

    at: float
    ttl_seconds: float
    peak: Amount
    reclaimable: Amount
    terms: Terms
    closed: str = ""
    version: int = 1


class Freshness(enum.StrEnum):
    """Age class of a forecast."""

    FRESH = "fresh"
    AGEING = "ageing"
    EXPIRED = "expired"


AGEING_TTLS = 3.0
"""A forecast is ageing from 1 to this many times its ttl, then expired."""

MAX_CLOCK_SKEW_SECONDS = 60.0
"""A forecast from further in the future than this is not trusted."""

_SHARE_SCALE = 1 << 30


def decode(text: str) -> Forecast:
    """Read the annotation. Raises ForecastError for anything that is no version 1 forecast."""
    try:
        forecast = msgspec.json.decode(text, type=Forecast)
    except msgspec.MsgspecError as error:
        raise ForecastError(f"annotation is no forecast: {error}") from error
    if forecast.version != 1 or not forecast.ttl_seconds > 0:
        raise ForecastError(f"forecast version {forecast.version} with ttl {forecast.ttl_seconds} is not understood")
    return forecast


def encode(forecast: Forecast) -> str:
    """Text for the annotation."""
    return msgspec.json.encode(forecast).decode()


def freshness(forecast: Forecast, now: float) -> Freshness:
    """Age class at `now` (seconds since the epoch)."""
    age = now - forecast.at
    if age < -MAX_CLOCK_SKEW_SECONDS or age > AGEING_TTLS * forecast.ttl_seconds:
        return Freshness.EXPIRED
    return Freshness.FRESH if age <= forecast.ttl_seconds else Freshness.AGEING


def trust(forecast: Forecast, now: float) -> float:
    """Share of the room that may still be sold at `now`: 1 while fresh, falling to 0 at expiry."""
    state = freshness(forecast, now)
    if state is Freshness.EXPIRED:
        return 0.0
    if state is Freshness.FRESH:
        return 1.0
    over = (now - forecast.at) / forecast.ttl_seconds - 1.0
    return max(0.0, 1.0 - over / (AGEING_TTLS - 1.0))


def room(forecast: Forecast, sold: Amount, now: float) -> Amount:
    """What may still be sold at `now` beside `sold`; an unknown amount of a resource leaves no room for it."""
    share = 0.0 if forecast.closed else trust(forecast, now)
    return Amount(
        cpu_millis=_room(forecast.reclaimable.cpu_millis, sold.cpu_millis, share),
        memory_bytes=_room(forecast.reclaimable.memory_bytes, sold.memory_bytes, share),
    )


def _room(reclaimable: int | None, sold: int | None, share: float) -> int:
    if reclaimable is None or sold is None:
        return 0
    left = max(0, reclaimable - sold)
    # Whole numbers only: a float would round a large amount of memory up.
    return left * int(share * _SHARE_SCALE) // _SHARE_SCALE
