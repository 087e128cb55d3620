"""What BE got on this node, by namespace: the counters that savings are worked out from."""

from __future__ import annotations

from collections import Counter as Sums
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from agent.snapshot import PodSnapshot
from slacktide.tier import Tier

NAMESPACES_MAX: Final = 64
"""So many namespaces have series of their own on a node; the rest are one, under `OTHERS`."""

OTHERS: Final = "(others)"
"""No namespace of Kubernetes has brackets in its name."""


class Given:
    """CPU and memory time of BE pods. What was not measured in a turn is not counted in it, never counted as 0 use."""

    def __init__(self, registry: CollectorRegistry, most: int = NAMESPACES_MAX) -> None:
        self._most = most
        self._known: set[str] = set()
        self._cpu = Counter(
            "slacktide_agent_be_cpu_seconds",
            "CPU time that BE pods got, by namespace.",
            ["namespace"],
            registry=registry,
        )
        self._memory = Counter(
            "slacktide_agent_be_memory_byte_seconds",
            "Working set of BE pods times its duration, by namespace.",
            ["namespace"],
            registry=registry,
        )

    def add(self, pods: Iterable[PodSnapshot], window_seconds: float | None) -> None:
        """After each turn; `window_seconds` is what the pods' rates are over, None before there are any."""
        if window_seconds is None:
            return
        millis: Sums[str] = Sums()
        sizes: Sums[str] = Sums()
        for pod in pods:
            if pod.tier is not Tier.BE:
                continue
            name, usage = self._name(pod.identity.namespace), pod.usage
            if usage.cpu_millis is not None:
                millis[name] += max(0, usage.cpu_millis)
            if usage.memory_bytes is not None:
                sizes[name] += max(0, usage.memory_bytes)
        for name, total in millis.items():
            self._cpu.labels(name).inc(total / 1000 * window_seconds)
        for name, total in sizes.items():
            self._memory.labels(name).inc(total * window_seconds)

    def _name(self, namespace: str) -> str:
        if namespace not in self._known and len(self._known) >= self._most:
            return OTHERS
        self._known.add(namespace)
        return namespace
