"""`python -m standalone.api`: the embedded API server as a process."""

from __future__ import annotations

from slacktide.observe import Daemon, get_logger, run_daemon
from standalone.api.server import ApiServer
from standalone.api.settings import ApiSettings

_ABOUT = "Serves the part of the Kubernetes API that Slacktide uses, on a Unix socket, from one SQLite file."


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM; 0 after a clean stop, 1 when it cannot go on, 2 for bad settings."""
    return run_daemon("api", ApiSettings, _serve, argv, about=_ABOUT)


def _serve(daemon: Daemon[ApiSettings]) -> int:
    log = get_logger("api")
    server = ApiServer(daemon.settings, daemon.registry)
    server.start()
    daemon.health.add_live("server", server.alive)
    daemon.health.add_ready("server", server.alive)
    log.info("serving", socket=daemon.settings.socket, listen=server.address)
    try:
        while not daemon.stop.wait(timeout=5.0):
            if server.alive() is not None:
                log.error("the event loop has ended")
                return 1
    finally:
        server.stop()
    return 0
