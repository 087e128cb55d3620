"""Groups, and the ids that the hardware has for them."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.emulators.resctrl.errors import ResctrlError

SHAREABLE, EXCLUSIVE, LOCKSETUP, LOCKED = "shareable", "exclusive", "pseudo-locksetup", "pseudo-locked"
LIMBO_SECONDS = 1.0


@dataclass(eq=False)
class Group:
    """A CTRL_MON group (parent None) or a MON group."""

    name: str
    """Empty for the root."""
    serial: int
    closid: int
    rmid: int
    parent: Group | None = None
    mode: str = SHAREABLE
    cpus: int = 0
    children: dict[str, Group] = field(default_factory=dict)
    """MON groups."""
    live: bool = True
    mbps_event: str = "mbm_local_bytes"
    locked: tuple[str, int, int] | None = None
    """Schema, domain and mask of a pseudo-locked region."""

    @property
    def control(self) -> bool:
        """Whether it is a CTRL_MON group."""
        return self.parent is None

    def members(self) -> Iterator[Group]:
        """Itself and its MON groups."""
        yield self
        yield from self.children.values()


class Closids:
    """Classes of service: the lowest free one is given first; 0 is the root's."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._taken = {0}

    def take(self) -> int:
        """A free id. Raises ResctrlError ENOSPC."""
        for closid in range(self.number):
            if closid not in self._taken:
                self._taken.add(closid)
                return closid
        raise ResctrlError(errno.ENOSPC)

    def take_fixed(self, closid: int) -> bool:
        """Take one id; False when it is in use."""
        if closid in self._taken:
            return False
        self._taken.add(closid)
        return True

    def free(self, closid: int) -> None:
        """Give an id back."""
        self._taken.discard(closid)

    def taken(self) -> list[int]:
        """Ids in use."""
        return sorted(self._taken)


class Rmids:
    """Monitoring ids. A freed one waits in limbo until its cache lines are gone, where occupancy is counted.

    The longest unused is given first. `dirty` says whether an id still has more than the threshold anywhere.
    """

    def __init__(self, number: int, limbo: bool, dirty: Callable[[int], bool]) -> None:
        self._free = deque(range(1, number))
        self._limbo: list[int] = []
        self._has_limbo = limbo
        self._dirty = dirty
        self._next_check = 0.0

    def take(self, now: float) -> int:
        """A free id. Raises ResctrlError EBUSY when all that are left wait in limbo, ENOSPC when none is left."""
        self.check(now)
        if self._free:
            return self._free.popleft()
        raise ResctrlError(errno.EBUSY if self._limbo else errno.ENOSPC)

    def free(self, rmid: int, now: float) -> None:
        """Give an id back."""
        self.check(now)
        if not self._has_limbo:
            self._free.append(rmid)
            return
        if not self._limbo:
            self._next_check = now + LIMBO_SECONDS
        self._limbo.append(rmid)

    def check(self, now: float) -> None:
        """Let clean ids out of limbo, once a second."""
        if not self._limbo or now < self._next_check:
            return
        self._next_check = now + LIMBO_SECONDS
        clean = [rmid for rmid in self._limbo if not self._dirty(rmid)]
        self._limbo = [rmid for rmid in self._limbo if rmid not in clean]
        self._free.extend(clean)

    @property
    def free_ids(self) -> tuple[int, ...]:
        """Ids that can be taken, in the order in which they are."""
        return tuple(self._free)

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ids in limbo."""
        return tuple(self._limbo)


class LastCommand:
    """info/last_cmd_status: 512 bytes that all writers share.

    Old kernels began lines with a small letter and without an article: `old_words`.
    """

    SIZE = 512

    def __init__(self, old_words: bool = False) -> None:
        self._text = ""
        self._old_words = old_words

    def clear(self) -> None:
        """A new command begins."""
        self._text = ""

    def say(self, line: str) -> None:
        """Add a line; what does not fit is cut."""
        if self._old_words:
            line = line.removeprefix("The ")
            line = line[:1].lower() + line[1:]
        self._text = f"{self._text}{line}\n"[: self.SIZE - 1]

    def fail(self, code: int, line: str) -> ResctrlError:
        """Add a line and make the error to raise."""
        self.say(line)
        return ResctrlError(code)

    @property
    def text(self) -> str:
        """What a reader sees."""
        return self._text or "ok\n"
