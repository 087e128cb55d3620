"""`slacktide rm`."""

from __future__ import annotations

import click

from cli.app import App, common_options, examples
from cli.completing import pod_names

EXTRA_SECONDS = 15.0


@click.command(
    "rm",
    epilog=examples(
        "slacktide rm make-x7k2p",
        "slacktide rm --all --tier be",
        "slacktide rm --force stuck-pod",
    ),
)
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=pod_names)
@click.option("--all", "everything", is_flag=True, help="Every pod (of --tier, where given).")
@click.option("--tier", type=click.Choice(["be", "ls", "system"]), help="Only pods of this tier, with --all.")
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of plain names.")
@click.option("--grace", type=click.IntRange(0), metavar="SECONDS", help="Time between SIGTERM and SIGKILL.")
@click.option("--force", is_flag=True, help="Kill at once, the same as --grace 0.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return only when the pods are gone.")
@common_options
@click.pass_obj
def command(
    app: App,
    names: tuple[str, ...],
    everything: bool,
    tier: str | None,
    namespace: str,
    grace: int | None,
    force: bool,
    wait: bool,
) -> None:
    """End pods and remove them.

    Each NAME is as `slacktide ps` prints it. What runs gets SIGTERM, and SIGKILL when its grace period is over.
    """
    if bool(names) == everything:
        raise click.UsageError("give the names of pods, or --all")
    if tier and not everything:
        raise click.UsageError("--tier goes with --all")
    from cli import pods
    from slacktide.cluster import PODS
    from slacktide.tier import tier_of
    from standalone.drain import longest_grace

    client = app.local_client()
    if everything:
        found = [pod for pod in client.list(PODS).items if tier is None or tier_of(pod).value == tier.upper()]
    else:
        found = [pods.find(client, name, namespace) for name in names]
    seconds = 0 if force else grace
    removed = [pod for pod in found if pods.delete(client, pod, seconds)]
    if wait:
        pods.wait_gone(client, removed, EXTRA_SECONDS + (longest_grace(removed) if seconds is None else seconds))
    if app.out.json:
        done = [pods.Named(namespace=pod.metadata.namespace, name=pod.metadata.name) for pod in removed]
        app.out.document(pods.Removed(removed=done))
    else:
        for pod in removed:
            app.out.text(pod.metadata.name)
