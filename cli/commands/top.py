"""`slacktide top`."""

from __future__ import annotations

import sys

import click

from cli.app import App, cluster_options, examples


@click.command(
    "top",
    epilog=examples(
        "slacktide top",
        "slacktide top --once --output json | jq .room.left",
        "kubectl slacktide top --sort room --only selling",
        "kubectl slacktide top --match gpu-",
    ),
)
@click.option("--once", is_flag=True, help="One picture; the default where standard output is no terminal.")
@click.option(
    "--interval", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="Seconds between pictures."
)
@click.option("--all", "everything", is_flag=True, help="Show the daemons too, also when all is well.")
@click.option(
    "--sort", "order", default="name", show_default=True, help="Of a fleet: name, now, peak, sold, room or age."
)
@click.option("--match", "wanted", default="", metavar="TEXT", help="Of a fleet: only nodes with TEXT in their name.")
@click.option(
    "--only",
    type=click.Choice(["all", "closed", "silent", "selling"]),
    default="all",
    show_default=True,
    help="Of a fleet: only nodes that are so.",
)
@cluster_options
@click.pass_obj
def command(app: App, once: bool, interval: float, everything: bool, order: str, wanted: str, only: str) -> None:
    """Show live what happens. Ctrl-C ends it.

    On one machine: tiers, pods, throttling, forecast and room. Of a cluster: all nodes, with what LS uses and is
    expected to use, what is sold and what may still be sold.
    """
    from cli.watching import watch_fleet, watch_node

    once = once or not sys.stdout.isatty()
    if app.in_cluster:
        watch_fleet(app, order, wanted, only, None if once else interval)
    else:
        watch_node(app, None if once else interval, everything=everything)
