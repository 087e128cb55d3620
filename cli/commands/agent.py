"""`slacktide agent`: what can be done about the agent of this machine by hand."""

from __future__ import annotations

import click

from cli.app import App, common_options, examples
from cli.exits import FAILED, OK


@click.group("agent", epilog=examples("slacktide agent restore --dry-run", "slacktide agent restore"))
@common_options
def command() -> None:
    """See to the agent of this machine."""


@command.command(
    "restore",
    epilog=examples(
        "slacktide agent restore --dry-run",
        "slacktide agent restore",
        "slacktide agent restore --state-dir /var/lib/slacktide/agent --output json",
    ),
)
@click.option("--state-dir", metavar="DIR", help="State directory of the agent. [default: that of this instance]")
@click.option(
    "--cgroup-root",
    metavar="CGROUP",
    help="Cgroup root of the agent. [default: that of this instance; with --state-dir the whole mount]",
)
@click.option("--dry-run", is_flag=True, help="Say what would be given back; write nothing.")
@common_options
@click.pass_obj
def restore(app: App, state_dir: str | None, cgroup_root: str | None, dry_run: bool) -> int:
    """Give back what an agent that no longer runs left in the kernel: limits, weights, CPU lists, masks of threads.

    Refuses while an agent runs there (exit code 2). The exit code is 1 when something could not be given back.
    """
    from agent.act import restore as act
    from agent.restore import COLUMNS, cells

    if state_dir is None:
        state_dir, root = _of_instance(app)
    else:
        root = ""
    done = act.restore(state_dir, root if cgroup_root is None else cgroup_root, dry_run=dry_run)
    if app.out.json:
        app.out.document(done)
    elif done.rows:
        app.out.table(COLUMNS, cells(done))
    else:
        app.out.say("the journal has nothing to give back")
    if not app.out.json:
        for problem in done.problems:
            app.out.say(problem)
    return OK if done.complete else FAILED


def _of_instance(app: App) -> tuple[str, str]:
    """State directory and cgroup root of the agent of this instance. Raises StateError when there is none."""
    from slacktide.errors import StateError
    from standalone.state import find

    state = find(app.root)
    if state is None:
        raise StateError(f"{app.root} is no state directory of Slacktide: name the agent's own with --state-dir")
    return state.folder("agent"), state.cgroup_root
