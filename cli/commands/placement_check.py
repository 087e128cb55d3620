"""`slacktide placement-check`."""

from __future__ import annotations

import time

import click

from cli.app import App, cluster_options, examples
from cli.exits import OK


@click.command(
    "placement-check",
    epilog=examples(
        "slacktide placement-check",
        "kubectl get nodes,pods -A -o json > cluster.json && slacktide placement-check cluster.json",
        "slacktide placement-check cluster.json --aim pack --tier be -o json | jq '.findings'",
    ),
)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--aim",
    type=click.Choice(["spread", "pack"]),
    default="spread",
    show_default=True,
    help="spread: no node fuller than need be. pack: as few nodes as can be.",
)
@click.option(
    "--tier", type=click.Choice(["be", "ls", "all"]), default="be", show_default=True, help="Pods that may move."
)
@click.option("--namespace", "-n", metavar="NAME", help="Of this namespace only; all others stay.")
@click.option(
    "--topology",
    "topologies",
    metavar="KEY",
    multiple=True,
    default=("topology.kubernetes.io/zone",),
    show_default=True,
    help="Node label over which like pods should be even. May be given again.",
)
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=20.0, show_default=True, help="For each question.")
@cluster_options
@click.pass_obj
def command(
    app: App,
    files: tuple[str, ...],
    aim: str,
    tier: str,
    namespace: str | None,
    topologies: tuple[str, ...],
    seconds: float,
) -> int:
    """Say how far the placement of pods is from the best that requests and rules allow.

    Nodes and pods come from files of `kubectl get nodes,pods -A -o json`, from the cluster of --kubeconfig or
    --context, or from the running Slacktide. BEST is what a solver found: `exact` when a placement reaches it,
    `bound` when all that is known is that none can be better. Files are judged as of their newest forecast.
    """
    from cli.placement import COLUMNS, Wanted, cells, document, objects, run
    from scheduler_plugins.simulation.start import wall_of

    dump = objects(app, files)
    wanted = Wanted(aim="pack" if aim == "pack" else "spread", tier=tier, namespace=namespace, topologies=topologies)
    # In a dump that is older than a forecast lives nothing would be left to sell.
    now = wall_of(dump.nodes, time.time()) if files else time.time()
    found = run(dump, wanted, seconds, now, app.out.say)
    if app.out.json:
        app.out.document(document(found))
        return OK
    app.out.table(COLUMNS, [cells(one) for one in found.findings])
    for remark in found.remarks:
        app.out.say(remark)
    return OK
