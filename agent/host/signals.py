"""What the beat reads, joined: PSI of LS pods, run delay of LS threads, node busy time and free memory."""

from __future__ import annotations

from collections.abc import Sequence

from agent.counters import PsiTotals, RunDelay
from agent.host.cgroup import PodGroup
from agent.host.proc import Proc
from agent.host.reader import HostReader
from agent.host.schedstat import RunDelayReader
from slacktide.errors import KernelError


class HostSignals:
    """Implements `agent.beat.Signals` on the real host."""

    def __init__(self, reader: HostReader, delays: RunDelayReader, proc: Proc) -> None:
        self._reader = reader
        self._delays = delays
        self._proc = proc

    def cpu_psi(self, group: PodGroup) -> PsiTotals | None:
        """CPU pressure totals of one LS pod; None where there are none."""
        return self._reader.cpu_psi(group)

    def run_delay(self) -> RunDelay:
        """Times of the LS threads that are followed."""
        return self._delays.read()

    def follow(self, groups: Sequence[PodGroup]) -> None:
        """Follow the threads of these pods from now on."""
        self._delays.refresh(self._reader.threads(groups))

    def node_beat(self) -> tuple[float, float | None, int | None]:
        """(time, busy CPU seconds, available memory bytes); unreadable parts are None."""
        try:
            return self._proc.beat()
        except KernelError:
            return self._proc.now(), None, None
