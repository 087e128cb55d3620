"""The CPU list of a cpuset. Memory nodes are never touched.

v1: a child outside its parent is EACCES, a parent below its child EBUSY, an empty list with tasks inside ENOSPC. So a
list goes from one to another by way of both: parents first take the union, then children first the final list. v2
takes any list and narrows what is in effect; but a list that was once set cannot be taken away from a group with tasks
(ENOSPC as well, seen on 6.1), so such a group gets back its parent's list and no more follows changes of that one.
Source: reference/kernel.md 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent.capabilities import Knob, Value
from agent.host import cpu
from agent.host.knobs.base import Adapter, Change, Held, Original, Phase
from agent.threads import Mask, format_cpus, parse_cpus
from slacktide.errors import Gone, Refused
from slacktide.kernel.files import read_text
from slacktide.kernel.hierarchy import Version

_FILE: Final = "cpuset.cpus"
_PARENT: Final = {Version.V1: f"../{_FILE}", Version.V2: f"../{_FILE}.effective"}


class Cpuset(Adapter):
    """A list in the kernel's form. None: no list of its own (v2), or nothing in the group yet (v1)."""

    knob = Knob.CPUSET
    binds_children = frozenset({Version.V1})

    def read(self, fd: int, version: Version) -> Held:
        """The list, and what the parent allows."""
        text = cpu.optional_text(fd, _FILE)
        if text is None:
            return Held(absent=f"this cgroup has no {_FILE}")
        return Held(value=_canonical(text) or None, within=_parent(fd, version), name=version.name)

    def file(self, held: Held, version: Version) -> str:
        """Its only one."""
        del held, version
        return _FILE

    def problem(self, wanted: Value) -> str | None:
        """At least one CPU, in the kernel's form."""
        try:
            canonical = format_cpus(parse_cpus(wanted)) if isinstance(wanted, str) else ""
        except ValueError:
            canonical = ""
        return None if canonical and canonical == wanted else f"{wanted!r} is no sorted and joined list of CPUs"

    def target(self, wanted: Value, held: Held, original: Original) -> Value | None:
        """What request, parent and original all allow; None when that is nothing."""
        cpus = parse_cpus(str(wanted))
        for bound in (held.within, original.value):
            if bound:
                cpus &= parse_cpus(str(bound))
        return format_cpus(cpus) or None

    def giving_back(self, held: Held, original: Original) -> Value | None:
        """What of the original the parent still allows; where there was no list, the parent's."""
        within = parse_cpus(held.within)
        if original.value is None:
            return format_cpus(within) or None
        own = parse_cpus(str(original.value))
        if held.name == Version.V2.name:
            return original.value
        return format_cpus(own & within or within or own) or None

    def stricter(self, one: Value | None, than: Value | None) -> bool:
        """Whether it is a true part of the other."""
        return one is not None and (than is None or _cpus(one) < _cpus(than))

    def stages(self, held: Held, target: Value | None) -> tuple[Value | None, ...]:
        """By way of the union where neither list holds the other (v1)."""
        if held.name == Version.V2.name or held.value is None or target is None:
            return (target,)
        now, then = _cpus(held.value), _cpus(target)
        return (target,) if now <= then or then <= now else (format_cpus(now | then), target)

    def phase(self, held: Held, target: Value | None, *, release: bool) -> Phase:
        """Growing lists from the root, before shrinking ones from the leaves."""
        del release
        return Phase.TIGHTEN if self.stricter(target, held.value) else Phase.WIDEN

    def writes(self, change: Change) -> Iterator[tuple[str, str | int]]:
        """One. A newline clears (v2)."""
        yield _FILE, "\n" if change.target is None else str(change.target)


def _parent(fd: int, version: Version) -> str:
    """What the parent allows; empty where that cannot be known, as at the top of v2."""
    try:
        return _canonical(read_text(_PARENT[version], fd))
    except Gone:
        return ""


def _canonical(text: str) -> str:
    try:
        return format_cpus(parse_cpus(text))
    except ValueError:
        raise Refused(_FILE, None, f"expected a list of CPUs, found {text[:40]!r}") from None


def _cpus(value: Value) -> Mask:
    return parse_cpus(str(value))
