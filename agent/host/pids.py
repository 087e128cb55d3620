"""Tasks of one cgroup, and how many it may have; the same files on v1 and v2. Source: cgroup-v2.rst, PID."""

from __future__ import annotations

from agent.counters import PidsReading
from agent.host.fds import GroupFiles
from agent.host.parse import limit, number
from slacktide.errors import Gone, KernelError, Refused


def read_pids(files: GroupFiles) -> PidsReading | None:
    """Tasks (threads) now and at most; None where the controller is off here. Raises Gone."""
    try:
        current = number(files.cold("pids.current"), "pids.current")
        if current < 0:
            raise Refused("pids.current", None, f"expected a count, found {current}")
        return PidsReading(current=current, limit=limit(files.cold("pids.max"), "pids.max"))
    except Gone:
        raise
    except KernelError:
        return None
