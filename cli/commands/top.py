"""`slacktide top`."""

from __future__ import annotations

import sys
import time

import click

from cli.app import App, common_options, examples


@click.command(
    "top",
    epilog=examples("slacktide top", "slacktide top --once", "slacktide top --once --output json | jq .room.left"),
)
@click.option("--once", is_flag=True, help="One picture; the default where standard output is no terminal.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="Seconds between pictures."
)
@click.option("--all", "everything", is_flag=True, help="Show the daemons too, also when all is well.")
@common_options
@click.pass_obj
def command(app: App, once: bool, interval: float, everything: bool) -> None:
    """Show live what the node does: tiers, pods, throttling, forecast and room. Ctrl-C ends it."""
    from cli.gather import picture

    state, client = app.state(), app.client()
    once = once or not sys.stdout.isatty()
    if once:
        now = picture(app, state, client, time.time())
        if app.out.json:
            app.out.document(now)
        else:
            from cli.screen import draw

            app.out.draw(draw(now, components=everything))
    elif app.out.json:
        while True:
            app.out.line(picture(app, state, client, time.time()))
            time.sleep(interval)
    else:
        _live(app, interval, everything)


def _live(app: App, interval: float, everything: bool) -> None:
    from rich.live import Live

    from cli.gather import picture
    from cli.screen import draw

    state, client = app.state(), app.client()
    console = app.out.console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            now = picture(app, state, client, time.time())
            live.update(draw(now, components=everything, max_pods=max(3, console.height - 22)), refresh=True)
            time.sleep(interval)
