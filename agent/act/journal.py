"""What the agent changed and what was there before: the memory that lets a restarted agent adopt or undo.

An entry is (group, inode, knob) with the original and the applied value, and the policy that asked. A new entry is
synced to disk *before* the first change of its knob, once for all entries of a round. A change of an applied value is
written before the change too, and so is an entry of a knob that was released and is cut again with the same original,
but not synced: only a crash of the machine could lose it, and that takes the cgroups with it (entries carry the boot id
and are dropped after another boot). A cut must not wait for a disk.

Masks of threads are kept a cgroup (`agent.threads.GroupMasks`), written before the first change and never synced: they
are threads' and end with the machine.

File: one JSON object {"format", "sum", "body": {"boot_id", "entries", "masks"}}, the sum over the bytes of the body,
replaced as a whole (temporary file, fsync, rename, fsync of the directory). Format 1, of agents that knew quota, weight
and idle only, is still read. A file that is torn, foreign or newer is set aside under another name and the agent starts
without it: `lost` then tells the executor to take originals from what the kubelet's rules say.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from agent.capabilities import Knob, Value
from agent.host.knobs import Original
from agent.threads import GroupKey, GroupMasks
from slacktide.disk import write_atomically
from slacktide.kernel.hierarchy import checked_group

FORMAT: Final = 2
FILE_NAME: Final = "journal.json"
_NAMES_ASIDE: Final = 10
_SYNCED_BEYOND: Final = 4096
"""Originals that were synced once are remembered this far beyond the entries there are."""

_OF_FORMAT_1: Final = "suppress"
"""The policy that asked for every quota in a journal of format 1."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One knob of one cgroup that is ours now, in the kernel's units (`agent.host.knobs`).

    `inode` is of the directory under the knob's own controller. `before` is what the kernel held when `applied` was
    decided: a write that was refused, or an agent that died between journal and write, leaves that value, and it is
    no one else's. `via` is a value on the way from one to the other. `policy` asked for it. `lasting` is what was
    asked that is the pod's own limit and stays in force when nobody watches LS any more.
    """

    group: str
    inode: int
    knob: Knob
    original: Original
    applied: Value
    before: Value | None = None
    via: Value | None = None
    policy: str = ""
    lasting: Value | None = None

    def explains(self, held: Value | None) -> bool:
        """Whether the kernel's value is ours."""
        return held in (self.applied, self.before) or (held is not None and held == self.via)


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    boot_id: str
    entries: list[Entry]
    masks: list[GroupMasks] = []


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    sum: int
    body: msgspec.Raw


class _Head(msgspec.Struct, frozen=True):
    format: int


