"""Metrics that every daemon has. All names start with `slacktide_`."""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, disable_created_metrics

from slacktide import __version__

# A second series beside every counter, with its start time, would double what a node sends for nothing.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library gives it no types


def build_info(registry: CollectorRegistry, component: str) -> None:
    """Add `slacktide_build_info{component,version,python}` 1 and the process's own CPU, memory and descriptors."""
    info = Gauge(
        "slacktide_build_info",
        "What runs here; the value is always 1.",
        ["component", "version", "python"],
        registry=registry,
    )
    info.labels(component, __version__, platform.python_version()).set(1)
    ProcessCollector(namespace="slacktide", registry=registry)
