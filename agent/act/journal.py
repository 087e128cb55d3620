"""What the agent changed and what was there before: the memory that lets a restarted agent adopt or undo.

An entry is (group, inode, knob) with the original and the applied value. A new entry is synced to disk *before* the
first change of its knob. A change of an applied value is written before the change too, but not synced: only a
crash of the machine could lose it, and that takes the cgroups with it (entries carry the boot id and are dropped
after another boot).

Masks of threads are kept a cgroup (`agent.threads.GroupMasks`), written before the first change and never synced: they
are threads' and end with the machine.

File: one JSON object {"format", "boot_id", "entries", "masks", "sum"}, replaced as a whole (temporary file, fsync,
rename, fsync of the directory). A file that is torn, foreign or newer is set aside under another name and the agent
starts without it: `lost` then tells the executor to take originals from what the kubelet's rules say.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.capabilities import Knob
from agent.threads import GroupKey, GroupMasks
from slacktide.disk import write_atomically

FORMAT: Final = 1
FILE_NAME: Final = "journal.json"


class Original(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a knob held before. `value` None is "no limit" for a quota; `weight` is what an idle group had."""

    value: int | None = None
    burst_us: int | None = None
    weight: int | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One knob of one cgroup that is ours now. Units: quota in microseconds a period, idle 0 or 1, weight as is.

    `before` is what the kernel held when `applied` was decided: a write that was refused, or an agent that died
    between journal and write, leaves that value, and it is no one else's.
    """

    group: str
    inode: int
    knob: Knob
    original: Original
    applied: int
    before: int | None = None

    def explains(self, held: int | None) -> bool:
        """Whether the kernel's value is ours."""
        return held in (self.applied, self.before)


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    format: int
    boot_id: str
    entries: list[Entry]
    sum: str
    masks: list[GroupMasks] = []


Key = tuple[str, Knob]


class Journal:
    """Entries by (group, knob), kept on disk. One thread writes; `entries()` may be read by any (a new tuple each)."""

    def __init__(self, directory: str, boot_id: str) -> None:
        self._path = os.path.join(directory, FILE_NAME)
        self._boot_id = boot_id
        self._entries: dict[Key, Entry] = {}
        self._all: tuple[Entry, ...] = ()
        self._masks: dict[GroupKey, GroupMasks] = {}
        self.lost = False
        self.problem = ""

    def load(self) -> tuple[Entry, ...]:
        """Entries of this boot. An unusable file is set aside; `problem` then says why and `lost` is true."""
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._set_aside(f"cannot be read: {error}")
            return ()
        try:
            body = msgspec.json.decode(data, type=_Body)
        except msgspec.MsgspecError as error:
            self._set_aside(f"is no journal of this version: {error}")
            return ()
        if body.format != FORMAT or body.sum != _checksum(body.boot_id, body.entries, body.masks):
            self._set_aside(f"has format {body.format} (known: {FORMAT}) or a wrong checksum")
            return ()
        if body.boot_id == self._boot_id:
            self._set({(entry.group, entry.knob): entry for entry in body.entries})
            self._masks = {masks.key: masks for masks in body.masks}
        return self._all

    def _set_aside(self, why: str) -> None:
        self.lost = True
        aside = f"{self._path}.bad"
        self.problem = f"{self._path} {why}; set aside as {aside}"
        try:
            os.replace(self._path, aside)
        except OSError as error:
            self.problem += f" (could not: {error})"

    def entries(self) -> tuple[Entry, ...]:
        """All entries, in no particular order."""
        return self._all

    def get(self, group: str, knob: Knob) -> Entry | None:
        """The entry of one knob."""
        return self._entries.get((group, knob))

    def masks(self) -> tuple[GroupMasks, ...]:
        """Masks of threads, one entry a cgroup."""
        return tuple(self._masks.values())

    def record_masks(self, groups: Iterable[GroupMasks]) -> None:
        """Write what the threads of these cgroups had, before any is changed. Raises OSError as `record` does."""
        masks = {**self._masks, **{group.key: group for group in groups}}
        self._replace_masks(masks)

    def forget_masks(self, keys: Iterable[GroupKey]) -> None:
        """Drop cgroups that are gone, or whose threads have their masks back. Raises OSError as `record` does."""
        gone = set(keys)
        self._replace_masks({key: masks for key, masks in self._masks.items() if key not in gone})

    def _replace_masks(self, masks: dict[GroupKey, GroupMasks]) -> None:
        if masks != self._masks:
            self._masks = masks
            self._write(self._entries, sync=False)

    def record(self, changes: Iterable[Entry]) -> None:
        """Write entries before the changes they stand for; returns when they are safe.

        Raises OSError when the disk refuses. The entries are then kept in memory, so that a stop still undoes them.
        """
        changes = [entry for entry in changes if self._entries.get((entry.group, entry.knob)) != entry]
        if not changes:
            return
        fresh = any(self._is_new(entry) for entry in changes)
        entries = {**self._entries, **{(entry.group, entry.knob): entry for entry in changes}}
        self._set(entries)
        self._write(entries, sync=fresh)

    def _is_new(self, entry: Entry) -> bool:
        old = self._entries.get((entry.group, entry.knob))
        return old is None or old.inode != entry.inode or old.original != entry.original

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop entries whose original is back, or whose cgroup is gone. Raises OSError as `record` does."""
        gone = set(keys) & self._entries.keys()
        if not gone:
            return
        entries = {key: entry for key, entry in self._entries.items() if key not in gone}
        self._set(entries)
        self._write(entries, sync=False)

    def _set(self, entries: Mapping[Key, Entry]) -> None:
        self._entries = dict(entries)
        self._all = tuple(self._entries.values())

    def _write(self, entries: Mapping[Key, Entry], *, sync: bool) -> None:
        items, masks = list(entries.values()), list(self._masks.values())
        total = _checksum(self._boot_id, items, masks)
        body = _Body(format=FORMAT, boot_id=self._boot_id, entries=items, masks=masks, sum=total)
        write_atomically(self._path, msgspec.json.encode(body), durable=sync)


def _checksum(boot_id: str, entries: list[Entry], masks: list[GroupMasks]) -> str:
    """Without masks it is that of a file from before there were any."""
    parts = [boot_id, entries, masks] if masks else [boot_id, entries]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
