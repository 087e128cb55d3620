"""What a label of a series says about its node, and how densely use is read. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

_STEPS: Final = (5, 6, 10, 12, 15, 20, 25, 30, 50, 60)
"""Divisors of a slot that windows may be apart."""
_LEAST_STEP: Final = 15.0
_NODES_A_SECOND: Final = 50.0
"""Windows are further apart where more nodes would make answers too long: 60 s from 3000 nodes on."""


class Source(NamedTuple):
    """Series of one exporter: the label that names the node, and what its values mean.

    addresses  node by the host part of an `instance` label, as kube-state-metrics says
    hosts      the same as node-exporters say of themselves, by whole value and by host part
    known      names of nodes, empty when nothing lists them
    """

    label: str
    addresses: Mapping[str, str] = {}
    hosts: Mapping[str, str] = {}
    known: frozenset[str] = frozenset()

    def node(self, value: str) -> str | None:
        """Name of the node that a value of the label means; None when it means none that is known."""
        if self.label != "instance":
            return value or None
        host = host_of(value)
        meant = (self.addresses.get(host), self.hosts.get(value), self.hosts.get(host), host)
        return next((name for name in meant if name and (not self.known or name in self.known)), None)


def step_for(scrape_seconds: float, nodes: int) -> int:
    """Seconds between windows: as often as samples come, not below 15 s, and less often for many nodes."""
    wanted = max(0.95 * scrape_seconds, _LEAST_STEP, nodes / _NODES_A_SECOND)
    return next((step for step in _STEPS if step >= wanted), _STEPS[-1])


def window_for(scrape_seconds: float, step: int) -> int:
    """Seconds of a window: enough for two samples even when one came late, a multiple of `step`."""
    return math.ceil(2.5 * scrape_seconds / step) * step


def host_of(instance: str) -> str:
    """Host part of an `instance` label."""
    text = instance.partition("://")[2] or instance
    text = text.partition("/")[0]
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text
