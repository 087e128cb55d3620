"""The `slacktide` command. Each command is a file in `cli.commands`, imported when it is named."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final

import click

import slacktide
from cli.app import App, common_options, examples
from cli.exits import BROKEN_PIPE, FAILED, INTERRUPTED, OK, USAGE, code_of
from slacktide.errors import SettingsError, SlacktideError

COMMANDS: Final = (
    "up",
    "down",
    "run",
    "ps",
    "logs",
    "rm",
    "top",
    "events",
    "forecast",
    "savings",
    "explain",
    "placement-check",
    "simulate",
    "convert",
    "drill",
    "doctor",
    "agent",
    "history",
    "backtest",
    "withdraw",
    "demo",
    "completion",
    "version",
)


class Commands(click.Group):
    """Finds commands by their file name, so that none is imported before it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command of that name, None when there is none."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"cli.commands.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command


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
        sys.stderr.write(f"slacktide: {error}\n")
        return code_of(error)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone; without this, the interpreter would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
