"""Node totals from /proc, rooted at an injected path: CPU time, steal, memory, boot id.

psutil reads them (it knows the oddities: MemAvailable missing or 0). It finds /proc through a module attribute, which
is set for the length of one call, under a lock. Swap is read plainly: psutil reads vmstat for it as well, and warns
where that has no counts. The two files of the beat are held open; reading them costs a third of opening them.
"""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import psutil

from agent.counters import NodeCounters
from agent.host.node_tasks import read_tasks, read_tasks_max
from slacktide.errors import Refused
from slacktide.kernel.files import read_text, translate

_SIZE: Final = re.compile(rb":[ \t]*([0-9]{1,20})\b")
_CPU: Final = re.compile(rb"cpu" + rb"[ \t]+([0-9]{1,20})" * 8 + rb"\s")
_TICK: Final = os.sysconf("SC_CLK_TCK")
_DIGITS: Final = 20
_BEAT_BYTES: Final = 16_384
_MEMORY_BEATS: Final = 4
_JUNK: Final = (ValueError, TypeError, KeyError, IndexError, OverflowError, ZeroDivisionError, RuntimeWarning)
"""What psutil raises for content that it does not know (TypeError: a line of a CPU without its times); the last where
warnings are errors."""

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
        self._held: dict[str, int] = {}
        self._beats = 0
        self._available_last: int | None = None

    def counters(self) -> NodeCounters:
        """CPU seconds since boot over all CPUs, and memory. Guest time is part of user time and not added again.

        Raises KernelError: Refused for content that no kernel prints.
        """
        with _rooted(self.root):
            at = self._clock()
            per_cpu = self._cpu_times()
            total, available = self._memory()
        swap_total, swap_free = self._swap()
        busy = sum(cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq for cpu in per_cpu)
        return NodeCounters(
            at=at,
            capacity_cpu_millis=1000 * len(per_cpu),
            busy_seconds=busy,
            steal_seconds=sum(cpu.steal for cpu in per_cpu),
            capacity_memory_bytes=total,
            memory_available_bytes=available,
            swap_total_bytes=swap_total,
            swap_free_bytes=swap_free,
            tasks=read_tasks(self.root),
            tasks_max=read_tasks_max(self.root),
        )

    def _cpu_times(self) -> list[Any]:
        """Times of each CPU, as psutil has them."""
        try:
            per_cpu = psutil.cpu_times(percpu=True)
        except _JUNK as error:
            raise Refused(os.path.join(self.root, "stat"), None, f"makes no sense: {error!r}") from error
        if not per_cpu or not all(math.isfinite(time) and time >= 0 for cpu in per_cpu for time in cpu):
            raise Refused(os.path.join(self.root, "stat"), None, "names no CPU, or times that are none")
        return per_cpu

    def _memory(self) -> tuple[int, int | None]:
        """(total, available) bytes. psutil stumbles over a line without a space (its issue 2809): read plainly then."""
        try:
            memory = psutil.virtual_memory()
        except _JUNK:
            lines = self._meminfo()
            total, available = lines.get("MemTotal", 0), lines.get("MemAvailable") or None
        else:
            total, available = memory.total, memory.available
        if total <= 0:
            raise Refused(os.path.join(self.root, "meminfo"), None, "does not say how much memory there is")
        return total, available if available is None or 0 <= available <= total else None

    def _swap(self) -> tuple[int | None, int | None]:
        """(total, free) bytes of swap; None where meminfo does not say."""
        data = self._beat_file("meminfo")
        return _size_of(b"SwapTotal", data), _size_of(b"SwapFree", data)

    def now(self) -> float:
        """Monotonic seconds of the clock that all readings carry."""
        return self._clock()

    def boot_id(self) -> str:
        """Id of this boot of the kernel."""
        return read_text(os.path.join(self.root, "sys/kernel/random/boot_id")).strip()

    def beat(self) -> tuple[float, float | None, int | None]:
        """(time, busy CPU seconds, available memory in bytes), the cheap reading of the beat; None is not known.

        What a hypervisor took counts as busy here: a CPU that it holds is none that LS could run on.

        A machine that says `MemAvailable: 0 kB` while it has free memory gives None: an estimate is the turn's work.
        Memory is read in every fourth beat.
        """
        at = self._clock()
        if self._beats % _MEMORY_BEATS == 0:
            self._available_last = self._available()
        self._beats += 1
        return at, self._busy(), self._available_last

    def close(self) -> None:
        """Close what is held open."""
        while self._held:
            os.close(self._held.popitem()[1])

    def _beat_file(self, name: str) -> bytes:
        """The beginning of a file, through a held descriptor. Raises KernelError."""
        try:
            if name not in self._held:
                self._held[name] = os.open(os.path.join(self.root, name), os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(self._held[name], _BEAT_BYTES, 0)
        except OSError as error:
            raise translate(os.path.join(self.root, name), error) from error

    def _busy(self) -> float | None:
        found = _CPU.match(self._beat_file("stat"))
        if not found:
            return None
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, found.groups())
        return (user + nice + system + irq + softirq + steal) / _TICK

    def _available(self) -> int | None:
        return _size_of(b"MemAvailable", self._beat_file("meminfo")) or None

    def _meminfo(self) -> dict[str, int]:
        """Sizes in bytes by name; a line of another form is left out."""
        sizes: dict[str, int] = {}
        for line in read_text(os.path.join(self.root, "meminfo")).splitlines():
            name, _, rest = line.partition(":")
            number = rest.split()[0] if rest.split() else ""
            if number.isascii() and number.isdigit() and len(number) <= _DIGITS:
                sizes[name] = int(number) * 1024
        return sizes


def _size_of(name: bytes, data: bytes) -> int | None:
    """Bytes that the line `name` of meminfo states; None without such a line."""
    begin = 0 if data.startswith(name + b":") else data.find(b"\n" + name + b":") + 1
    if begin == 0 and not data.startswith(name + b":"):
        return None
    found = _SIZE.match(data, begin + len(name))
    return int(found[1]) * 1024 if found else None
