"""What became of asks to take memory back (memory.reclaim), as plain values for policies and status."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Result(enum.StrEnum):
    """How an ask ended."""

    DONE = "done"
    SHORT = "short"
    """The kernel found less than was asked for (EAGAIN)."""
    GONE = "gone"
    """The cgroup went away."""
    REFUSED = "refused"
    """The kernel said no for another reason."""
    DROPPED = "dropped"
    """Newer asks came before it was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """The last ask on one group. `asked_at` is when the policy decided, `done_at` when it ended, monotonic seconds.

    `done_bytes` are those of the writes that the kernel took as met.
    """

    asked_at: float
    done_at: float
    asked_bytes: int
    done_bytes: int
    result: Result
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimView:
    """What the reclaimer has done, by group, and since when it has been in the kernel (None: it is not)."""

    last: Mapping[str, Reclaimed] = field(default_factory=dict)
    busy_since: float | None = None
    asks: int = 0
    done_bytes: int = 0
    short: int = 0
    failed: int = 0
