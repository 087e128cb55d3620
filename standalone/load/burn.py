"""Busy best-effort work: processes that use all the CPU they get, as a build or a batch job does."""

from __future__ import annotations

from standalone.load.workers import workers_until_stopped


def burn(processes: int, pid_file: str) -> int:
    """Keep `processes` processes busy until SIGTERM or SIGINT; their pids go to `pid_file`, one a line."""
    return workers_until_stopped(processes, _spin, pid_file)


def _spin() -> None:
    value = 1
    while True:
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
