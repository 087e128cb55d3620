"""`python -m standalone.up --state DIR`: the whole of Slacktide on this machine, started, watched, and ended in order.

Start: lock, leftovers of a killed supervisor ended, sockets cleared, API first, then the others. End: scheduler
(nothing new is placed), pods through the API, agent, predictor, runner, API, and at last the cgroups and sockets of
this instance. `slacktide up` calls `run` in its own process; `slacktide up --detach` starts this module.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final

from msgspec import Meta

from slacktide.cluster import Client, connect
from slacktide.errors import SettingsError, SlacktideError, StateError
from slacktide.kernel.hierarchy import Hierarchy, discover
from slacktide.observe import get_logger, setup_logging
from slacktide.settings import ClusterSettings, DaemonSettings, load
from standalone.components import STOP_ORDER, Component, components
from standalone.drain import ClusterError, PodDrain, longest_grace, names
from standalone.state import Lock, StateDir, create, prepare, resolve
from standalone.supervisor import ComponentReport, Supervisor, read_report, stop_leftovers, tail
from standalone.sweep import sweep

TURN_SECONDS: Final = 0.2
DRAIN_EXTRA_SECONDS: Final = 15.0
"""Pods may take their grace period and this much more to be gone."""
API_PATIENCE_SECONDS: Final = 15.0
"""How long ending pods waits for an API server that does not answer."""

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


class UpSettings(DaemonSettings, frozen=True):
    """Settings of the supervisor. Those of the daemons: DIR/config/NAME.yaml and SLACKTIDE_<NAME>_... variables."""

    state: Annotated[str, Meta(description="state directory; empty is SLACKTIDE_STATE or the default of this user")] = (
        ""
    )
    node: Annotated[str, Meta(description="node name; empty is the host name of this machine")] = ""


class StopRequests:
    """Counts SIGINT and SIGTERM: the first asks for an orderly end, the second for a quick one.

    A handler only adds to a number, because setting an event from a handler may meet its own lock.
    """

    def __init__(self) -> None:
        self.count = 0
        self.reloads = 0

    def install(self, *, hangup_stops: bool) -> None:
        """Handle signals of this process. A closed terminal ends `up` in the foreground, and reloads a detached one."""
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGHUP, self._stop if hangup_stops else self._reload)

    def _stop(self, *_: object) -> None:
        self.count += 1

    def _reload(self, *_: object) -> None:
        self.reloads += 1


class StartFailed(SlacktideError):
    """A daemon that will not come up; the message ends with what it said last."""


def node_name(option: str, hostname: str) -> str:
    """Name of this node: the option, which must be a DNS label, or one made from the host name.

    Raises StateError for an option that the API would refuse.
    """
    if option:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", option):
            raise StateError(
                f"--node {option!r} is no DNS label: use at most 63 of a-z, 0-9 and '-', "
                "with a letter or digit at both ends"
            )
        return option
    label = re.sub(r"[^a-z0-9-]+", "-", hostname.lower())[:63].strip("-")
    return label or "localhost"


def run(
    root: str,
    node: str,
    stop: StopRequests,
    *,
    on_change: Callable[[ComponentReport], None] = lambda _report: None,
    on_turn: Callable[[Supervisor], None] = lambda _supervisor: None,
    say: Callable[[str], None] = lambda _text: None,
    daemons: Callable[[StateDir, str], Sequence[Component]] = components,
    drains: Callable[[StateDir], PodDrain] = lambda state: PodDrain(_connect(state)),
) -> list[str]:
    """Run everything until a stop is asked for; returns what could not be ended or removed, one sentence each.

    Raises StateError when the directory cannot be used, StartFailed when a daemon will not come up.
    """
    create(root)
    with Lock(root):
        state = prepare(root)
        _clear_leftovers(state, say)
        supervisor = Supervisor(daemons(state, node), state, node, on_change=on_change)
        failed, failure = True, ""
        try:
            failure = _watch(supervisor, stop, on_turn, say)
            failed = bool(failure)
        finally:
            # A daemon that never came up cannot end pods; those that an earlier life left are not touched either.
            problems = [] if failed else end_pods(supervisor, drains(state), stop, say, on_turn)
            problems += _end_daemons(supervisor, say)
            problems += _remove_traces(state, kill=not failed)
        if failed:
            raise StartFailed(failure)
        return problems


def clean(
    root: str,
    say: Callable[[str], None] = lambda _text: None,
    *,
    daemons: Callable[[StateDir, str], Sequence[Component]] = components,
    drains: Callable[[StateDir], PodDrain] = lambda state: PodDrain(_connect(state)),
) -> list[str]:
    """End what a killed supervisor left: daemons, pods, cgroups, sockets. Returns what stayed, one sentence each.

    API server and runner are started once more, since only they can end pods and say so in their status.
    """
    with Lock(root):
        state = prepare(root)
        # Pods are bound to the name that the node had, which only the killed supervisor wrote down.
        report = read_report(state)
        node = report.node if report else node_name("", socket.gethostname())
        _clear_leftovers(state, say)
        needed = [component for component in daemons(state, node) if component.name in {"api", "runner"}]
        supervisor = Supervisor(needed, state, node)
        try:
            problems = end_pods(supervisor, drains(state), StopRequests(), say)
        finally:
            problems = _end_daemons(supervisor, say)
        return problems + _remove_traces(state, kill=True)


def _clear_leftovers(state: StateDir, say: Callable[[str], None]) -> None:
    for name in stop_leftovers(state):
        say(f"ended {name}, left by an earlier supervisor")
    for path in state.sockets():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _watch(
    supervisor: Supervisor,
    stop: StopRequests,
    on_turn: Callable[[Supervisor], None],
    say: Callable[[str], None],
) -> str:
    """Turn until a stop is asked for (""), or until a daemon will not come up (which, and why)."""
    trouble, reloads, was_ready = "", stop.reloads, False
    while not stop.count:
        supervisor.turn()
        on_turn(supervisor)
        was_ready = was_ready or supervisor.all_ready()
        if not was_ready and (failure := supervisor.start_failure()):
            return _explain(supervisor, failure)
        if supervisor.trouble and supervisor.trouble != trouble:
            say(f"supervision is impaired: {supervisor.trouble}")
        trouble = supervisor.trouble
        if stop.reloads != reloads:
            reloads = stop.reloads
            supervisor.reload()
        time.sleep(TURN_SECONDS)
    return ""


def end_pods(
    supervisor: Supervisor,
    drain: PodDrain,
    stop: StopRequests,
    say: Callable[[str], None],
    on_turn: Callable[[Supervisor], None] = lambda _supervisor: None,
) -> list[str]:
    """Delete all pods and wait until the runner has removed them; daemons that die meanwhile are started again."""
    supervisor.begin_stop()
    supervisor.stop("scheduler")
    asked, forced, last_answer = stop.count, False, time.monotonic()
    deadline: float | None = None
    pods = []
    while True:
        supervisor.turn()
        on_turn(supervisor)
        now = time.monotonic()
        try:
            pods = drain.remaining()
            last_answer = now
            if not pods:
                return []
            if deadline is None:
                say(f"ending {len(pods)} pods: {names(pods)}")
                deadline = now + longest_grace(pods) + DRAIN_EXTRA_SECONDS
            if not forced and (stop.count > asked or now > deadline - DRAIN_EXTRA_SECONDS / 2):
                drain.force()
                forced = True
        except ClusterError as error:
            if now - last_answer > API_PATIENCE_SECONDS:
                return [f"pods could not be ended through the API: {error}"]
        if deadline is not None and now > deadline:
            return [f"pods did not end in time: {names(pods)}"]
        time.sleep(TURN_SECONDS)


def _connect(state: StateDir) -> Client:
    settings = ClusterSettings(server=f"unix:{state.api_socket}", timeout_seconds=3.0)
    return connect(settings, user_agent="slacktide-up")


def _end_daemons(supervisor: Supervisor, say: Callable[[str], None]) -> list[str]:
    supervisor.begin_stop()
    problems = [f"{name} did not end by itself and was killed" for name in STOP_ORDER if not supervisor.stop(name)]
    say("all daemons have ended")
    return problems


def _remove_traces(state: StateDir, *, kill: bool) -> list[str]:
    """Remove cgroups, sockets and the report of this instance."""
    hierarchy = discover()
    problems = [f"cgroup {path} could not be removed" for path in _sweep(hierarchy, state, kill=kill)]
    for path in (*state.sockets(), state.supervisor_file):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return problems


def _sweep(hierarchy: Hierarchy, state: StateDir, *, kill: bool) -> list[str]:
    left = [path for group in (state.cgroup_root, state.agent_cgroup) for path in sweep(hierarchy, group, kill=kill)]
    # Without `kill`, pods of an earlier life keep their groups on purpose.
    return left if kill else []


def _explain(supervisor: Supervisor, name: str) -> str:
    report = supervisor.reports[name]
    said = tail(report.log)
    text = f"{name} does not come up ({report.detail}); its log is {report.log}"
    return f"{text}\n{said}" if said else text


def main(argv: list[str] | None = None) -> int:
    """Supervise in this process until SIGTERM. Exit codes: 0 ended in order, 1 failed, 2 settings or state."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        settings = load(UpSettings, "up", arguments, os.environ).settings
    except SettingsError as error:
        sys.stderr.write("".join(f"slacktide-up: {problem}\n" for problem in error.problems))
        return EXIT_USAGE
    setup_logging("up", settings.observe)
    log = get_logger("standalone.up")
    stop = StopRequests()
    stop.install(hangup_stops=False)
    root = resolve(settings.state, os.environ, os.geteuid())

    def changed(report: ComponentReport) -> None:
        log.info("component", name=report.name, status=report.status, detail=report.detail, restarts=report.restarts)

    try:
        node = node_name(settings.node, socket.gethostname())
        problems = run(root, node, stop, on_change=changed, say=log.info)
    except StateError as error:
        sys.stderr.write(f"slacktide-up: {error}\n")
        return EXIT_USAGE
    except SlacktideError as error:
        sys.stderr.write(f"slacktide-up: {error}\n")
        return EXIT_FAILED
    for problem in problems:
        log.error("left behind", problem=problem)
    return EXIT_FAILED if problems else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
