"""Pressure stall information: /proc/pressure/* and, on v2, *.pressure of each cgroup.

Every way in which PSI can be missing is None with a reason, never 0 pressure: no file (kernel without PSI or
booted without it), read errno 95 (disabled at boot on older kernels), a format without totals (old backports). What
is missing is looked for again once a minute, not each turn. Lines are read by key, since kernels may add keys; CPU
pressure has only `some` before 5.13, interrupt pressure only `full`. cgroup v1 has none, save vendor kernels booted
with psi_v1=1, which show it beside cpuacct. Source: Documentation/accounting/psi.rst; kernel.md 2.4.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Final

from agent.counters import PodPsi, PsiTotals
from agent.host.fds import GroupFiles
from slacktide.errors import Gone, KernelError, Unsupported
from slacktide.kernel.files import read_text
from slacktide.observe import get_logger

RESOURCES: Final = ("cpu", "memory", "io")
RETRY_SECONDS: Final = 60.0

_LOG: Final = get_logger("agent.psi")
_TOTAL: Final = re.compile(rb"^(some|full) (?:\S+ )*?total=([0-9]{1,30})(?: \S+)* *$", re.MULTILINE)


def parse(text: str | bytes) -> PsiTotals | None:
    """Totals of one pressure file; None when it holds no total (unknown or pre-mainline format).

    `irq.pressure` has only a `full` line and gives None too: nothing here is decided by it.
    """
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    totals = {name: int(value) for name, value in _TOTAL.findall(data)}
    some = totals.get(b"some")
    return PsiTotals(some_us=some, full_us=totals.get(b"full")) if some is not None else None


def read(path: str, dir_fd: int | None = None) -> PsiTotals | None:
    """Totals of `path`, None where PSI is missing in any way, or cannot be read at this moment. Raises nothing."""
    try:
        return parse(read_text(path, dir_fd))
    except KernelError:
        return None


def read_group(files: GroupFiles, clock: Callable[[], float]) -> PodPsi | None:
    """Totals of a cgroup; a resource without is None, and all of it where there are none. Raises Gone."""
    at = clock()
    cpu, memory, io = (_totals(files, f"{resource}.pressure") for resource in RESOURCES)
    return None if cpu is None and memory is None and io is None else PodPsi(at=at, cpu=cpu, memory=memory, io=io)


def _totals(files: GroupFiles, name: str) -> PsiTotals | None:
    try:
        return parse(files.cold(name))
    except Gone:
        raise
    except KernelError:
        return None


def why_missing(path: str, dir_fd: int | None = None) -> str | None:
    """Reason in words why `path` gives no pressure; None when it does."""
    try:
        text = read_text(path, dir_fd)
    except Gone:
        return "this kernel has no PSI here (not built in, not switched on, or cgroup v1)"
    except Unsupported:
        return "PSI is disabled (boot with psi=1 to have it)"
    except KernelError as error:
        return f"cannot be read: {error.detail}"
    return None if parse(text) is not None else "the kernel prints PSI in a format without totals"


def node_path(proc_root: str, resource: str) -> str:
    """Path of the node's pressure file for `cpu`, `memory` or `io`."""
    return os.path.join(proc_root, "pressure", resource)


class NodePsi:
    """The node's pressure. A resource that has none is said once, with the reason, and left in peace for a minute.

    `why_not` maps such a resource to the reason.
    """

    def __init__(self, proc_root: str, clock: Callable[[], float]) -> None:
        self._root = proc_root
        self._clock = clock
        self._again: dict[str, float] = {}
        self.why_not: dict[str, str] = {}

    def read(self) -> PodPsi | None:
        """Totals now; None where the node has no pressure at all."""
        at = self._clock()
        cpu, memory, io = (self._one(resource, at) for resource in RESOURCES)
        return None if cpu is None and memory is None and io is None else PodPsi(at=at, cpu=cpu, memory=memory, io=io)

    def _one(self, resource: str, at: float) -> PsiTotals | None:
        if at < self._again.get(resource, at):
            return None
        path = node_path(self._root, resource)
        totals = read(path)
        if totals is not None:
            self.why_not.pop(resource, None)
            return totals
        self._again[resource] = at + RETRY_SECONDS
        reason = why_missing(path)
        if reason is not None and self.why_not.get(resource) != reason:
            self.why_not[resource] = reason
            _LOG.info("no pressure of the node", resource=resource, reason=reason)
        return None
