"""`slacktide withdraw`."""

from __future__ import annotations

import click

from cli.app import App, cluster_options, examples
from slacktide.names import BATCH_CPU, BATCH_MEMORY


@click.command(
    "withdraw",
    epilog=examples(
        "slacktide withdraw --dry-run",
        "slacktide withdraw --kubeconfig ~/.kube/config --context staging",
    ),
)
@click.option(
    "--resource",
    "resources",
    multiple=True,
    metavar="NAME",
    default=(BATCH_CPU, BATCH_MEMORY),
    show_default=True,
    help="A resource that was published; give it once for each.",
)
@click.option("--dry-run", is_flag=True, help="Say which nodes would be cleaned, write nothing.")
@cluster_options
@click.pass_obj
def command(app: App, resources: tuple[str, ...], dry_run: bool) -> None:
    """Take batch resources and annotations off the nodes of a cluster.

    For after Slacktide was removed: `helm uninstall` does it by itself. Nodes whose batch resources somebody else
    publishes are left alone. Exit code 1 says that something is left. Without --kubeconfig: the cluster of the pod's
    account, of KUBECONFIG, or of ~/.kube/config.
    """
    import contextlib
    import time

    from cli.exits import CommandError
    from cli.withdrawing import withdraw

    with contextlib.closing(app.cluster_client()) as client:
        done = withdraw(client, resources, time.sleep, dry_run=dry_run)
    if app.out.json:
        app.out.document({"cleaned": done.cleaned, "foreign": done.foreign, "problems": done.problems})
    else:
        for name in done.cleaned:
            app.out.text(f"{name} {'would be cleaned' if dry_run else 'cleaned'}")
        for name in done.foreign:
            app.out.say(f"node {name}: its batch resources are not Slacktide's, left alone")
    if done.problems:
        raise CommandError("; ".join(done.problems))
