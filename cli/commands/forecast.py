"""`slacktide forecast`."""

from __future__ import annotations

from typing import Any

import click

from cli.app import App, cluster_options, examples
from cli.completing import node_names
from cli.prometheus import prometheus_options


@click.command(
    "forecast",
    epilog=examples(
        "slacktide forecast",
        "slacktide forecast -o json | jq '.nodes[].room'",
        "slacktide forecast node-7 --plot --prometheus http://prometheus:9090",
        "slacktide forecast node-7 --plot --resource memory --hours 168 --png node-7.png",
    ),
)
@click.argument("name", metavar="NODE", required=False, shell_complete=node_names)
@click.option(
    "--plot", is_flag=True, help="Draw the history of NODE: use, expected peak, sold, and where it was wrong."
)
@click.option("--png", metavar="FILE", help="With --plot: also as a picture.")
@click.option("--resource", type=click.Choice(["cpu", "memory"]), default="cpu", show_default=True, help="With --plot.")
@click.option(
    "--hours", type=click.FloatRange(0.5, 9600), default=24.0, show_default=True, help="With --plot: how far back."
)
@click.option(
    "--node-label", metavar="LABEL", help="With --plot: label that names the node of an agent. [default: found]"
)
@prometheus_options
@cluster_options
@click.pass_obj
def command(
    app: App,
    /,
    name: str | None,
    plot: bool,
    png: str | None,
    resource: Any,
    hours: float,
    node_label: str | None,
    **options: Any,
) -> None:
    """List nodes: what they have, are expected to need, have sold and may still sell, and what the forecast is by.

    Amounts are CPU in cores / memory. `slacktide explain node NODE` says how each comes about. With --plot the history
    of one node, as a Prometheus keeps it.
    """
    if plot or png:
        _plot(app, name, png, resource, hours, node_label, options)
        return
    from cli.fleet import fleet
    from cli.forecasts import Forecasts, cells, columns, missing_node
    from slacktide.cluster import NODES, PODS

    client = app.client()
    found = fleet(client.list(NODES).items, client.list(PODS).items, app.now()).nodes
    if name is not None:
        known, found = [one.node for one in found], [one for one in found if one.node == name]
        if not found:
            raise missing_node(name, known)
    found.sort(key=lambda one: one.node)
    if app.out.json:
        app.out.document(Forecasts(nodes=found))
    elif found:
        rows = [cells(one, wide=app.out.wide) for one in found]
        app.out.listing("node", [one.node for one in found], columns(wide=app.out.wide), rows)
    else:
        app.out.say("no nodes")


def _plot(
    app: App,
    name: str | None,
    png: str | None,
    resource: Any,
    hours: float,
    node_label: str | None,
    options: dict[str, Any],
) -> None:
    import contextlib
    import os

    from cli.output import takes_unicode, terminal_columns
    from cli.plotted import ask, save_png, strips
    from cli.prometheus import client_of

    if name is None:
        raise click.UsageError("--plot draws one node: which?")
    with contextlib.closing(client_of(app, options)) as client:
        end = client.now()
        drawn = ask(client, name, resource, end - hours * 3600, end, node_label)
    if png is not None:
        save_png(drawn, png)
    if app.out.json:
        app.out.document(drawn)
        return
    plain = not takes_unicode()
    for line in strips(drawn, terminal_columns(os.environ), plain=plain):
        app.out.text(line)
