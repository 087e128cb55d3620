"""`slacktide version`."""

from __future__ import annotations

import platform

import click

import slacktide
from cli.app import App, common_options, examples


@click.command("version", epilog=examples("slacktide version", "slacktide version --output json"))
@common_options
@click.pass_obj
def command(app: App) -> None:
    """Print the version."""
    facts = {
        "version": slacktide.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    if app.out.json:
        app.out.document(facts)
    else:
        app.out.text(f"slacktide {facts['version']} (Python {facts['python']}, Linux {facts['kernel']})")
