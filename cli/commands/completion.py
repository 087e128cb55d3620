"""`slacktide completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cli.app import App, common_options, examples
from cli.exits import FAILED, CommandError


@click.command(
    "completion",
    epilog=examples(
        'eval "$(slacktide completion bash)"          # in ~/.bashrc',
        'eval "$(slacktide completion zsh)"           # in ~/.zshrc',
        "slacktide completion fish > ~/.config/fish/completions/slacktide.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and names in a shell.

    kubectl completes `kubectl slacktide` by itself, once its own completion is loaded: it asks the program
    kubectl_complete-slacktide, which is installed beside kubectl-slacktide.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise CommandError(f"there is no completion for {shell}", FAILED)
    root = context.find_root()
    script = kind(root.command, {}, "slacktide", "_SLACKTIDE_COMPLETE").source()
    app = context.find_object(App) or App()
    if app.out.json:
        app.out.document({"shell": shell, "script": script})
    else:
        app.out.text(script)
