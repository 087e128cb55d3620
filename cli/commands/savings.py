"""`slacktide savings`."""

from __future__ import annotations

from typing import Any

import click

from cli.app import App, common_options, examples
from cli.prometheus import prometheus_options


@click.command(
    "savings",
    epilog=examples(
        "slacktide savings --prometheus http://prometheus:9090 --days 30",
        "slacktide savings --days 7 --by node --csv > savings.csv",
        "kubectl slacktide savings --prometheus http://localhost:9090 --by day -o json",
    ),
)
@prometheus_options
@click.option(
    "--days", type=click.FloatRange(0, 400, min_open=True), default=7.0, show_default=True, help="Length of the period."
)
@click.option("--to", "end", metavar="TIME", help="Its last moment. [default: now]")
@click.option("--by", type=click.Choice(["namespace", "node", "day"]), default="namespace", show_default=True)
@click.option("--node-label", metavar="LABEL", help="Label that names the node of an agent. [default: found]")
@click.option("--namespace-label", metavar="LABEL", help="Label that names the namespace of BE pods. [default: found]")
@click.option("--csv", is_flag=True, help="Comma-separated values, for spreadsheets.")
@common_options
@click.pass_obj
def command(
    app: App,
    /,
    days: float,
    end: str | None,
    by: str,
    node_label: str | None,
    namespace_label: str | None,
    csv: bool,
    **options: Any,
) -> None:
    """Say what best-effort work got: core hours and memory hours, by whom, and how often forecasts were wrong.

    From the counters of all agents and of the predictor, as a Prometheus has kept them. What an agent could not measure
    is not in them.
    """
    import contextlib

    from cli.prometheus import client_of
    from cli.savings import COLUMNS, ask, cells, csv_text, remarks
    from cli.times import moment

    with contextlib.closing(client_of(app, options)) as client:
        last = client.now() if end is None else moment(end, "--to")
        label = {"node": node_label, "namespace": namespace_label}.get(by)
        found = ask(client, last - days * 86400, last, by, label)
    if csv:
        app.out.text(csv_text(found))
    elif app.out.json:
        app.out.document(found)
    else:
        app.out.table(COLUMNS, map(cells, [*found.rows, found.total]))
        for line in remarks(found):
            app.out.text(f"* {line}")
