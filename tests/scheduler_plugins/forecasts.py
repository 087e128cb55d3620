"""Makers of forecasts that say more than what a node may sell."""

from __future__ import annotations

from typing import Any

import msgspec

from slacktide.forecast import Amount, Terms, decode, encode
from tests.scheduler_plugins import build
from tests.scheduler_plugins.build import GI


def terms(
    now: tuple[int | None, int | None] = (None, None),
    peak: tuple[int | None, int | None] = (None, None),
    capacity: tuple[int, int] = (8000, 32 * GI),
    **more: Any,
) -> Terms:
    """What LS and SYSTEM use now and at the peak, as (millicores, bytes)."""
    amounts = {
        name: Amount(cpu_millis=cpu, memory_bytes=memory)
        for name, (cpu, memory) in (("now", now), ("peak", peak), ("capacity", capacity))
    }
    return Terms(reserve=Amount(), sold=Amount(), **amounts, **more)


def forecast(*args: Any, of: Terms | None = None, horizon: float | None = None, **kwargs: Any) -> str:
    """Text of the forecast annotation as `build.forecast` makes it, with terms and horizon."""
    plain = decode(build.forecast(*args, **kwargs))
    return encode(msgspec.structs.replace(plain, terms=of or plain.terms, horizon_seconds=horizon))
