"""`slacktide simulate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App, cluster_options, examples, quiet_logs
from cli.exits import OK

if TYPE_CHECKING:
    from scheduler_plugins.simulation.outcome import Outcome

_SHOWN_NODES = 4


@click.command(
    "simulate",
    epilog=examples(
        "kubectl get nodes,pods -A -o json > cluster.json && slacktide simulate cluster.json",
        "slacktide simulate cluster.json --replace --tier be --configuration mine.yaml --scores 3",
        "slacktide simulate cluster.json --arrivals day.csv --hours 24 -o json | jq '.totals'",
    ),
)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("--configuration", metavar="FILE", help="KubeSchedulerConfiguration to try; default: what ships.")
@click.option("--arrivals", metavar="FILE", help="CSV of pods that come and go (docs/placement.md).")
@click.option(
    "--pending/--no-pending", default=None, help="Place pods that wait now. [default: unless --arrivals is given]"
)
@click.option("--replace", is_flag=True, help="Take movable pods off their nodes first, and place them all anew.")
@click.option(
    "--tier", type=click.Choice(["be", "ls", "all"]), default="be", show_default=True, help="Pods that --replace moves."
)
@click.option("--namespace", "-n", metavar="NAME", help="--replace moves pods of this namespace only.")
@click.option("--profile", metavar="NAME", help="Place every pod that waits by this profile, whomever it names.")
@click.option("--seed", type=int, default=0, show_default=True, help="Breaks ties among equally good nodes.")
@click.option("--hours", type=click.FloatRange(0, 8760, min_open=True), help="Simulate so long; default: to the end.")
@click.option("--ageing", is_flag=True, help="Let forecasts expire; default: those that are fresh are repeated.")
@click.option(
    "--scores", type=click.IntRange(0, 1000), default=0, show_default=True, help="Score tables of the last N cycles."
)
@click.option("--ask-extenders", is_flag=True, help="Ask the extenders of --configuration too, but never to bind.")
@cluster_options
@click.pass_obj
def command(app: App, /, pending: bool | None, arrivals: str | None, **options: object) -> int:
    """Run nodes and pods through the scheduler's own code, without a cluster and without waiting.

    Nodes and pods come from files of `kubectl get nodes,pods -A -o json`, from the cluster of --kubeconfig or
    --context, or from the running Slacktide; nothing there is changed. The same input and seed give the same result.
    """
    from cli.simulated import Asked, document, run

    quiet_logs()
    wanted = pending if pending is not None else arrivals is None
    asked = Asked(pending=wanted, arrivals=arrivals, **options)  # type: ignore[arg-type]  # click has checked them
    outcome, notes = run(app, asked)
    for note in notes:
        app.out.say(f"configuration: {note}")
    if app.out.json:
        app.out.document(document(outcome))
        return OK
    _show(app, outcome)
    return OK


def _show(app: App, outcome: Outcome) -> None:
    from cli.cycles import drowned, table
    from cli.simulated import COUNT_COLUMNS, POD_COLUMNS, count_rows, cycles, node_table, pod_cells

    app.out.table(POD_COLUMNS, map(pod_cells, outcome.pods))
    app.out.text("")
    app.out.table(COUNT_COLUMNS, count_rows(outcome))
    app.out.text("")
    app.out.table(*node_table(outcome.nodes))
    for cycle in cycles(outcome):
        app.out.text(f"\n{cycle.pod}: {cycle.node} of {cycle.feasible} nodes that fit; raw / normalised / weighted")
        app.out.table(*table(cycle, _SHOWN_NODES))
        for line in drowned(cycle):
            app.out.text(f"* {line}")
    for remark in outcome.remarks:
        app.out.say(remark)
