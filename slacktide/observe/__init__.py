"""What a daemon tells about itself: structured logs, Prometheus metrics, health, status; and how it starts and stops.

`run_daemon` ties it together for a `main()`; each part can be used alone. Registries and clocks are injected.
"""

from slacktide.observe.daemon import Daemon, run_daemon
from slacktide.observe.health import Health
from slacktide.observe.logs import get_logger, setup_logging
from slacktide.observe.metrics import build_info
from slacktide.observe.server import ObserveServer
from slacktide.observe.signals import StopSignals

__all__ = [
    "Daemon",
    "Health",
    "ObserveServer",
    "StopSignals",
    "build_info",
    "get_logger",
    "run_daemon",
    "setup_logging",
]
