"""`slacktide up`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from cli.app import App, common_options, examples, quiet_logs
from cli.exits import FAILED, TIMED_OUT, CommandError
from standalone.state import STATE_VARIABLE, StateDir, find

if TYPE_CHECKING:
    from standalone.supervisor import ComponentReport, Supervisor, SupervisorReport

_POLL_SECONDS: Final = 0.1
_DRAW_SECONDS: Final = 0.5
_EVENTS: Final = 8


@click.command(
    "up",
    epilog=examples(
        "slacktide up",
        "slacktide up --detach && slacktide run -- make -j8",
        "slacktide --state /tmp/st up --node lab-1",
    ),
)
@click.option("--node", default="", metavar="NAME", help="Name of this node.  [default: the host name]")
@click.option("-d", "--detach", is_flag=True, help="Return when everything is ready; end it with `slacktide down`.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="With --detach: give up (4) if it is not ready by then.",
)
@common_options
@click.pass_obj
def command(app: App, node: str, detach: bool, timeout: float) -> int:
    """Start Slacktide on this machine: API server, node runner, predictor, scheduler, agent.

    In the foreground it shows live what happens, and Ctrl-C ends it all in order: pods, daemons, cgroups. A daemon
    that ends is started again.
    """
    from standalone.up import node_name

    name = node_name(node, socket.gethostname())
    if detach:
        return _detached(app, name, timeout)
    return _foreground(app, name)


def _foreground(app: App, node: str) -> int:
    from standalone.up import StartFailed, StopRequests, run

    quiet_logs()
    stop = StopRequests()
    stop.install(hangup_stops=True)
    view = _view(app)
    try:
        problems = run(app.root, node, stop, on_change=view.changed, on_turn=view.turned, say=view.say)
    except StartFailed as error:
        raise CommandError(str(error), FAILED) from None
    finally:
        view.close()
    if problems:
        raise CommandError("; ".join(problems), FAILED)
    return 0


class Lines:
    """Foreground view where nothing can be redrawn: one line, or one JSON object, a change."""

    def __init__(self, app: App) -> None:
        self._out = app.out

    def changed(self, report: ComponentReport) -> None:
        """A daemon has another status."""
        if self._out.json:
            self._out.line(report)
        else:
            self._out.text(f"{report.name}: {report.status}{f' ({report.detail})' if report.detail else ''}")

    def turned(self, supervisor: Supervisor) -> None:
        """Nothing to redraw."""

    def say(self, text: str) -> None:
        """A remark."""
        self._out.say(text)

    def close(self) -> None:
        """Nothing to put back."""


class LiveView:
    """Foreground view on a terminal: daemons, node, room, pods, last events, redrawn twice a second."""

    def __init__(self, app: App) -> None:
        from rich.live import Live

        self._app = app
        # Drawn by the supervisor's own thread: a refresh thread would buy nothing here.
        self._live = Live(console=app.out.console(), auto_refresh=False, transient=False)
        self._live.start()
        self._watcher: Any = None
        self._next = 0.0
        self._remarks: list[str] = []

    def changed(self, _: ComponentReport) -> None:
        """Drawn with the next turn."""
        self._next = 0.0

    def say(self, text: str) -> None:
        """Keep a remark below the picture."""
        self._remarks = [*self._remarks[-3:], text]
        self._next = 0.0

    def turned(self, supervisor: Supervisor) -> None:
        """Redraw when it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _DRAW_SECONDS
        self._watch(supervisor)
        self._live.update(self._picture(supervisor.report), refresh=True)

    def close(self) -> None:
        """Leave the last picture on the terminal."""
        if self._watcher is not None:
            self._watcher.stop()
        self._live.stop()

    def _watch(self, supervisor: Supervisor) -> None:
        """Ask API and agent from the moment the API answers."""
        if self._watcher is not None or supervisor.reports["api"].status != "ready":
            return
        from cli.gather import Watcher

        state = find(self._app.root)
        if state is not None:
            self._watcher = Watcher(self._app, state, self._app.connect(state), events=_EVENTS)
            self._watcher.start()

    def _picture(self, report: SupervisorReport) -> Any:
        import msgspec
        from rich.console import Group
        from rich.text import Text

        from cli.gather import Picture
        from cli.screen import draw

        last: Picture | None = self._watcher.last if self._watcher else None
        if last is None:
            last = Picture(
                at=time.time(),
                supervisor=None,
                agent=None,
                node=report.node,
                room=None,
                pods=None,
                events=[],
                silent=[],
            )
        now = msgspec.structs.replace(last, supervisor=report, at=time.time())
        height = max(3, self._live.console.height - 30)
        hint = "ending: pods first, Ctrl-C again kills them" if report.phase == "stopping" else "Ctrl-C ends it all"
        remarks = [Text(f"- {text}", style="dim") for text in self._remarks]
        return Group(draw(now, components=True, max_pods=height), *remarks, Text(hint, style="dim"))


