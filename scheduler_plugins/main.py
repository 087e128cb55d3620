"""The scheduler daemon: settings in, exit code out."""

from __future__ import annotations

from typing import Final

import msgspec

from scheduler_plugins.config.load import load
from scheduler_plugins.framework.comparer import OnSignal
from scheduler_plugins.host import DEBUG_ROUTE, SchedulerHost
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from slacktide.cluster import connect
from slacktide.garbage import keep_what_is_here
from slacktide.observe import Daemon, Queried, get_logger, run_daemon
from slacktide.settings import ClusterSettings

_log = get_logger("scheduler")

_LOOK_SECONDS: Final = 0.5
_COLLECT_AFTER: Final = (20_000, 20, 50)
"""Objects made, and younger collections, before each generation is looked through; a cycle makes thousands."""

_ABOUT = "Places pods whose spec.schedulerName names it; best-effort pods by the forecast of each node."


def main(argv: list[str] | None = None) -> int:
    """Run the scheduler until SIGTERM or SIGINT; 0 after a clean stop, 2 for settings that cannot be used."""
    return run_daemon("scheduler", SchedulerSettings, _body, argv, about=_ABOUT)


def _body(daemon: Daemon[SchedulerSettings]) -> int:
    plugins = default_registry()
    config = load(daemon.settings, plugins)
    for note in config.notes:
        _log.warning("configuration", note=note)
    client = connect(_cluster(daemon.settings.cluster, config.kubeconfig), user_agent="slacktide-scheduler")
    host = SchedulerHost(daemon.settings, config, client, plugins, daemon.registry, daemon.health, daemon.stop.event)
    daemon.routes[DEBUG_ROUTE] = Queried(host.records.body)
    host.start()
    try:
        with OnSignal(host.comparer.report):
            while not daemon.stop.wait(_LOOK_SECONDS):
                if host.listed:
                    # Nodes and pods stay: looked through again and again they cost every step of the queue dearly.
                    keep_what_is_here(_COLLECT_AFTER)
                    daemon.stop.wait()
    finally:
        host.shut_down()
        client.close()
    return 0


def _cluster(settings: ClusterSettings, kubeconfig: str) -> ClusterSettings:
    """Where the API server is; what the configuration file says counts where the settings say nothing."""
    if settings.server or settings.kubeconfig:
        return settings
    return msgspec.structs.replace(settings, kubeconfig=kubeconfig)
