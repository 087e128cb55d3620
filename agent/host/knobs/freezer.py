"""Stops all tasks of a group: cgroup.freeze on v2, the freezer controller on v1. Source: reference/kernel.md 2.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.capabilities import Knob, Value
from agent.host import cpu
from agent.host.knobs.base import Adapter, Change, Held, Original, Phase, whole_number
from slacktide.kernel.hierarchy import Version

FREEZE_FILE: Final = "cgroup.freeze"
STATE_FILE: Final = "freezer.state"
_OWN_STATE_FILE: Final = "freezer.self_freezing"
"""v1: `freezer.state` of a child of a frozen group says FROZEN as well."""


class Freeze(Adapter):
    """0 or 1: what was asked for. Tasks in the kernel stop a moment later."""

    knob = Knob.FREEZE
    foreign_is_original = False

    def read(self, fd: int, version: Version) -> Held:
        """What was last asked for."""
        name = FREEZE_FILE if version is Version.V2 else _OWN_STATE_FILE
        value = cpu.optional_int(fd, name)
        return Held(absent=f"this cgroup has no {name}") if value is None else Held(value=int(value != 0))

    def problem(self, wanted: Value) -> str | None:
        """0 or 1."""
        return whole_number(wanted, 0, 1)

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """As wanted, and 1 where it was so before."""
        del held
        return max(int(wanted), int(original.value or 0))

    def stricter(self, one: Value | None, than: Value | None) -> bool:
        """1 is stricter than 0."""
        return int(one or 0) > int(than or 0)

    def phase(self, held: Held, target: Value | None, *, release: bool) -> Phase:
        """Protects, so it goes first."""
        del held
        return Phase.RELEASE if release or not target else Phase.SAFE

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """One."""
        if change.version is Version.V2:
            yield FREEZE_FILE, int(change.target or 0)
        else:
            yield STATE_FILE, "FROZEN" if change.target else "THAWED"