class _Entry1(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    inode: int
    knob: Knob
    original: Original
    applied: int
    before: int | None = None


class _File1(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    format: int
    boot_id: str
    entries: list[_Entry1]
    sum: str
    masks: list[GroupMasks] = []


Key = tuple[str, Knob]


class Journal:
    """Entries by (group, knob), kept on disk. One thread writes; `entries()` may be read by any (a new tuple each).

    With `read_only` all changes stay in memory, and an unusable file where it is. `behind`: the disk refused the last
    write, so the file lacks something.
    """

    def __init__(self, directory: str, boot_id: str, *, read_only: bool = False) -> None:
        self._read_only = read_only
        self._path = os.path.join(directory, FILE_NAME)
        self._boot_id = boot_id
        self._entries: dict[Key, Entry] = {}
        self._by_group: dict[str, dict[Knob, Entry]] = {}
        self._all: tuple[Entry, ...] = ()
        self._masks: dict[GroupKey, GroupMasks] = {}
        self._synced: dict[Key, tuple[int, Original]] = {}
        self.lost = False
        self.problem = ""
        self.behind = False

    def load(self) -> tuple[Entry, ...]:
        """Entries of this boot. An unusable file is set aside; `problem` then says why and `lost` is true."""
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._unusable(f"cannot be read: {error.strerror}")
            return ()
        try:
            body = _decoded(data)
            for entry in body.entries:
                checked_group(entry.group)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self._unusable(f"is no journal that this version knows: {error}")
            return ()
        if body.boot_id == self._boot_id:
            self._set({(entry.group, entry.knob): entry for entry in body.entries})
            self._masks = {masks.key: masks for masks in body.masks}
        return self._all

    def _unusable(self, why: str) -> None:
        self.lost = True
        self.problem = f"{self._path} {why}"
        if self._read_only:
            return
        problem = ""
        for number in range(_NAMES_ASIDE):
            aside = f"{self._path}.bad" + (f".{number}" if number else "")
            try:
                os.replace(self._path, aside)
            except OSError as error:
                problem = f" (could not be set aside: {error.strerror})"
            else:
                self.problem += f"; set aside as {aside}"
                return
        self.problem += problem

    def entries(self) -> tuple[Entry, ...]:
        """All entries, in no particular order."""
        return self._all

    def get(self, group: str, knob: Knob) -> Entry | None:
        """The entry of one knob."""
        return self._entries.get((group, knob))

    def of(self, group: str) -> Mapping[Knob, Entry]:
        """All entries of one cgroup."""
        return self._by_group.get(group, {})

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
        if fresh:
            self._synced |= {(entry.group, entry.knob): (entry.inode, entry.original) for entry in changes}

    def _is_new(self, entry: Entry) -> bool:
        """Whether this original was never synced: a knob that was released and is cut again needs no second sync."""
        return self._synced.get((entry.group, entry.knob)) != (entry.inode, entry.original)

    def forget(self, keys: Iterable[Key]) -> None:
        """Drop entries whose original is back, or whose cgroup is gone. Raises OSError as `record` does."""
        gone = set(keys) & self._entries.keys()
        if not gone:
            return
        entries = {key: entry for key, entry in self._entries.items() if key not in gone}
        if len(self._synced) > len(entries) + _SYNCED_BEYOND:
            self._synced = {key: known for key, known in self._synced.items() if key in entries}
        self._set(entries)
        self._write(entries, sync=False)

    def catch_up(self) -> None:
        """Write all of it, after the disk refused some. Raises OSError while it still does."""
        self._write(self._entries, sync=True)
        self._synced |= {key: (entry.inode, entry.original) for key, entry in self._entries.items()}

    def _set(self, entries: Mapping[Key, Entry]) -> None:
        self._entries = dict(entries)
        self._all = tuple(self._entries.values())
        self._by_group = {}
        for entry in self._all:
            self._by_group.setdefault(entry.group, {})[entry.knob] = entry

    def _write(self, entries: Mapping[Key, Entry], *, sync: bool) -> None:
        if self._read_only:
            return
        body = _Body(boot_id=self._boot_id, entries=list(entries.values()), masks=list(self._masks.values()))
        raw = msgspec.json.encode(body)
        file = _File(format=FORMAT, sum=zlib.crc32(raw), body=msgspec.Raw(raw))
        self.behind = True
        write_atomically(self._path, msgspec.json.encode(file), durable=sync)
        self.behind = False


def _decoded(data: bytes) -> _Body:
    """What a file holds. Raises MsgspecError or ValueError."""
    version = msgspec.json.decode(data, type=_Head).format
    if version == 1:
        return _decoded_1(data)
    if version != FORMAT:
        raise ValueError(f"its format is {version}, known are 1 and {FORMAT}")
    file = msgspec.json.decode(data, type=_File)
    if zlib.crc32(bytes(file.body)) != file.sum:
        raise ValueError("its checksum is wrong")
    return msgspec.json.decode(file.body, type=_Body)


def _decoded_1(data: bytes) -> _Body:
    # Only here: OpenSSL, which this loads, would double the memory of the watchdog.
    import hashlib

    old = msgspec.json.decode(data, type=_File1)
    parts = [old.boot_id, old.entries, old.masks] if old.masks else [old.boot_id, old.entries]
    if old.sum != hashlib.sha256(msgspec.json.encode(parts)).hexdigest():
        raise ValueError("its checksum is wrong")
    entries = [
        Entry(
            group=entry.group,
            inode=entry.inode,
            knob=entry.knob,
            original=entry.original,
            applied=entry.applied,
            before=entry.before,
            policy=_OF_FORMAT_1 if entry.knob is Knob.QUOTA else "",
        )
        for entry in old.entries
    ]
    return _Body(boot_id=old.boot_id, entries=entries, masks=old.masks)
