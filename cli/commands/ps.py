"""`slacktide ps`."""

from __future__ import annotations

import click

from cli.app import App, cluster_options, examples


@click.command(
    "ps",
    epilog=examples("slacktide ps", "slacktide ps --tier be", "slacktide ps --output json | jq -r '.pods[].name'"),
)
@click.option("--tier", type=click.Choice(["be", "ls", "system"]), help="Only pods of this tier.")
@click.option("-n", "--namespace", help="Only pods of this namespace.")
@cluster_options
@click.pass_obj
def command(app: App, tier: str | None, namespace: str | None) -> None:
    """List pods: what they are, what they asked for, what they use, why they wait or failed."""
    from cli import podview
    from slacktide.cluster import PODS

    client = app.client()
    # In a cluster each node's agent measures, and none can be asked for all.
    measured = None if app.in_cluster else app.agent_status(app.state())
    used = podview.by_uid(measured.pods if measured else [])
    listed = client.list(PODS, namespace=namespace).items
    now = app.now()
    lines = [podview.line(pod, used.get(pod.metadata.uid), now) for pod in listed]
    if tier:
        lines = [item for item in lines if item.tier == tier.upper()]
    lines.sort(key=lambda item: (item.namespace, item.name))
    if app.out.json:
        app.out.document(podview.Pods(pods=lines))
    elif lines:
        names = [f"{item.namespace}/{item.name}" for item in lines]
        rows = [podview.cells(item, wide=app.out.wide) for item in lines]
        app.out.listing("pod", names, podview.columns(wide=app.out.wide), rows)
    else:
        app.out.say("no pods")
