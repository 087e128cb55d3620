"""`slacktide forecast`."""

from __future__ import annotations

import time

import click

from cli.app import App, cluster_options, examples


@click.command("forecast", epilog=examples("slacktide forecast", "slacktide forecast -o json | jq '.nodes[].room'"))
@cluster_options
@click.pass_obj
def command(app: App) -> None:
    """List nodes: what they have, are expected to need, have sold and may still sell, and what the forecast is by.

    Amounts are CPU in cores / memory. `slacktide explain node NODE` says how each comes about.
    """
    from cli.fleet import fleet
    from cli.forecasts import COLUMNS, cells
    from slacktide.cluster import NODES, PODS

    client = app.client()
    found = fleet(client.list(NODES).items, client.list(PODS).items, time.time()).nodes
    found.sort(key=lambda one: one.node)
    if app.out.json:
        app.out.document({"nodes": found})
    elif found:
        app.out.listing("node", [one.node for one in found], COLUMNS, [cells(one) for one in found])
    else:
        app.out.say("no nodes")
