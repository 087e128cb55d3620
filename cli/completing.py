"""Completion of names of nodes and pods, and of the command as a plugin of kubectl.

kubectl asks the program `kubectl_complete-PLUGIN` on PATH: it gets the words after the plugin's name, the last of which
is to be completed, and prints a candidate a line (a tab and a text may follow) and a colon with a number that says what
the shell does then. Source: kubectl documentation, "Create shell completion for plugins"; Cobra, ShellCompDirective.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete

from cli.app import App
from slacktide.errors import SlacktideError

if TYPE_CHECKING:
    from slacktide.cluster.kinds import Kind

_FILES: Final = 0
_NO_FILES: Final = 4
_DIRECTORIES: Final = 16


def main(argv: Sequence[str] | None = None) -> int:
    """Answer kubectl: `kubectl_complete-slacktide WORD...`."""
    from cli.main import cli

    *words, incomplete = (sys.argv[1:] if argv is None else argv) or [""]
    shell = ShellComplete(cli, {"obj": App(kubectl=True)}, "kubectl slacktide", "")
    found = shell.get_completions(list(words), incomplete)
    for item in found:
        if item.type == "plain":
            sys.stdout.write(f"{item.value}\t{item.help}\n" if item.help else f"{item.value}\n")
    kinds = {item.type for item in found}
    after = _DIRECTORIES if "dir" in kinds else _FILES if "file" in kinds else _NO_FILES
    sys.stdout.write(f":{after}\n")
    return 0


def node_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Names of nodes that begin so; none where nobody answers, since a person is typing."""
    from slacktide.cluster import NODES

    return [CompletionItem(name) for _, name in _names(context, NODES) if name.startswith(incomplete)]


def pod_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Names of pods that begin so, as `ps` prints them: NAME in the namespace of --namespace, NAMESPACE/NAME else."""
    from slacktide.cluster import PODS

    here = context.params.get("namespace") or "default"
    said = (name if namespace == here else f"{namespace}/{name}" for namespace, name in _names(context, PODS))
    return [CompletionItem(name) for name in said if name.startswith(incomplete)]


def _names(context: click.Context, kind: Kind[Any]) -> list[tuple[str, str]]:
    app = context.find_object(App) or App()
    try:
        with contextlib.closing(app.client()) as client:
            return sorted((one.metadata.namespace, one.metadata.name) for one in client.list(kind).items)
    except SlacktideError:
        return []


if __name__ == "__main__":
    sys.exit(main())
