"""Agents of nodes that do not exist: the real reporting code, streams and spools included, fed with made-up use.

For some nodes whose use a test changes while it runs. For thousands there is `benchmarks.simulated_agents`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.report import Reporter
from agent.settings import ReportSettings
from agent.spool import Spool
from agent.window import Sample, WindowUsage
from slacktide.forecast import Amount
from slacktide.status import Usage
from slacktide.tier import Tier

PERIOD_SECONDS: Final = 0.5
GIB: Final = 1 << 30

PROMPT: Final = ReportSettings(backoff_seconds=0.2, backoff_max_seconds=0.5)
"""Of agents that find their predictor again at once."""


@dataclass(slots=True)
class SimulatedNode:
    """What the agent of one node measures: CPU in millicores, memory in bytes. A silent one measures nothing."""

    name: str
    capacity_cpu: int = 8000
    capacity_memory: int = 32 * GIB
    ls_cpu: int = 500
    ls_memory: int = 2 * GIB
    system_cpu: int = 100
    system_memory: int = GIB
    closed: str = ""
    silent: bool = False
    boot: str = field(default_factory=lambda: secrets.token_hex(8))

    def sample(self, now: float) -> Sample:
        """A window in which use did not change."""
        nothing = Amount(cpu_millis=0, memory_bytes=0)
        return Sample(
            end=now,
            window_seconds=PERIOD_SECONDS,
            capacity=Usage(cpu_millis=self.capacity_cpu, memory_bytes=self.capacity_memory),
            tiers={
                Tier.LS: _flat(self.ls_cpu, self.ls_memory),
                Tier.BE: _flat(0, 0),
                Tier.SYSTEM: _flat(self.system_cpu, self.system_memory),
            },
            requested={Tier.LS: nothing, Tier.BE: nothing},
            pods=(),
            ls_pressure=0.0,
            be_limit_millis=None,
            closed=self.closed,
        )


def _flat(cpu: int, memory: int) -> WindowUsage:
    return WindowUsage(cpu_millis_mean=cpu, cpu_millis_max=cpu, memory_bytes_mean=memory, memory_bytes_max=memory)


class SimulatedAgents:
    """Agents of some nodes, one thread for all beside those of their streams. Use as a context manager.

    `settings` are those of the agent of a node, such as the files that it proves itself with.
    """

    def __init__(
        self, targets: str, directory: Path, settings: Callable[[str], ReportSettings] = lambda _node: PROMPT
    ) -> None:
        self._targets = targets
        self._directory = directory
        self._settings = settings
        self._lock = threading.Lock()
        self._agents: dict[str, tuple[SimulatedNode, Reporter, Spool]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="simulated-agents", daemon=True)

    def __enter__(self) -> SimulatedAgents:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        for name in list(self._agents):
            self.remove(name)

    def add(self, name: str, **use: int) -> SimulatedNode:
        """An agent begins to report; what it measures may be changed at any time."""
        node = SimulatedNode(name, **use)
        state = self._directory / f"{name}-{node.boot}"
        state.mkdir()
        spool = Spool(str(state), 1 << 24)
        reporter = Reporter(name, node.boot, spool, self._settings(name), self._targets)
        reporter.start()
        with self._lock:
            self._agents[name] = (node, reporter, spool)
        return node

    def remove(self, name: str) -> None:
        """The agent of a node ends."""
        with self._lock:
            _, reporter, spool = self._agents.pop(name)
        reporter.stop()
        spool.close()

    def _loop(self) -> None:
        while not self._stopping.wait(PERIOD_SECONDS):
            now = time.time()
            with self._lock:
                for node, reporter, _ in self._agents.values():
                    if not node.silent:
                        reporter.submit(node.sample(now))
