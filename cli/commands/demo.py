"""`slacktide demo`."""

from __future__ import annotations

import click

from cli.app import App, common_options, examples


@click.command("demo", epilog=examples("slacktide demo", "slacktide demo --seconds 15", "slacktide demo --output json"))
@click.option(
    "--seconds",
    type=click.FloatRange(1, 60),
    default=6.0,
    show_default=True,
    help="Measured time of each of the three parts.",
)
@common_options
@click.pass_obj
def command(app: App, seconds: float) -> int:
    """Show on this machine what Slacktide does: an LS server alone, beside BE work, and beside BE work with Slacktide.

    Uses a Slacktide of its own, apart from any that is up, and leaves nothing behind.
    """
    from cli.demo import run_demo

    return run_demo("json" if app.out.json else "table", app.out.console(), seconds)
