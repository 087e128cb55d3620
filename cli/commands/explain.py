"""`slacktide explain`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from cli.app import App, common_options, examples

if TYPE_CHECKING:
    from cli.explained import Explanation


@click.group("explain", epilog=examples("slacktide explain node lab-1", "slacktide explain node lab-1 -o json"))
@common_options
def command() -> None:
    """Say in words why a number is what it is."""


@command.command("node", epilog=examples("slacktide explain node", "slacktide explain node lab-1"))
@click.argument("name", metavar="NODE", required=False)
@common_options
@click.pass_obj
def node(app: App, name: str | None) -> None:
    """Explain what may be sold on NODE: every term, what made it, and what holds it back.

    Without NODE: the only node there is.
    """
    from cli.explained import explain
    from cli.forecasts import missing_node, standing
    from slacktide.cluster import NODES, PODS

    client = app.client()
    nodes = {item.metadata.name: item for item in client.list(NODES).items}
    if name is None and len(nodes) == 1:
        name = next(iter(nodes))
    if name is None or name not in nodes:
        raise missing_node(name or "", list(nodes))
    now = time.time()
    found = standing(nodes[name], list(client.list(PODS).items), now)
    if found.forecast is None:
        _nothing(app, name, found.reason)
        return
    said = explain(name, found.forecast, found.sold, found.published, now)
    if app.out.json:
        app.out.document(said)
    else:
        _show(app, said)


def _nothing(app: App, name: str, reason: str) -> None:
    if app.out.json:
        app.out.document({"node": name, "forecast": None, "reason": reason})
    else:
        app.out.text(f"{name}: nothing is sold here: {reason}")


def _show(app: App, said: Explanation) -> None:
    from cli.podview import show_age, show_bytes, show_cpu

    state = f"closed: {said.closed}" if said.closed else said.freshness
    app.out.text(f"{said.node}: {state}, {show_age(max(0.0, said.age_seconds))} old")
    rows = [
        [line.sign, line.term, show_cpu(line.amount.cpu_millis), show_bytes(line.amount.memory_bytes), line.why]
        for line in said.lines
    ]
    app.out.table(("", "TERM", "CPU", "MEMORY", "REASON"), rows)
    for remark in said.remarks:
        app.out.text(f"* {remark}")
