"""`slacktide withdraw`."""

from __future__ import annotations

import click

from cli.app import App, common_options, examples, quiet_logs
from slacktide.names import BATCH_CPU, BATCH_MEMORY


@click.command(
    "withdraw",
    epilog=examples(
        "slacktide withdraw --dry-run",
        "slacktide withdraw --kubeconfig ~/.kube/config --context staging",
    ),
)
@click.option("--kubeconfig", default="", metavar="FILE", help="Empty: the pod's account, $KUBECONFIG, ~/.kube/config.")
@click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig; empty is its current one.")
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
@common_options
@click.pass_obj
def command(app: App, kubeconfig: str, context: str, resources: tuple[str, ...], dry_run: bool) -> None:
    """Take batch resources and annotations off the nodes of a cluster.

    For after Slacktide was removed: `helm uninstall` does it by itself. Nodes whose batch resources somebody else
    publishes are left alone. Exit code 1 says that something is left.
    """
    import contextlib
    import time

    from cli.exits import CommandError
    from cli.withdrawing import withdraw
    from slacktide.cluster import connect
    from slacktide.settings import ClusterSettings

    quiet_logs()
    settings = ClusterSettings(kubeconfig=kubeconfig, context=context)
    with contextlib.closing(connect(settings, user_agent="slacktide")) as client:
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
