"""What was spent of the victim budgets, over a restart: a small file, written before each attempt.

Entries are reserved first and taken back when the API says no, so that an agent that is killed between the two has
spent too much rather than too little. Monotonic times hold within one boot; after another, an entry is as old as the
wall clock says, and fresh where that clock went back. A file that is torn, foreign or newer is set aside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import msgspec

from agent.eviction import Spent
from agent.policy.victims import HOUR
from slacktide.disk import write_atomically

FILE_NAME: Final = "evictions.json"
FORMAT: Final = 1


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`at` and `wall` are the two clocks at one moment, so that an entry's wall time follows from its own `at`."""

    format: int
    boot_id: str
    at: float
    wall: float
    spent: list[Spent]


class Ledger:
    """Entries of the last hour, one a pod and way. One thread at a time. `problem` says what is wrong with the file.

    Entries of a dry run (`keep=False`) are only remembered, never written.
    """

    def __init__(self, directory: str, boot_id: str, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._boot_id = boot_id
        self._clock = clock
        self._wall = wall
        self._spent: dict[tuple[str, str], Spent] = {}
        self._dry: dict[tuple[str, str], Spent] = {}
        self.problem = ""
        self._load()

    def spent(self, *, dry: bool = False) -> tuple[Spent, ...]:
        """What counts now, oldest first: in earnest, or in a dry run."""
        self._forget()
        kept = {**self._spent, **self._dry} if dry else self._spent
        return tuple(sorted(kept.values(), key=lambda one: (one.at, one.uid)))

    def reserve(self, entry: Spent, *, keep: bool = True) -> bool:
        """Count `entry`; whether the disk has it, where it needs to. The first entry of a pod and way stays."""
        key = (entry.uid, entry.way.value)
        if not keep:
            self._dry[key] = entry
            return True
        if key in self._spent:
            return True
        self._spent[key] = entry
        return self._save()

    def release(self, entry: Spent) -> None:
        """Take a reservation back: nothing was evicted."""
        if self._spent.pop((entry.uid, entry.way.value), None) is not None:
            self._save()

    def _forget(self) -> None:
        now = self._clock()
        for entries in (self._spent, self._dry):
            for key in [key for key, one in entries.items() if now - one.at >= HOUR]:
                del entries[key]

    def _save(self) -> bool:
        self._forget()
        body = _Body(
            format=FORMAT,
            boot_id=self._boot_id,
            at=self._clock(),
            wall=self._wall(),
            spent=list(self._spent.values()),
        )
        try:
            write_atomically(self._path, msgspec.json.encode(body), durable=False)
        except OSError as error:
            self.problem = (
                f"{self._path} cannot be written: {error.strerror or error}; budgets do not survive a restart"
            )
            return False
        self.problem = ""
        return True

    def _load(self) -> None:
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            self.problem = f"{self._path} cannot be read: {error.strerror or error}"
            return
        try:
            body = msgspec.json.decode(data, type=_Body)
        except msgspec.MsgspecError as error:
            self._set_aside(f"is no ledger of this version: {error}")
            return
        if body.format != FORMAT:
            self._set_aside(f"has format {body.format} (known: {FORMAT})")
            return
        self._spent = {(one.uid, one.way.value): self._dated(one, body) for one in body.spent}
        self._forget()

    def _dated(self, entry: Spent, body: _Body) -> Spent:
        """The entry on this boot's monotonic clock; what lies in the future is taken for fresh."""
        now = self._clock()
        age = self._wall() - body.wall + body.at - entry.at
        at = entry.at if body.boot_id == self._boot_id else now - age
        return msgspec.structs.replace(entry, at=min(now, at))

    def _set_aside(self, why: str) -> None:
        aside = f"{self._path}.bad"
        self.problem = f"{self._path} {why}; set aside as {aside}"
        try:
            os.replace(self._path, aside)
        except OSError as error:
            self.problem += f" (could not: {error.strerror or error})"
