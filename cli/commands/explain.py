"""`slacktide explain`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from cli.app import App, cluster_options, common_options, examples

if TYPE_CHECKING:
    from cli.cycles import Scheduling
    from cli.explained import Explanation
    from cli.podexplained import PodExplanation
    from slacktide.objects import Pod


@click.group("explain", epilog=examples("slacktide explain node lab-1", "slacktide explain pod nightly -o json"))
@common_options
def command() -> None:
    """Say in words why a number is what it is."""


@command.command("node", epilog=examples("slacktide explain node", "slacktide explain node lab-1"))
@click.argument("name", metavar="NODE", required=False)
@cluster_options
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


@command.command(
    "pod", epilog=examples("slacktide explain pod nightly", "slacktide explain pod team/nightly --nodes 6")
)
@click.argument("name", metavar="POD")
@click.option("--namespace", "-n", default="default", show_default=True, help="Where POD is, unless its name says so.")
@click.option(
    "--nodes", type=click.IntRange(1, 20), default=4, show_default=True, help="Nodes in the score table, best first."
)
@cluster_options
@click.pass_obj
def pod(app: App, name: str, namespace: str, nodes: int) -> None:
    """Explain where POD is, or why it is nowhere and what can be done.

    From the scheduler's own record: who refused how many nodes and how near the nearest was; for a pod that is placed,
    what each plugin gave the chosen node and the next best ones.
    """
    from cli.podexplained import explain_pod

    found, kept, unheard = _asked(app, name, namespace)
    said = explain_pod(found, kept, time.time(), unheard)
    if app.out.json:
        app.out.document(said)
    else:
        _show_pod(app, said, nodes)


def _asked(app: App, name: str, namespace: str) -> tuple[Pod, Scheduling | None, str]:
    """The pod; what the scheduler keeps, or why that is not known."""
    from cli.pods import find

    found = find(app.client(), name, namespace)
    if app.in_cluster:
        return found, None, "the scheduler of another cluster cannot be asked from here"
    return found, app.scheduling(app.state()), "the scheduler does not answer"


def _show_pod(app: App, said: PodExplanation, nodes: int) -> None:
    from cli.cycles import REASON_COLUMNS, reason_rows, table

    where = f"{said.state} on {said.node}" if said.node else said.state
    app.out.text(f"{said.pod}: {where}; {said.why}")
    app.out.text(f"tier {said.tier}: {said.tier_why}; scheduler {said.scheduler}")
    app.out.text(f"from {said.source}")
    if said.blocking:
        app.out.text("")
        app.out.table(REASON_COLUMNS, reason_rows(said.blocking))
    if said.cycle is not None and said.cycle.scores:
        app.out.text("\nraw / normalised / weighted:")
        app.out.table(*table(said.cycle, nodes))
    for remark in said.remarks:
        app.out.text(f"* {remark}")
    for action in said.actions:
        app.out.text(f"-> {action}")
