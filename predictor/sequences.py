"""Which samples of one boot of one node are durable already. Pure.

An agent numbers its samples 1, 2, 3, ... within a boot and sends them in order, but a stream that broke and one that
replaces it may overlap, and a full spool leaves holes. So the highest number is kept together with the holes below it.
"""

from __future__ import annotations

import dataclasses
from typing import Final

REPEAT_MILLIS: Final = 2_000
"""A repeat may end later than before by so much: the correction of the node's clock may have moved by one step."""

MAX_HOLES: Final = 64
"""So many holes are remembered; the oldest is given up first, and what it lacked counts as seen."""


@dataclasses.dataclass(slots=True)
class Seen:
    """Sequences of one boot that are stored; `holes` are inclusive ranges below `high` that are not, ascending."""

    high: int = 0
    newest_millis: int = 0
    holes: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def copy(self) -> Seen:
        """A copy to try changes on."""
        return Seen(self.high, self.newest_millis, list(self.holes))

    def offer(self, sequence: int, end_millis: int) -> bool:
        """Note `sequence` and say whether it is new.

        A number that was seen before but whose window ends well after all before is no duplicate: the agent lost
        its state directory and counts from the start. Its numbering replaces the old one.
        """
        if sequence > self.high:
            self._extend(sequence)
        elif not self._fill(sequence):
            if end_millis <= self.newest_millis + REPEAT_MILLIS:
                return False
            self.high, self.holes = 0, []
            self._extend(sequence)
        self.newest_millis = max(self.newest_millis, end_millis)
        return True

    def _extend(self, sequence: int) -> None:
        if sequence > self.high + 1:
            self.holes.append((self.high + 1, sequence - 1))
            del self.holes[:-MAX_HOLES]
        self.high = sequence

    def _fill(self, sequence: int) -> bool:
        for index, (first, last) in enumerate(self.holes):
            if first <= sequence <= last:
                parts = [(first, sequence - 1), (sequence + 1, last)]
                self.holes[index : index + 1] = [part for part in parts if part[0] <= part[1]]
                return True
        return False


def holes_to_text(holes: list[tuple[int, int]]) -> str:
    """Holes as `1-4,9-9` for the history."""
    return ",".join(f"{first}-{last}" for first, last in holes)


def holes_from_text(text: str) -> list[tuple[int, int]]:
    """Read what `holes_to_text` wrote."""
    pairs = (part.split("-") for part in text.split(",") if part)
    return [(int(first), int(last)) for first, last in pairs]
