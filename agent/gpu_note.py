"""What of the GPUs goes into the node annotation, and when it is worth a write. Pure.

A fleet of nodes shares one API server, so a number that hardly moved waits until the note is half as old as it may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agent.gpu import Gpu
from slacktide.gpus import Card, Gpus

TTL_PERIODS: Final = 10
"""A note is good for this many periods of looking."""

_USE_POINTS: Final = 10.0
_CELSIUS: Final = 5.0
_MEMORY_SHARE: Final = 0.1


def note_of(gpus: Sequence[Gpu], at: float, period_seconds: float) -> Gpus:
    """The note at `at`, seconds since the epoch. What a card does not tell stays None."""
    return Gpus(at=at, ttl_seconds=period_seconds * TTL_PERIODS, cards=tuple(_card(gpu) for gpu in gpus))


def worth_writing(old: Gpus | None, new: Gpus) -> bool:
    """Whether `new` says something that whoever reads `old` should know."""
    if old is None or len(old.cards) != len(new.cards) or new.at < old.at:
        return True
    if new.at - old.at >= old.ttl_seconds / 2:
        return True
    return any(_differs(before, now) for before, now in zip(old.cards, new.cards, strict=True))


def _card(gpu: Gpu) -> Card:
    use = gpu.utilisation_percent
    return Card(
        index=gpu.index,
        model=gpu.name[:256],
        utilisation_percent=None if use is None else min(100.0, max(0.0, use)),
        memory_used_bytes=gpu.memory_used_bytes,
        memory_total_bytes=gpu.memory_total_bytes,
        free_block_bytes=gpu.free_block_bytes,
        temperature_celsius=gpu.temperature_celsius,
        errors=gpu.errors,
    )


def _differs(old: Card, new: Card) -> bool:
    if (old.index, old.model, old.errors) != (new.index, new.model, new.errors):
        return True
    slack = _MEMORY_SHARE * (new.memory_total_bytes or 0)
    return (
        _moved(old.utilisation_percent, new.utilisation_percent, _USE_POINTS)
        or _moved(old.temperature_celsius, new.temperature_celsius, _CELSIUS)
        or _moved(old.memory_used_bytes, new.memory_used_bytes, slack)
        or _moved(old.free_block_bytes, new.free_block_bytes, slack)
    )


def _moved(old: float | None, new: float | None, least: float) -> bool:
    if old is None or new is None:
        return old is not new
    return old != new and abs(new - old) >= least
