"""Lifts BE's hard limits when nobody watches LS any more: a dead agent must not leave work throttled for ever.

Quota, CPU list, memory.high, io.max and freezer get their originals back, save for what is the pod's own limit (batch
limits). Weight, idle and masks stay, since they cost BE nothing that LS does not need. The journal is left as it is, so
an agent that comes back still knows all originals and puts its limits in force again.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.act.journal import Entry
from agent.act.knobs import Step, Write, opened, place_at, write_step
from agent.host.knobs import ADAPTERS, mount_of
from slacktide.errors import KernelError
from slacktide.kernel.files import write_value
from slacktide.kernel.hierarchy import Hierarchy


def relax(hierarchy: Hierarchy, entries: Iterable[Entry], write: Write = write_value) -> int:
    """Lift what is hard, parents first. Returns how many limits were lifted.

    Needs no state of the executor: it works while the control thread hangs, and in another process.
    """
    lifted = 0
    hard = [entry for entry in entries if entry.knob.hard]
    # One by one, as what a container may have depends on what its pod got back.
    for entry in sorted(hard, key=lambda entry: entry.group.count("/")):
        try:
            step = _step(hierarchy, entry)
            if step is not None:
                write_step(step, write)
                lifted += 1
        except KernelError:
            # The group went away or refuses: the others must still be lifted.
            continue
    return lifted


def _step(hierarchy: Hierarchy, entry: Entry) -> Step | None:
    """The step that lifts one limit; None when there is nothing of ours. Raises a KernelError."""
    mount = mount_of(hierarchy, entry.knob)
    if mount is None:
        return None
    adapter, place = ADAPTERS[entry.knob], place_at(mount, entry.group, entry.inode)
    with opened(place) as descriptor:
        held = adapter.read(descriptor, mount.version)
    lasts = adapter.stricter(entry.lasting, entry.original.value)
    target = entry.lasting if lasts else adapter.giving_back(held, entry.original)
    if held.absent or not entry.explains(held.value) or not adapter.stricter(held.value, target):
        return None
    return Step(
        place=place,
        version=mount.version,
        knob=entry.knob,
        held=held,
        target=target,
        original=entry.original,
        release=not lasts,
    )
