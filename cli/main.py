"""The `slacktide` command. Each command is a file in `cli.commands`, imported when it is named."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import click

import slacktide
from cli.app import App, common_options, examples
from cli.exits import BROKEN_PIPE, FAILED, INTERRUPTED, OK, USAGE, code_of, words_of
from cli.output import make_lenient
from slacktide.errors import SettingsError, SlacktideError

COMMANDS: Final = {
    "up": "Start Slacktide on this machine: API server, node runner, predictor, scheduler, agent.",
    "down": "End all pods and all daemons, in order; leaves no process, cgroup or socket behind.",
    "run": "Run CMD as a pod on this machine.",
    "ps": "List pods: what they are, what they asked for, what they use, why they wait or failed.",
    "logs": "Print what a pod printed.",
    "rm": "End pods and remove them.",
    "top": "Show live what happens.",
    "events": "Print what Slacktide told the cluster: evictions, throttling, closed nodes, drills, pods that wait.",
    "forecast": (
        "List nodes: what they have, are expected to need, have sold and may still sell, and what the forecast is by."
    ),
    "savings": (
        "Say what best-effort work got: core hours and memory hours, by whom, and how often forecasts were wrong."
    ),
    "explain": "Say in words why a number is what it is.",
    "placement-check": "Say how far the placement of pods is from the best that requests and rules allow.",
    "simulate": "Run nodes and pods through the scheduler's own code, without a cluster and without waiting.",
    "convert": "Turn ordinary best-effort workloads in manifests into batch workloads.",
    "drill": (
        "Rehearse a flood on one node: raise LS pressure there, and see how fast BE gives way and gets its room back."
    ),
    "doctor": "Say what this machine has, what Slacktide skips here, and why; or check a cluster.",
    "agent": "See to the agent of this machine.",
    "history": "See to what the predictor remembers of the use of nodes and pods.",
    "backtest": "Replay recorded usage and score forecasts on it: violations, savings, waste.",
    "withdraw": "Take batch resources and annotations off the nodes of a cluster.",
    "demo": (
        "Show on this machine what Slacktide does: an LS server alone, beside BE work, and beside "
        "BE work with Slacktide."
    ),
    "completion": "Print the script that completes commands, options and names in a shell.",
    "version": "Print the version.",
}
"""Commands in the order in which a newcomer needs them, with the first sentence of their help: no list needs to import
them."""


class ReaderGone(Exception):
    """Nobody reads the output any more. No OSError: click would make one of those its own, undocumented exit code."""


class Commands(click.Group):
    """Finds commands by their file name, so that none is imported before it is asked for."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """The context of a call; help is printed here."""
        with _reading():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run what was named."""
        with _reading():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """The list of the help page, of which no command need be imported."""
        with formatter.section("Commands"):
            width = formatter.width - 6 - max(map(len, COMMANDS))
            rows = [(name, textwrap.shorten(text, width, placeholder=" ...")) for name, text in COMMANDS.items()]
            formatter.write_dl(rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command of that name, None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"cli.commands.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples(
        "slacktide up --detach",
        "slacktide run --tier be -- make -j8",
        "slacktide top",
        "slacktide down",
    ),
)
@common_options
@click.version_option(slacktide.__version__, prog_name="slacktide")
def cli() -> None:
    """Let batch work use what online services leave idle, on this machine or in a cluster."""


def kubectl() -> int:
    """The same program as a plugin of kubectl: `kubectl slacktide top` asks the cluster of the current context."""
    return main(app=App(kubectl=True))


def main(argv: list[str] | None = None, app: App | None = None) -> int:
    """Run one command; returns its exit code (docs/cli.md)."""
    app = app or App()
    name = "kubectl slacktide" if app.kubectl else "slacktide"
    make_lenient()
    try:
        result = cli.main(args=argv, prog_name=name, standalone_mode=False, obj=app)
        return result if isinstance(result, int) else OK
    except click.ClickException as error:
        error.show()
        return USAGE if isinstance(error, click.UsageError) else FAILED
    except SettingsError as error:
        sys.stderr.write("".join(f"slacktide: {problem}\n" for problem in error.problems))
        return USAGE
    except SlacktideError as error:
        sys.stderr.write(f"slacktide: {words_of(error)}\n")
        return code_of(error)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except (BrokenPipeError, ReaderGone):
        # The reader has gone; without this, the interpreter would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    finally:
        app.close()


if __name__ == "__main__":
    sys.exit(main())
