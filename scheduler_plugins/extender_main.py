"""The extender daemon: settings in, exit code out. `python -m scheduler_plugins.extender_main`."""

from __future__ import annotations

import sys
from typing import Final

from scheduler_plugins.extender.host import ExtenderHost
from scheduler_plugins.extender.settings import ExtenderSettings
from scheduler_plugins.plugins import default_registry
from slacktide.cluster import connect
from slacktide.garbage import keep_what_is_here
from slacktide.observe import Daemon, get_logger, run_daemon
from slacktide.transport import tls_files
from slacktide.transport.watched import ExpiryMetrics

_ABOUT: Final = "Answers a stock scheduler's questions about best-effort pods, by the forecast of each node."
_SWITCH_SECONDS: Final = 0.0005
"""How long a thread that reads the watch may keep an answer from going on; Python's own 5 ms is half of our time."""

_LOOK_SECONDS: Final = 0.5

_log = get_logger("extender")


def main(argv: list[str] | None = None) -> int:
    """Run the extender until SIGTERM or SIGINT; 0 after a clean stop, 2 for settings that cannot be used."""
    return run_daemon("extender", ExtenderSettings, _body, argv, about=_ABOUT)


def _body(daemon: Daemon[ExtenderSettings]) -> int:
    sys.setswitchinterval(_SWITCH_SECONDS)
    client = connect(daemon.settings.cluster, user_agent="slacktide-extender")
    host = ExtenderHost(daemon.settings, client, default_registry(), daemon.registry, daemon.health, daemon.stop.event)
    files = tls_files(daemon.settings.tls)
    if files is not None:
        ExpiryMetrics(daemon.registry).follow(files)
    host.start()
    _log.info("listening", address=host.address)
    try:
        while not daemon.stop.wait(_LOOK_SECONDS):
            if host.listed:
                # Nodes and pods stay: looked through again and again they cost 55 ms a time at 5,000 nodes.
                keep_what_is_here()
                daemon.stop.wait()
    finally:
        host.shut_down()
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
