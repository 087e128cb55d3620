"""Processes named so that a reused pid is never mistaken for the one that was meant.

A pid alone is a promise for a moment: the kernel hands it out again. Together with the start time (field 22 of
/proc/PID/stat, clock ticks since boot) it names one process for good, and a pidfd keeps it named while a signal
is sent. Source: proc(5), pidfd_open(2).
"""

from __future__ import annotations

import os
import select
import signal
from typing import Final

import msgspec

_STATE_FIELD: Final = 0
_START_FIELD: Final = 19


class ProcessId(msgspec.Struct, frozen=True):
    """One process: pid and start time in clock ticks since boot."""

    pid: int
    start_time: int


def identify(pid: int) -> ProcessId | None:
    """Name the process that has `pid` now; None when there is none, or only its zombie."""
    fields = _stat(pid)
    if fields is None or fields[_STATE_FIELD] in {"Z", "X"}:
        return None
    return ProcessId(pid, int(fields[_START_FIELD]))


def alive(process: ProcessId) -> bool:
    """Whether this very process still runs."""
    return identify(process.pid) == process


def send(process: ProcessId, signum: signal.Signals) -> bool:
    """Send a signal to this very process. False when it is gone. Raises PermissionError for another user's."""
    descriptor = _open(process)
    if descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def wait_gone(process: ProcessId, timeout: float) -> bool:
    """Wait up to `timeout` seconds until the process has ended (as a zombie or for good)."""
    descriptor = _open(process)
    if descriptor is None:
        return True
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(timeout * 1000))
    finally:
        os.close(descriptor)


def stop(process: ProcessId, grace: float) -> bool:
    """SIGTERM, wait `grace` seconds, SIGKILL. True when it ended by itself, False when it had to be killed."""
    if not send(process, signal.SIGTERM) or wait_gone(process, grace):
        return True
    send(process, signal.SIGKILL)
    wait_gone(process, 5.0)
    return False


def _open(process: ProcessId) -> int | None:
    """A pidfd of this very process: opened first and judged then, so that it cannot change in between."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if identify(process.pid) != process:
        os.close(descriptor)
        return None
    return descriptor


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; the name before them may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()
