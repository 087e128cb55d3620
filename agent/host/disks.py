"""Whole disks of the machine as MAJ:MIN, from sysfs: what io.max takes.

Partitions are no entries of their own there, and devices that only stack or fake others (loop, ram, zram, device
mapper, md) are left out: a limit belongs on the disk below. Source: Linux Documentation/ABI/stable/sysfs-block.
"""

from __future__ import annotations

import os
import re
from typing import Final

from slacktide.errors import KernelError
from slacktide.kernel.files import read_text

_STACKED: Final = re.compile(r"(loop|ram|zram|dm-|md|nbd|sr|fd)\d*")
_DEVICE: Final = re.compile(r"[0-9]{1,6}:[0-9]{1,7}")
_MOST: Final = 512


def read_disks(sys_root: str) -> tuple[str, ...] | None:
    """Sorted numbers of all whole disks; None where sysfs does not tell."""
    directory = os.path.join(sys_root, "block")
    try:
        names = sorted(os.listdir(directory))[:_MOST]
    except OSError:
        return None
    found = []
    for name in names:
        if _STACKED.fullmatch(name):
            continue
        try:
            device = read_text(os.path.join(directory, name, "dev")).strip()
        except KernelError:
            # It went away, or hides its number: it cannot be limited.
            continue
        if _DEVICE.fullmatch(device):
            found.append(device)
    return tuple(sorted(found))
