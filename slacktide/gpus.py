"""GPUs of a node as published in annotation `slacktide.io/gpus`: the agent writes it, scheduler plugins read it.

What a card does not tell is None, never 0. The annotation ages like a forecast, by the reader's clock.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from slacktide.errors import SlacktideError

VERSION: Final = 1
MAX_CARDS: Final = 256
MAX_TTL_SECONDS: Final = 86_400.0

_Bytes = Annotated[int, Meta(ge=0, le=1 << 60)]


class GpusError(SlacktideError):
    """An annotation that is none of ours: treated as absent by every reader, with the reason said."""


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU. `free_block_bytes` is the largest block that can be had at once, `errors` uncorrected memory errors."""

    index: Annotated[int, Meta(ge=0, le=1 << 16)]
    model: Annotated[str, Meta(max_length=256)] = ""
    utilisation_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    memory_used_bytes: _Bytes | None = None
    memory_total_bytes: _Bytes | None = None
    free_block_bytes: _Bytes | None = None
    temperature_celsius: Annotated[float, Meta(ge=-100, le=1000)] | None = None
    errors: Annotated[int, Meta(ge=0, le=1 << 60)] | None = None


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """All cards that could be read at `at` (seconds since the epoch), good for `ttl_seconds`."""

    at: float
    ttl_seconds: Annotated[float, Meta(gt=0, le=MAX_TTL_SECONDS)]
    cards: Annotated[tuple[Card, ...], Meta(max_length=MAX_CARDS)]
    version: int = VERSION


class _Versioned(msgspec.Struct, frozen=True):
    version: int = VERSION


def decode(text: str) -> Gpus:
    """Read the annotation. Raises GpusError for anything that is not this version of it, with plausible numbers."""
    try:
        # A newer version may look different throughout: say that, not what looks different.
        version = msgspec.json.decode(text, type=_Versioned).version
        if version != VERSION:
            raise GpusError(f"version {version} is not understood, only {VERSION}")
        return msgspec.json.decode(text, type=Gpus)
    except msgspec.MsgspecError as error:
        raise GpusError(f"annotation has no GPUs: {error}") from error


def encode(gpus: Gpus) -> str:
    """Text for the annotation."""
    return msgspec.json.encode(gpus).decode()
