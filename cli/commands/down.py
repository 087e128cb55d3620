"""`slacktide down`."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

import click

from cli.app import App, common_options, examples
from cli.exits import FAILED, TIMED_OUT, CommandError
from standalone.process import ProcessId, send, wait_gone
from standalone.state import StateDir, find, holder

_POLL_SECONDS: Final = 0.5


@click.command("down", epilog=examples("slacktide down", "slacktide down --now", "slacktide --state /tmp/st down"))
@click.option("--now", is_flag=True, help="Do not wait for the grace periods of pods.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=180.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up (4) then.",
)
@common_options
@click.pass_obj
def command(app: App, now: bool, timeout: float) -> None:
    """End all pods and all daemons, in order; leaves no process, cgroup or socket behind.

    Also cleans up after a supervisor that was killed. Succeeds when there is nothing to end.
    """
    state = find(app.root)
    if state is None:
        _report(app, "nothing was running", ended=False)
        return
    supervisor = holder(app.root)
    if supervisor is not None:
        _end(app, state, supervisor, now, timeout)
    elif os.path.exists(state.supervisor_file) or _has_groups(state):
        app.out.say("the supervisor was killed: cleaning up what it left")
        _clean(app)
    else:
        _report(app, "nothing was running", ended=False)
        return
    _report(app, "ended", ended=True)


def _end(app: App, state: StateDir, supervisor: ProcessId, now: bool, timeout: float) -> None:
    """Ask the supervisor to end, and wait until it has."""
    from standalone.supervisor import tail

    deadline = time.monotonic() + timeout
    for _ in range(2 if now else 1):
        send(supervisor, signal.SIGTERM)
        # Two signals in a row may arrive as one.
        time.sleep(_POLL_SECONDS if now else 0)
    app.out.say(f"ending pods and daemons (supervisor {supervisor.pid})")
    while not wait_gone(supervisor, _POLL_SECONDS):
        if time.monotonic() > deadline:
            raise CommandError(f"supervisor {supervisor.pid} has not ended within {timeout:g} s; try --now", TIMED_OUT)
    if _has_groups(state):
        raise CommandError(f"something was left behind:\n{tail(state.log_file('supervisor'), 5)}", FAILED)


def _clean(app: App) -> None:
    from standalone.up import clean

    problems = clean(app.root, app.out.say)
    if problems:
        raise CommandError("; ".join(problems), FAILED)


def _has_groups(state: StateDir) -> bool:
    from slacktide.kernel.hierarchy import discover
    from standalone.sweep import directories

    return bool(directories(discover(), state.cgroup_root))


def _report(app: App, text: str, *, ended: bool) -> None:
    if app.out.json:
        app.out.document({"state": app.root, "ended": ended})
    else:
        app.out.text(text)
