"""What a daemon tells about itself: structured logs, Prometheus metrics, health, status; and how it starts and stops.

`run_daemon` ties it together for a `main()`; each part can be used alone. Registries and clocks are injected.

Each part is imported when it is first asked for: everything has a logger, and only daemons need the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from slacktide.observe.logger import Logger, get_logger

if TYPE_CHECKING:
    from slacktide.observe.daemon import Daemon, run_daemon
    from slacktide.observe.health import Health
    from slacktide.observe.logs import setup_logging
    from slacktide.observe.metrics import build_info
    from slacktide.observe.server import ObserveServer, Queried
    from slacktide.observe.signals import StopSignals

__all__ = [
    "Daemon",
    "Health",
    "Logger",
    "ObserveServer",
    "Queried",
    "StopSignals",
    "build_info",
    "get_logger",
    "run_daemon",
    "setup_logging",
]

_WHERE: Final = {
    "Daemon": "daemon",
    "Health": "health",
    "ObserveServer": "server",
    "Queried": "server",
    "StopSignals": "signals",
    "build_info": "metrics",
    "run_daemon": "daemon",
    "setup_logging": "logs",
}


def __getattr__(name: str) -> object:
    """Import the module of a public name (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
