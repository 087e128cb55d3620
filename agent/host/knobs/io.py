"""Weight and limits of block I/O: controller io on v2, blkio on v1. Source: cgroup-v2.rst, blkio-controller.rst.

Requests for a weight are v2's 1 to 10000 with 100 as usual. Where the scheduler in charge knows another range, a weight
keeps its ratio to what is usual there: BFQ 1 to 1000 around 100, CFQ 10 to 1000 around 500.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from agent.capabilities import Knob, Value
from agent.host import cpu
from agent.host.knobs.base import Adapter, Change, Held, Original, Phase, whole_number
from agent.host.parse import is_count
from slacktide.errors import Refused
from slacktide.kernel.hierarchy import Version


class _Scale(NamedTuple):
    low: int
    usual: int
    high: int


_SCALES: Final = {
    "io.weight": _Scale(1, 100, 10_000),
    "io.bfq.weight": _Scale(1, 100, 1_000),
    "blkio.weight": _Scale(10, 500, 1_000),
    "blkio.bfq.weight": _Scale(1, 100, 1_000),
}
_FILES: Final = {Version.V1: ("blkio.weight", "blkio.bfq.weight"), Version.V2: ("io.weight", "io.bfq.weight")}
_USUAL: Final = 100
_DIRECTIONS: Final = {"rbps": "blkio.throttle.read_bps_device", "wbps": "blkio.throttle.write_bps_device"}
_LINE: Final = re.compile(r"[0-9]{1,6}:[0-9]{1,7}(?: (?:rbps|wbps)=[1-9][0-9]{0,18})+")
_DEVICE: Final = re.compile(r"[0-9]+:[0-9]+")

_Rates = dict[str, dict[str, int]]
"""Bytes a second by direction, by device."""


class IoWeight(Adapter):
    """Held values are of the file's own range."""

    knob = Knob.IO_WEIGHT

    def read(self, fd: int, version: Version) -> Held:
        """The default weight, from the first file that this kernel has."""
        for name in _FILES[version]:
            text = cpu.optional_text(fd, name)
            if text is not None:
                return Held(value=_default_weight(name, text), name=name)
        return Held(absent=f"no I/O scheduler here takes weights (none of {', '.join(_FILES[version])})")

    def file(self, held: Held, version: Version) -> str:
        """The one that this kernel has."""
        del version
        return held.name

    def problem(self, wanted: Value) -> str | None:
        """Range of v2."""
        return whole_number(wanted, _SCALES["io.weight"].low, _SCALES["io.weight"].high)

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """In the file's own range."""
        del original
        scale = _SCALES[held.name]
        return min(max(int(wanted) * scale.usual // _USUAL, scale.low), scale.high)

    def phase(self, held: Held, target: Value | None, *, release: bool) -> Phase:
        """No order matters."""
        del held, target
        return Phase.RELEASE if release else Phase.SAFE

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """One."""
        if change.target is not None:
            yield change.held.name, change.target


class IoMax(Adapter):
    """Lines `MAJ:MIN rbps=N wbps=N`, sorted. Limits on operations, and on devices not named, stay as they are."""

    knob = Knob.IO_MAX

    def read(self, fd: int, version: Version) -> Held:
        """Limits in bytes a second."""
        if version is Version.V2:
            text = cpu.optional_text(fd, "io.max")
            return Held(absent="this cgroup has no io.max") if text is None else Held(value=_text(_rates(text)))
        rates: _Rates = {}
        for direction, name in _DIRECTIONS.items():
            text = cpu.optional_text(fd, name)
            if text is None:
                return Held(absent=f"this cgroup has no {name}")
            for line in text.split("\n"):
                if not line:
                    continue
                device, _, rate = line.partition(" ")
                if not _DEVICE.fullmatch(device) or not is_count(rate.strip()):
                    raise Refused(name, None, f"expected MAJ:MIN RATE, found {line[:40]!r}")
                rates.setdefault(device, {})[direction] = int(rate)
        return Held(value=_text(rates))

    def problem(self, wanted: Value) -> str | None:
        """Lines in canonical form."""
        text = wanted if isinstance(wanted, str) else ""
        lines = text.split("\n")
        well_formed = all(_LINE.fullmatch(line) for line in lines) and _text(_rates(text)) == text
        return None if well_formed else f"{wanted!r} is not sorted lines of MAJ:MIN rbps=N wbps=N"

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """Per device and direction the lower of request and original."""
        del held
        rates = _rates(str(original.value or ""))
        for device, limits in _rates(str(wanted)).items():
            mine = rates.setdefault(device, {})
            for direction, rate in limits.items():
                mine[direction] = min(rate, mine.get(direction, rate))
        return _text(rates)

    def stricter(self, one: Value | None, than: Value | None) -> bool:
        """Whether any device gets less than before."""
        before = _rates(str(than or ""))
        return any(
            rate < before.get(device, {}).get(direction, rate + 1)
            for device, limits in _rates(str(one or "")).items()
            for direction, rate in limits.items()
        )

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """One for each device (v1: and direction) that differs."""
        before, after = _rates(str(change.held.value or "")), _rates(str(change.target or ""))
        for device in sorted(before.keys() | after.keys()):
            old, new = before.get(device, {}), after.get(device, {})
            changed = [direction for direction in _DIRECTIONS if old.get(direction) != new.get(direction)]
            if change.version is Version.V1:
                for direction in changed:
                    yield _DIRECTIONS[direction], f"{device} {new.get(direction, 0)}"
            elif changed:
                yield "io.max", " ".join([device, *(f"{name}={new.get(name, 'max')}" for name in changed)])


def _default_weight(name: str, text: str) -> int:
    """v2 and BFQ print `default N` and a line for each device; CFQ the number alone."""
    for line in text.splitlines():
        word = line.removeprefix("default").strip()
        if is_count(word):
            return int(word)
    raise Refused(name, None, f"expected a default weight, found {text[:40]!r}")


def _rates(text: str) -> _Rates:
    rates: _Rates = {}
    for line in text.splitlines():
        device, *pairs = line.split() or [""]
        for pair in pairs:
            name, _, rate = pair.partition("=")
            if name in _DIRECTIONS and is_count(rate):
                rates.setdefault(device, {})[name] = int(rate)
    return rates


def _text(rates: Mapping[str, Mapping[str, int]]) -> str | None:
    lines = [
        " ".join([device, *(f"{name}={limits[name]}" for name in sorted(limits))])
        for device, limits in sorted(rates.items())
        if limits
    ]
    return "\n".join(lines) or None
