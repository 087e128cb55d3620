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
    steps = [step for entry in entries if entry.knob.hard and (step := _step(hierarchy, entry)) is not None]
    lifted = 0
    for step in sorted(steps, key=lambda step: step.order):
        try:
            write_step(step, write)
        except KernelError:
            # The group went away or refuses: the others must still be lifted.
            continue
        lifted += 1
    return lifted


def _step(hierarchy: Hierarchy, entry: Entry) -> Step | None:
    mount = mount_of(hierarchy, entry.knob)
    if mount is None:
        return None
    adapter, place = ADAPTERS[entry.knob], place_at(mount, entry.group, entry.inode)
    try:
        with opened(place) as descriptor:
            held = adapter.read(descriptor, mount.version)
    except KernelError:
        return None
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
