"""Pressure stall information: /proc/pressure/* and, on v2, *.pressure of each cgroup.

Every way in which PSI can be missing is None with a reason, never 0 pressure: no file (kernel without PSI or
booted without it), read errno 95 (disabled at boot on older kernels), a format without totals (old backports).
Lines are read by key, since kernels may add keys. Source: Documentation/accounting/psi.rst; kernel.md 2.4.
"""

from __future__ import annotations

import os

from agent.counters import PsiTotals
from slacktide.errors import Gone, NotPermitted, Refused, Unsupported
from slacktide.kernel.files import read_text


def parse(text: str) -> PsiTotals | None:
    """Totals of one pressure file; None when it holds no total (unknown or pre-mainline format).

    `irq.pressure` has only a `full` line and gives None too: nothing here is decided by it.
    """
    totals: dict[str, int] = {}
    for line in text.splitlines():
        name, *fields = line.split() or [""]
        for field in fields:
            key, _, value = field.partition("=")
            if key == "total" and value.isdigit():
                totals[name] = int(value)
    some = totals.get("some")
    return PsiTotals(some_us=some, full_us=totals.get("full")) if some is not None else None


def read(path: str, dir_fd: int | None = None) -> PsiTotals | None:
    """Totals of `path`, None where PSI is missing in any way. Raises nothing for a kernel that has none."""
    try:
        return parse(read_text(path, dir_fd))
    except (Gone, Unsupported, NotPermitted, Refused):
        return None


def why_missing(path: str, dir_fd: int | None = None) -> str | None:
    """Reason in words why `path` gives no pressure; None when it does."""
    try:
        text = read_text(path, dir_fd)
    except Gone:
        return "this kernel has no PSI here (not built in, not switched on, or cgroup v1)"
    except Unsupported:
        return "PSI is disabled (boot with psi=1 to have it)"
    except (NotPermitted, Refused) as error:
        return f"cannot be read: {error.detail}"
    return None if parse(text) is not None else "the kernel prints PSI in a format without totals"


def node_path(proc_root: str, resource: str) -> str:
    """Path of the node's pressure file for `cpu`, `memory` or `io`."""
    return os.path.join(proc_root, "pressure", resource)
