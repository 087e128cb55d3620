"""`slacktide drill`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App, cluster_options, examples
from cli.exits import FAILED, OK

if TYPE_CHECKING:
    from cli.drills import Rehearsal
    from slacktide.transport import Connection

_START_SECONDS = 30.0


@click.command(
    "drill",
    epilog=examples(
        "slacktide drill --dry-run",
        "kubectl slacktide drill worker-7 --victims 1 --reason 'game day'",
        "kubectl slacktide drill worker-7 --agent 127.0.0.1:7444 --token-file token",
    ),
)
@click.argument("node", required=False)
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True, help="Of pressure.")
@click.option("--load", "percent", type=click.IntRange(1, 100), metavar="PERCENT", help="Burn so much of idle CPU too.")
@click.option("--victims", type=click.IntRange(0, 1000), default=0, show_default=True, help="Pods that may be evicted.")
@click.option("--dry-run", is_flag=True, help="Evict nobody; name those who would be.")
@click.option("--reason", default="by hand", show_default=True, help="For the event on the node.")
@click.option(
    "--patience", type=click.FloatRange(1, 7200), default=180.0, show_default=True, help="Seconds until it is ended."
)
@click.option("--namespace", "-n", default="slacktide-system", show_default=True, help="Where Slacktide runs.")
@click.option(
    "--account",
    metavar="NAMESPACE/NAME",
    default="slacktide-system/slacktide-operator",
    show_default=True,
    help="Account that may drill; a token of it is made for this call alone.",
)
@click.option("--agent", metavar="HOST:PORT", default="", help="The agent, such as a port that kubectl forwards.")
@click.option("--server-name", default="slacktide-agent", show_default=True, help="In the agent's certificate.")
@click.option("--ca-file", metavar="FILE", default="", help="Instead of the ConfigMap slacktide-ca.")
@click.option("--token-file", metavar="FILE", default="", help="A token for drills, instead of one made now.")
@click.option("--certificate-file", metavar="FILE", default="", help="Client certificate, instead of a token.")
@click.option("--key-file", metavar="FILE", default="", help="Key of the client certificate.")
@cluster_options
@click.pass_obj
def command(
    app: App,
    /,
    node: str | None,
    seconds: float,
    percent: int | None,
    victims: int,
    dry_run: bool,
    reason: str,
    patience: float,
    **way: str,
) -> int:
    """Rehearse a flood on one node: raise LS pressure there, and see how fast BE gives way and gets its room back.

    On this machine NODE may be left out. In a cluster the agent of NODE is asked over TLS, with a token that is good
    for drills alone. A drill that nobody watches ends by itself. The exit code is 1 when it did not go well.
    """
    from cli.drills import drill
    from slacktide.v1 import drill_pb2 as pb

    request = pb.StartDrillRequest(
        node=node or "",
        pressure=pb.PRESSURE_KIND_LOAD if percent else pb.PRESSURE_KIND_SIGNAL,
        intensity_percent=percent or 0,
        duration_millis=int(seconds * 1000),
        dry_run=dry_run,
        victim_budget=victims,
        reason=reason,
    )

    def tell(news: pb.WatchDrillResponse) -> None:
        if not app.out.json and news.message:
            app.out.say(news.message)

    connection = _connect(app, node, way, patience)
    try:
        # An agent of this machine may just begin; one that shows a wrong certificate is not waited for.
        found = drill(connection, request, patience, tell, waits=not app.in_cluster)
    finally:
        connection.channel.close()
    _show(app, found)
    return FAILED if found.problem else OK


def _connect(app: App, node: str | None, way: dict[str, str], patience: float) -> Connection:
    """The agent of this machine over its socket, or that of a node of a cluster over TLS."""
    if not app.in_cluster:
        import grpc

        from cli.drills import OPTIONS
        from slacktide.transport import Connection

        return Connection(grpc.insecure_channel(f"unix:{app.state().drill_socket}", options=list(OPTIONS)))
    import contextlib

    from cli.drillreach import Reach, connect

    if node is None:
        raise click.UsageError("say which node of the cluster is to drill")
    with contextlib.closing(app.client()) as client:
        return connect(client, node, Reach(**way), patience + _START_SECONDS)


def _show(app: App, found: Rehearsal) -> None:
    if app.out.json:
        app.out.document(found)
        return
    steps = {
        "detected": found.detected_millis,
        "throttled": found.throttled_millis,
        "evicted": found.evicted_millis,
        "recovered": found.recovered_millis,
    }
    app.out.table(
        ("STEP", "AFTER"),
        [(name, "-" if millis is None else f"{millis / 1000:.2f} s") for name, millis in steps.items()],
    )
    for victim in found.victims:
        app.out.text(f"{victim.pod} {'evicted' if victim.evicted else 'spared'}: {victim.reason}")
    if found.problem:
        app.out.say(found.problem)
