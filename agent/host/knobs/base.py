"""What an adapter of one knob does. Values are the kernel's: None is "no limit of its own"."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from agent.capabilities import Knob, Value
from slacktide.kernel.hierarchy import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the kernel holds for one knob of one cgroup now, and what its writes depend on.

    `absent` says why there is no such knob here (empty: there is). `name` is the file where kernels differ. Times are
    microseconds, sizes bytes; `within` is the CPU list of the parent.
    """

    value: Value | None = None
    absent: str = ""
    name: str = ""
    period_us: int | None = None
    quota_us: int | None = None
    burst_us: int | None = None
    weight: int | None = None
    idle: bool = False
    memsw_bytes: int | None = None
    within: str = ""


class Original(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a knob held before. `value` None is "no limit"; `weight` is what a group had that was made idle.

    `burst_us` is what had to go before a quota could fall below it.
    """

    value: Value | None = None
    burst_us: int | None = None
    weight: int | None = None


class Phase(enum.IntEnum):
    """When in a round a write goes: what protects first, then by what the kernel demands of parents and children."""

    SAFE = 0
    """No order matters, parents first."""
    WIDEN = 1
    """Parents first: CPU lists grow before others shrink."""
    TIGHTEN = 2
    """Children first."""
    LOOSEN = 3
    """Parents first."""
    RELEASE = 4
    """No order matters, parents first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One knob from `held` to `target`. `release`: the original is given back."""

    held: Held
    target: Value | None
    original: Original
    version: Version
    release: bool = False


class Adapter:
    """One knob: reading, judging and writing its values. Subclasses are registered in `agent.host.knobs`."""

    knob: ClassVar[Knob]
    binds_children: ClassVar[frozenset[Version]] = frozenset()
    """Versions whose kernel refuses a parent with less than a child of it has."""
    foreign_is_original: ClassVar[bool] = True
    """Whether a value that someone else set is to be given back later. Not for switches, whose value is known."""

    def read(self, fd: int, version: Version) -> Held:
        """What the kernel holds now. Raises a KernelError: Gone when the group went away."""
        raise NotImplementedError

    def file(self, held: Held, version: Version) -> str:
        """The one file whose text is the same as long as the value that is held is; empty where there is none."""
        del held, version
        return ""

    def problem(self, wanted: Value) -> str | None:
        """Why a request with this value must not be carried out, None when it may."""
        raise NotImplementedError

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """The kernel's value for a request, as it will read back, and never looser than the original.

        None when there is none, such as a CPU list without a common CPU: the knob is then left alone.
        """
        raise NotImplementedError

    def giving_back(self, held: Held, original: Original) -> Value | None:
        """The value that restores the original under what holds now."""
        del held
        return original.value

    def stricter(self, one: Value | None, than: Value | None) -> bool:
        """Whether `one` limits more."""
        return one is not None and (than is None or int(one) < int(than))

    def original(self, held: Held) -> Original:
        """What is to be given back later, if `held` is not ours."""
        return Original(value=held.value)

    def stages(self, held: Held, target: Value | None) -> tuple[Value | None, ...]:
        """Values on the way; all but the last only serve to get there."""
        del held
        return (target,)

    def phase(self, held: Held, target: Value | None, *, release: bool) -> Phase:
        """When in a round this is written."""
        del release
        return Phase.TIGHTEN if self.stricter(target, held.value) else Phase.LOOSEN

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """File and text of each write, in order."""
        raise NotImplementedError


def whole_number(value: Value, low: int, high: int) -> str | None:
    """Why `value` is no whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{value!r} is no whole number"
    return None if low <= value <= high else f"{value} is not from {low} to {high}"
