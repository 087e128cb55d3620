"""Groups in which all was as wanted at the last full look, so that a glance at the values is enough.

Most rounds change nothing. A full look at a group reads what its writes would need as well, judges each knob anew and
costs several times as much; it is done when anything that is wanted changed, when a value is not the expected one, and
now and then in any case, as a glance does not see everything (such as the period of a quota).
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from agent.act.knobs import Place
from agent.capabilities import Knob, Value
from agent.host.cgroup import open_group
from agent.host.knobs import ADAPTERS
from agent.policy.base import Request
from slacktide.errors import KernelError
from slacktide.kernel.hierarchy import Version

_ROUNDS: Final = 16
"""Rounds between full looks; groups are spread over twice as many."""

Signature = tuple[object, ...]


@dataclass(slots=True)
class _Known:
    signature: Signature
    places: tuple[tuple[Place, Version, tuple[tuple[Knob, Value | None], ...]], ...]
    rounds: int


class Calm:
    """By path of the group. Not thread-safe: the executor owns it."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def glance(self, group: str, signature: Signature) -> bool:
        """Whether all is as it was when the same was wanted; else a full look is due."""
        known = self._known.get(group)
        if known is None:
            return False
        known.rounds -= 1
        if known.rounds > 0 and known.signature == signature and _unchanged(known):
            return True
        del self._known[group]
        return False

    def remember(
        self,
        group: str,
        signature: Signature,
        first: Place,
        version: Version,
        values: Iterable[tuple[Place, Version, Knob, Value | None]],
    ) -> None:
        """All of `values` are as wanted. `first` is the group as it was listed, whatever it has there."""
        by_place: dict[Place, tuple[Version, list[tuple[Knob, Value | None]]]] = {first: (version, [])}
        for place, own_version, knob, value in values:
            by_place.setdefault(place, (own_version, []))[1].append((knob, value))
        places = tuple((place, own, tuple(knobs)) for place, (own, knobs) in by_place.items())
        self._known[group] = _Known(signature, places, _ROUNDS + hash(group) % _ROUNDS)

    def keep(self, groups: Container[str]) -> None:
        """Forget all groups but these."""
        self._known = {group: known for group, known in self._known.items() if group in groups}


def signature_of(inode: int, *requests: Mapping[Knob, Request]) -> Signature:
    """What is wanted of a group, as far as it makes a difference here."""
    return (
        inode,
        *[tuple([(knob, one.value, one.policy) for knob, one in wanted.items()]) for wanted in requests],
    )


def _unchanged(known: _Known) -> bool:
    try:
        for place, version, knobs in known.places:
            descriptor = open_group(place.directory, place.inode)
            try:
                for knob, value in knobs:
                    if ADAPTERS[knob].glance(descriptor, version) != value:
                        return False
            finally:
                os.close(descriptor)
    except KernelError:
        # The full look says what it is.
        return False
    return True
