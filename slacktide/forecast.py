"""The forecast of a node as published in annotation `slacktide.io/forecast`, and how it ages.

The predictor writes it, scheduler plugins, agent and command read it. Freshness is judged by the reader's clock:
fresh -> ageing (the room decays linearly, so that reclaimable falls towards what is sold) -> expired (nothing
more is sold). No data means less, never more.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from slacktide.errors import SlacktideError


class ForecastError(SlacktideError):
    """An annotation that is no forecast: treated as expired by every reader."""


class Amount(msgspec.Struct, frozen=True, kw_only=True):
    """CPU in millicores and memory in bytes; None is not known, never 0."""

    cpu_millis: int | None = None
    memory_bytes: int | None = None


UNKNOWN: Final = Amount()
"""Left out of the annotation where it is a default: only this very object is."""


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the peak of one resource came about.

    path     the way that made it: `requests`, `short`, `week`, `model`, `fallback`, `stale model` (docs/predictor.md)
    model    name of the model behind it; empty where none had a say
    risk     chance of a higher peak that was asked for, 0 to 1; None where the path states none
    shift    calibration added to the model's answer, as a share of the highest use of seven days; None: none
    widened  why the peak stands higher than the calibration alone has it; empty: it does not
    """

    path: str = ""
    model: str = ""
    risk: float | None = None
    shift: float | None = None
    widened: str = ""


class Zone(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a NUMA zone in what the node may sell. `id` is the kernel's number of the zone."""

    id: int
    capacity: Amount = UNKNOWN
    reclaimable: Amount = UNKNOWN


class Terms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every term of the reclaimable amount, so that each number explains itself (predictor.reclaim has the formula).

    capacity         what the node has; `reserve` of it is never sold
    allocatable      what the node object lets pods use; never more than it less the need is sold
    held             what the node object keeps from pods (capacity - allocatable) and SYSTEM does not use now
    peak, now        LS + SYSTEM: expected within the horizon, and in the newest sample
    newcomers        added for LS pods that are too young to know, `newcomer_pods` of them
    sold, requested  batch requests of the BE pods, plain requests of the LS pods
    cap, floor       most and least that the settings allow here; None: no such bound
    fading           share of the room that a silent node still offers; None: it is not silent
    model, risk      as in `cpu`
    cpu, memory      how the two peaks came about
    pool             name of the pool of settings that the node is in; empty: none
    """

    capacity: Amount
    reserve: Amount
    peak: Amount
    now: Amount
    sold: Amount
    requested: Amount = UNKNOWN
    allocatable: Amount = UNKNOWN
    held: Amount = UNKNOWN
    newcomers: Amount = UNKNOWN
    newcomer_pods: int = 0
    cap: Amount = UNKNOWN
    floor: Amount = UNKNOWN
    fading: float | None = None
    model: str = ""
    risk: float | None = None
    cpu: Origin = Origin()
    memory: Origin = Origin()
    pool: str = ""
    note: str = ""


class Forecast(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node may sell to best-effort pods, since when and for how long.

    `at` is the publishing time and `ttl_seconds` the time it stays fresh, in seconds since the epoch (UTC).
    `reclaimable` is what was computed; the published node status never falls below what is already sold, so a
    node that must sell nothing more says so in `closed`, with the reason in words. `mid` is what the mid tier may
    hold where that is switched on, `horizon_seconds` how far the peak looks ahead.
    """

    at: float
    ttl_seconds: float
    peak: Amount
    reclaimable: Amount
    terms: Terms
    closed: str = ""
    zones: tuple[Zone, ...] = ()
    mid: Amount = UNKNOWN
    horizon_seconds: float | None = None
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

MAX_TTL_SECONDS = 86_400.0
"""A forecast that claims to stay fresh for longer than this is not believed."""

_SHARE_SCALE = 1 << 30


def decode(text: str) -> Forecast:
    """Read the annotation. Raises ForecastError for anything that is no version 1 forecast."""
    try:
        forecast = msgspec.json.decode(text, type=Forecast)
    except msgspec.MsgspecError as error:
        raise ForecastError(f"annotation is no forecast: {error}") from error
    if forecast.version != 1 or not 0 < forecast.ttl_seconds <= MAX_TTL_SECONDS:
        raise ForecastError(f"forecast version {forecast.version} with ttl {forecast.ttl_seconds} is not understood")
    return forecast


def closed_words(reason: str) -> str:
    """Why nothing more is sold, for people; said once, where the reason begins with it (`closed by the agent: ...`)."""
    return reason if reason.startswith("closed") else f"closed: {reason}"


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
