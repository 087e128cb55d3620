"""`slacktide events`."""

from __future__ import annotations

import click

from cli.app import App, cluster_options, examples


@click.command(
    "events",
    epilog=examples(
        "slacktide events", "slacktide events --follow --type Warning", "kubectl slacktide events -n team -o json"
    ),
)
@click.option("-f", "--follow", is_flag=True, help="Go on with those that come, until Ctrl-C.")
@click.option("-n", "--namespace", help="Only events of this namespace. Those of nodes are in `default`.")
@click.option("--about", metavar="NAME", help="Only events of the node or pod of that name.")
@click.option("--type", "kind", type=click.Choice(["Normal", "Warning"]), help="Only events of this type.")
@click.option("--reason", help="Only events with this reason, such as Evicted or DrillStarted.")
@cluster_options
@click.pass_obj
def command(
    app: App, follow: bool, namespace: str | None, about: str | None, kind: str | None, reason: str | None
) -> None:
    """Print what Slacktide told the cluster: evictions, throttling, closed nodes, drills, pods that wait. Oldest first.

    The API server forgets events after an hour where nobody has told it otherwise.
    """
    from cli.happenings import Wanted, follow_events, print_events

    wanted = Wanted(namespace=namespace, about=about, type=kind, reason=reason)
    if follow:
        follow_events(app, wanted)
    else:
        print_events(app, wanted)
