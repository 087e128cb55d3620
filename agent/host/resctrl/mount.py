"""Finds the resctrl mount and what it offers. Mounted or not is looked up anew each time, since it may change.

A mount can lack anything: CAT, bandwidth control or monitoring. A part whose description cannot be read is not
offered, with a note; the rest is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.host.resctrl import parse
from agent.resctrl import BandwidthControl, BandwidthUnit, CacheControl, RdtInfo
from slacktide.errors import Gone, KernelError, Refused
from slacktide.kernel.files import read_text, translate
from slacktide.kernel.hierarchy import unescape

_CACHES: Final = ("L3", "L3CODE", "L3DATA", "L2", "L2CODE", "L2DATA")
_UNLIMITED_MEBIBYTES: Final = (1 << 32) - 1
_UNLIMITED_EIGHTHS: Final = 2048
_MOST_PERCENT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class RdtPlaces:
    """Where to look. `mounts` is a mount table; `path` takes only the mount at this place; `kinds` are its types."""

    mounts: str = "/proc/self/mounts"
    path: str | None = None
    kinds: frozenset[str] = frozenset({"resctrl"})


@dataclass(frozen=True, slots=True)
class RdtMount:
    """A mount of resctrl with its options (cdp, cdpl2, mba_MBps, debug, ro ...)."""

    path: str
    options: frozenset[str]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a mount offers, and sentences on what it lacks or shows wrong."""

    info: RdtInfo
    notes: tuple[str, ...] = ()


def find_mount(places: RdtPlaces) -> RdtMount | None:
    """The mount of resctrl, None when there is none. Raises KernelError when the mount table cannot be read."""
    for line in read_text(places.mounts).splitlines():
        fields = line.split(" ")
        if len(fields) < 4 or fields[2] not in places.kinds:
            continue
        path = unescape(fields[1])
        if places.path is None or os.path.normpath(places.path) == os.path.normpath(path):
            return RdtMount(path, frozenset(fields[3].split(",")))
    return None


def read_offer(mount: RdtMount) -> Offer:
    """What can be controlled and measured now. Raises Gone when the mount has no info (any more), or KernelError."""
    _must_be_there(os.path.join(mount.path, "info"))
    held = _root_schemata(mount.path)
    notes: list[str] = []
    caches = [
        cache for name in _CACHES if name in held and (cache := _cache(mount.path, name, held[name], notes)) is not None
    ]
    bandwidth = _bandwidth(mount, held["MB"], notes) if "MB" in held else None
    monitors, rmids = _monitoring(mount.path, notes)
    return Offer(RdtInfo(caches=tuple(caches), bandwidth=bandwidth, monitors=monitors, rmids=rmids), tuple(notes))


def _must_be_there(directory: str) -> None:
    try:
        os.stat(directory)
    except OSError as error:
        raise translate(directory, error) from error


def _root_schemata(root: str) -> Mapping[str, Mapping[int, int]]:
    """Values of the default class, whose domains are those that are online; empty with monitoring only."""
    path = os.path.join(root, "schemata")
    try:
        return parse.schemata(read_text(path), path)
    except Gone:
        return {}


def _cache(root: str, name: str, held: Mapping[int, int], notes: list[str]) -> CacheControl | None:
    directory = os.path.join(root, "info", name)
    try:
        full, min_bits = _mask(directory, "cbm_mask"), _number(directory, "min_cbm_bits")
        if not max(1, min_bits) <= full.bit_count() == full.bit_length():
            raise Refused(directory, None, f"cbm_mask {full:x} with min_cbm_bits {min_bits} leaves no mask")
        return CacheControl(
            name=name,
            full_mask=full,
            min_bits=min_bits,
            sparse=_number(directory, "sparse_masks", missing=0) == 1,
            shareable=_mask(directory, "shareable_bits", missing=0) & full,
            closids=_number(directory, "num_closids"),
            domains=frozenset(held),
            exclusive=_exclusive(directory),
        )
    except KernelError as error:
        notes.append(f"{name} is left alone: {error}")
        return None


def _bandwidth(mount: RdtMount, held: Mapping[int, int], notes: list[str]) -> BandwidthControl | None:
    directory = os.path.join(mount.path, "info", "MB")
    try:
        minimum, step = _number(directory, "min_bandwidth"), _number(directory, "bandwidth_gran")
        linear = _number(directory, "delay_linear", missing=1) == 1
        closids = _number(directory, "num_closids")
        mode = _text(directory, "thread_throttle_mode")
    except KernelError as error:
        notes.append(f"MB is left alone: {error}")
        return None
    unit = _unit(mount, held, linear=linear, step=step)
    if unit is BandwidthUnit.PERCENT and not linear:
        notes.append("MB is left alone: its scale is not linear, and the kernel refuses every value of it")
        return None
    maximum = _maximum(unit, held)
    if minimum > maximum or not 1 <= step <= maximum:
        notes.append(f"MB is left alone: min_bandwidth {minimum} and bandwidth_gran {step} do not fit below {maximum}")
        return None
    return BandwidthControl(
        unit=unit,
        minimum=minimum if unit is not BandwidthUnit.MEBIBYTES else 1,
        maximum=maximum,
        granularity=step if unit is BandwidthUnit.PERCENT else 1,
        closids=closids,
        per_thread=mode == "per-thread" or unit is BandwidthUnit.EIGHTH_GIGABYTES,
        domains=frozenset(held),
    )


def _unit(mount: RdtMount, held: Mapping[int, int], *, linear: bool, step: int) -> BandwidthUnit:
    """MBps mode shows only in the mount's options; AMD's absolute units by values above 100, or by their fine scale."""
    if "mba_MBps" in mount.options:
        return BandwidthUnit.MEBIBYTES
    if max(held.values(), default=0) > _MOST_PERCENT or (not linear and step == 1):
        return BandwidthUnit.EIGHTH_GIGABYTES
    return BandwidthUnit.PERCENT


def _maximum(unit: BandwidthUnit, held: Mapping[int, int]) -> int:
    """What is held without a limit. AMD's is the hardware's width, of which the default class shows more than 2048."""
    if unit is BandwidthUnit.MEBIBYTES:
        return _UNLIMITED_MEBIBYTES
    if unit is BandwidthUnit.PERCENT:
        return _MOST_PERCENT
    return max(_UNLIMITED_EIGHTHS, *held.values())


def _monitoring(root: str, notes: list[str]) -> tuple[frozenset[str], int | None]:
    directory = os.path.join(root, "info", "L3_MON")
    features = _text(directory, "mon_features")
    if features is None:
        return frozenset(), None
    try:
        rmids = _number(directory, "num_rmids")
    except KernelError as error:
        notes.append(f"the number of monitoring ids is not known: {error}")
        rmids = None
    return frozenset(features.split()), rmids


def _exclusive(directory: str) -> dict[int, int]:
    text = _text(directory, "bit_usage")
    return {} if text is None else parse.exclusive_bits(text, os.path.join(directory, "bit_usage"))


def _text(directory: str, name: str) -> str | None:
    """Content without its newline; None when this kernel has no such file."""
    try:
        return read_text(os.path.join(directory, name)).strip()
    except Gone:
        return None


def _number(directory: str, name: str, missing: int | None = None) -> int:
    path = os.path.join(directory, name)
    try:
        return parse.number(read_text(path), path)
    except Gone:
        if missing is None:
            raise
        return missing


def _mask(directory: str, name: str, missing: int | None = None) -> int:
    path = os.path.join(directory, name)
    try:
        return parse.mask(read_text(path), path)
    except Gone:
        if missing is None:
            raise
        return missing
