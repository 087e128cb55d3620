"""Node totals from /proc, rooted at an injected path: CPU time, steal, memory, boot id.

psutil reads them (it knows the oddities: lines without a space, MemAvailable missing or 0). It finds /proc through
a module attribute, which is set for the length of one call, under a lock.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import psutil

from agent.counters import NodeCounters
from slacktide.kernel.files import read_text

_AVAILABLE: Final = re.compile(r"^MemAvailable:\s*([0-9]+)", re.MULTILINE)
_TICK: Final = os.sysconf("SC_CLK_TCK")
_lock: Final = threading.Lock()


@contextmanager
def _rooted(root: str) -> Iterator[None]:
    with _lock:
        before = getattr(psutil, "PROCFS_PATH", "/proc")
        psutil.PROCFS_PATH = root
        try:
            yield
        finally:
            psutil.PROCFS_PATH = before


class Proc:
    """Reads node totals below `root`. `clock` is monotonic seconds."""

    def __init__(self, root: str, clock: Callable[[], float]) -> None:
        self.root = root
        self._clock = clock

    def counters(self) -> NodeCounters:
        """CPU seconds since boot over all CPUs, and memory. Guest time is part of user time and not added again."""
        with _rooted(self.root):
            at = self._clock()
            per_cpu = psutil.cpu_times(percpu=True)
            total, available = self._memory()
        busy = sum(cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq for cpu in per_cpu)
        return NodeCounters(
            at=at,
            capacity_cpu_millis=1000 * len(per_cpu),
            busy_seconds=busy,
            steal_seconds=sum(cpu.steal for cpu in per_cpu),
            capacity_memory_bytes=total,
            memory_available_bytes=available,
        )

    def _memory(self) -> tuple[int, int | None]:
        """(total, available) bytes. psutil stumbles over a line without a space (its issue 2809): read plainly then."""
        try:
            memory = psutil.virtual_memory()
        except ValueError:
            lines = self._meminfo()
            return lines["MemTotal"], lines.get("MemAvailable") or None
        return memory.total, memory.available if memory.total > 0 else None

    def now(self) -> float:
        """Monotonic seconds of the clock that all readings carry."""
        return self._clock()

    def boot_id(self) -> str:
        """Id of this boot of the kernel."""
        return read_text(os.path.join(self.root, "sys/kernel/random/boot_id")).strip()

    def beat(self) -> tuple[float, float | None, int | None]:
        """(time, busy CPU seconds, available memory in bytes), the cheap reading of the beat; None is not known.

        A machine that says `MemAvailable: 0 kB` while it has free memory gives None: an estimate is the turn's work.
        """
        at = self._clock()
        return at, self._busy(), self._available()

    def _busy(self) -> float | None:
        fields = read_text(os.path.join(self.root, "stat")).split("\n", 1)[0].split()
        if len(fields) < 8 or fields[0] != "cpu" or not all(field.isdigit() for field in fields[1:8]):
            return None
        user, nice, system, _idle, _iowait, irq, softirq = (int(field) for field in fields[1:8])
        return (user + nice + system + irq + softirq) / _TICK

    def _available(self) -> int | None:
        found = _AVAILABLE.search(read_text(os.path.join(self.root, "meminfo")))
        return int(found[1]) * 1024 or None if found else None

    def _meminfo(self) -> dict[str, int]:
        """Sizes in bytes by name; a line of another form is left out."""
        sizes: dict[str, int] = {}
        for line in read_text(os.path.join(self.root, "meminfo")).splitlines():
            name, _, rest = line.partition(":")
            number = rest.split()[0] if rest.split() else ""
            if number.isdigit():
                sizes[name] = int(number) * 1024
        return sizes
