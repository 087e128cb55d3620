"""The daemons of one machine: how each is started, what must be there before it, how it says that it is ready."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace

from standalone.state import StateDir

API = "api"
STOP_ORDER = ("scheduler", "agent", "predictor", "runner", "api")
"""Nothing new is placed; then (pods end) limits are restored; the API goes last, because all others talk to it."""


@dataclass(frozen=True, slots=True)
class Component:
    """One daemon. `argv` starts with an absolute path; it is started once all of `after` have been ready."""

    name: str
    argv: tuple[str, ...]
    observe: str
    """Path of the Unix socket that serves /healthz and /readyz."""
    after: tuple[str, ...] = ()
    calm_after: tuple[str, ...] = ()
    """Also waited for, but only for a while: without them the daemon works, with them it sees a calmer machine."""


def components(state: StateDir, node: str) -> tuple[Component, ...]:
    """All daemons of a standalone node, in the order in which they are started."""
    server = ("--cluster.server", f"unix:{state.api_socket}")
    node_name = ("--node", node)
    root = ("--cgroup-root", state.cgroup_root)
    api = ("--socket", state.api_socket, "--database", state.database, "--log-dir", state.pod_logs)
    runner = (*server, *node_name, "--state-dir", state.folder("runner"), "--log-dir", state.pod_logs, *root)
    predictor = (*server, "--listen", f"unix:{state.predictor_socket}", "--history-dir", state.folder("predictor"))
    # One machine, one stream: a shorter window shows what happens sooner and costs nothing.
    window = ("--report.window-seconds", "5")
    agent = (*server, *node_name, "--state-dir", state.folder("agent"), *root, *window)
    # A fixed name lets a restarted scheduler lead at once instead of waiting for its own old lease to run out.
    scheduler = (*server, "--identity", f"slacktide-{state.instance}")
    others = (
        _component(state, API, "standalone.api", api, after=()),
        _component(state, "runner", "standalone.runner", runner),
        _component(state, "predictor", "predictor", predictor),
        _component(state, "scheduler", "scheduler_plugins", scheduler),
    )
    own = ("--own-cgroup", state.agent_cgroup, "--drill.listen", f"unix:{state.drill_socket}")
    watcher = (*agent, *own, "--predictor", f"unix:{state.predictor_socket}")
    # The CPU that the others burn while they start would be the first thing the agent measures, and the forecast
    # of a fresh node would take it for the machine's own need.
    calm = tuple(other.name for other in others)
    return (*others, replace(_component(state, "agent", "agent", watcher), calm_after=calm))


def _component(
    state: StateDir, name: str, module: str, arguments: tuple[str, ...], after: tuple[str, ...] = (API,)
) -> Component:
    config = state.config_file(name)
    chosen = ("--config", config) if os.path.exists(config) else ()
    observe = state.observe_socket(name)
    # -P: a file of the same name in the working directory must not be taken for a module of ours.
    argv = (sys.executable, "-P", "-m", module, *arguments, "--observe.listen", f"unix:{observe}", *chosen)
    return Component(name, argv, observe, after)
