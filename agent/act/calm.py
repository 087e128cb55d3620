"""Groups in which all was as wanted at the last full look, so that a glance is enough.

The first glance reads the values anew and keeps the text of their files; the others compare that text, through
descriptors that are held as long as the budget allows it.

Most rounds change nothing. A full look at a group reads what its writes would need as well, judges each knob anew and
costs several times as much; it is done when anything that is wanted changed, when a value is not the expected one, and
now and then in any case, as a glance does not see everything (such as the period of a quota).
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

from agent.act.knobs import Place
from agent.act.looks import Look
from agent.capabilities import Knob, Value
from agent.host.cgroup import open_group
from agent.host.fds import FdBudget, GroupFiles
from agent.host.knobs import ADAPTERS
from agent.policy.base import Request
from slacktide.errors import KernelError
from slacktide.kernel.hierarchy import Version

_ROUNDS: Final = 16
"""Rounds between full looks; groups are spread over twice as many, alike in each run."""

Signature = tuple[object, ...]


class Expected(NamedTuple):
    """A knob, its value, and the one file that tells it (empty: there is no such file)."""

    knob: Knob
    value: Value | None
    file: str


@dataclass(slots=True)
class _Place:
    """One group under one controller. `texts` are what files said when all of `knobs` were as wanted."""

    place: Place
    version: Version
    knobs: tuple[Expected, ...]
    files: GroupFiles
    texts: Mapping[str, bytes] | None = None


@dataclass(slots=True)
class _Known:
    signature: Signature
    places: tuple[_Place, ...]
    rounds: int

    def release(self) -> None:
        """Close what is held."""
        for place in self.places:
            place.files.release()


class Calm:
    """By path of the group. `budget` bounds the descriptors that are held. Not thread-safe: the executor owns it."""

    def __init__(self, budget: FdBudget | None = None) -> None:
        self._budget = budget or FdBudget()
        self._known: dict[str, _Known] = {}

    def glance(self, group: str, signature: Signature) -> bool:
        """Whether all is as it was when the same was wanted; else a full look is due."""
        known = self._known.get(group)
        if known is None:
            return False
        known.rounds -= 1
        if known.rounds > 0 and known.signature == signature and _unchanged(known):
            return True
        self._known.pop(group).release()
        return False

    def remember(
        self,
        group: str,
        signature: Signature,
        first: Place,
        version: Version,
        looks: Iterable[Look],
    ) -> None:
        """All that `looks` saw is as wanted. `first` is the group as it was listed, whatever it has there."""
        by_place: dict[Place, tuple[Version, list[Expected]]] = {first: (version, [])}
        for look in looks:
            file = ADAPTERS[look.knob].file(look.held, look.version)
            expected = Expected(look.knob, look.held.value, file)
            by_place.setdefault(look.place, (look.version, []))[1].append(expected)
        places = tuple(
            _Place(place, own, tuple(knobs), GroupFiles(place.directory, place.inode, self._budget))
            for place, (own, knobs) in by_place.items()
        )
        self._known[group] = _Known(signature, places, _ROUNDS + crc32(group.encode()) % _ROUNDS)

    def keep(self, groups: Container[str]) -> None:
        """Forget all groups but these."""
        for group in [group for group in self._known if group not in groups]:
            self._known.pop(group).release()


def signature_of(inode: int, *requests: Mapping[Knob, Request]) -> Signature:
    """What is wanted of a group, as far as it makes a difference here."""
    return (
        inode,
        *[tuple([(knob, one.value, one.policy) for knob, one in wanted.items()]) for wanted in requests],
    )


def _unchanged(known: _Known) -> bool:
    try:
        return all(_same_values(place) if place.texts is None else _same_text(place) for place in known.places)
    except KernelError:
        # The full look says what it is.
        return False


def _same_text(place: _Place) -> bool:
    """Files of a cgroup that is gone cannot be read, also where another was made in its place."""
    assert place.texts is not None
    if not place.texts:
        return place.files.lives()
    return all(place.files.hot(name) == text for name, text in place.texts.items())


def _same_values(place: _Place) -> bool:
    """Whether all values are as expected, as they are read now; from then on their text is."""
    names = [expected.file for expected in place.knobs]
    # Read before the values are: a text that changes in between then differs at the next glance.
    texts = {name: place.files.hot(name) for name in names} if all(names) else None
    descriptor = open_group(place.place.directory, place.place.inode)
    try:
        if any(ADAPTERS[one.knob].read(descriptor, place.version).value != one.value for one in place.knobs):
            return False
    finally:
        os.close(descriptor)
    place.texts = texts
    return True