def _view(app: App) -> Lines | LiveView:
    return LiveView(app) if sys.stdout.isatty() and not app.out.json else Lines(app)


def _detached(app: App, node: str, timeout: float) -> int:
    """Start the supervisor in the background and wait until everything is ready."""
    from standalone.state import create

    create(app.root)
    log = os.path.join(app.root, "log", "supervisor.log")
    os.makedirs(os.path.dirname(log), mode=0o700, exist_ok=True)
    process = _spawn(app, node, log)
    try:
        state, report = _wait_ready(app, process, log, timeout)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    _print_ready(app, state, report)
    return 0


def _spawn(app: App, node: str, log: str) -> subprocess.Popen[bytes]:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "standalone.up", "--state", app.root, "--node", node],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            cwd=app.root,
            env={**app.environ, STATE_VARIABLE: app.root},
        )
    finally:
        os.close(descriptor)


def _wait_ready(
    app: App, process: subprocess.Popen[bytes], log: str, timeout: float
) -> tuple[StateDir, SupervisorReport]:
    """Wait until the supervisor that was just started says ready. Raises CommandError that says why it does not."""
    from standalone.supervisor import read_report

    start, deadline = os.path.getsize(log), time.monotonic() + timeout
    while True:
        code = process.poll()
        if code is not None:
            said = _said(log, start)
            raise CommandError(said or f"the supervisor ended with exit code {code}; its log is {log}", code or FAILED)
        state = find(app.root)
        report = read_report(state) if state else None
        if state is not None and report is not None and report.pid == process.pid and report.phase == "ready":
            return state, report
        if time.monotonic() > deadline:
            late = [item for item in (report.components if report else []) if item.status != "ready"]
            raise CommandError(f"not ready within {timeout:g} s:\n{_why(late)}", TIMED_OUT)
        time.sleep(_POLL_SECONDS)


def _said(log: str, start: int) -> str:
    """What the supervisor itself said to people since it was started: its log lines aside."""
    with open(log, "rb") as file:
        file.seek(start)
        lines = file.read().decode("utf-8", "replace").splitlines()
    prefix = "slacktide-up: "
    first = next((index for index, line in enumerate(lines) if line.startswith(prefix)), None)
    return "" if first is None else "\n".join([lines[first].removeprefix(prefix), *lines[first + 1 :]])


def _why(late: list[ComponentReport]) -> str:
    from standalone.supervisor import tail

    parts = []
    for item in late:
        said = tail(item.log, 5)
        parts.append(f"{item.name}: {item.status}{f', {item.detail}' if item.detail else ''}; its log is {item.log}")
        parts += [f"    {line}" for line in said.splitlines()]
    return "\n".join(parts) or "the supervisor does not say what it does"


def _print_ready(app: App, state: StateDir, report: SupervisorReport) -> None:
    if app.out.json:
        app.out.document({"state": state.root, "api": f"unix:{state.api_socket}", "supervisor": report})
        return
    app.out.text(f"ready: node {report.node}, state directory {state.root}, supervisor {report.pid}")
    app.out.text("`slacktide run -- CMD` runs something, `slacktide top` shows it, `slacktide down` ends it all")
