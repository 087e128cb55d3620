"""`slacktide doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cli.app import App, cluster_options, examples
from cli.completing import node_names
from cli.exits import FAILED, OK

if TYPE_CHECKING:
    from cli.checks import Check


@click.command(
    "doctor",
    epilog=examples(
        "slacktide doctor",
        "slacktide doctor --output json | jq '.problems'",
        "slacktide doctor --cluster --context staging",
        "kubectl slacktide doctor --node worker-7",
        "slacktide doctor --bundle slacktide.tar.gz",
    ),
)
@click.option("--cluster", "of_cluster", is_flag=True, help="Look at a Kubernetes cluster instead of this machine.")
@click.option("--node", metavar="NAME", shell_complete=node_names, help="Look at one node, and at what its agent says.")
@click.option(
    "--namespace",
    "-n",
    metavar="NAME",
    default="slacktide-system",
    show_default=True,
    help="Where Slacktide runs there.",
)
@click.option(
    "--kubelets",
    metavar="COUNT",
    type=click.IntRange(0, 1000),
    default=5,
    show_default=True,
    help="Kubelets of that cluster whose settings are read.",
)
@click.option(
    "--bundle", metavar="FILE.tar.gz", help="Write all that helps to find a fault into FILE, without secrets."
)
@cluster_options
@click.pass_obj
def command(app: App, of_cluster: bool, node: str | None, namespace: str, kubelets: int, bundle: str | None) -> int:
    """Say what this machine has, what Slacktide skips here, and why; or check a cluster.

    ok: it is there. skipped: Slacktide works without it and does less. problem: `slacktide up` will not work;
    the exit code is 1 then.

    With --cluster, or a kubeconfig or context: versions, kernels, clocks, kubelet settings, our components, other
    systems that do the same, permissions and admission policies, each with what to do. Nothing is changed. With --node:
    the same of one node, whether it takes pods, what its agent skips there, and when it last took a turn.

    A bundle has the findings, logs, metrics, settings, nodes, pods and our events; environment and arguments of pods,
    tokens, keys and passwords are taken out.
    """
    if node is not None:
        return _of_node(app, node, namespace, bundle, in_cluster=of_cluster or app.in_cluster)
    if of_cluster or app.in_cluster:
        from cli.clusterdoctor import run

        return run(app, namespace, kubelets, bundle)
    return _of_machine(app, bundle)


def _of_node(app: App, name: str, namespace: str, bundle: str | None, *, in_cluster: bool) -> int:
    from cli.nodedoctor import check_is_here, run

    if bundle is not None and in_cluster:
        raise click.UsageError("--bundle is of a machine or of a whole cluster: leave out --node")
    if in_cluster:
        return run(app, name, namespace)
    check_is_here(app, name)
    return _of_machine(app, bundle)


def _of_machine(app: App, bundle: str | None) -> int:
    from cli import checks
    from slacktide.kernel.hierarchy import discover

    found = checks.all_checks(app.root, discover())
    found += _from_agent(app)
    problems = sum(check.verdict == "problem" for check in found)
    if bundle is not None:
        from cli.bundling import of_machine, save

        save(app, of_machine(app, found), bundle)
    elif app.out.json:
        app.out.document(checks.Checks(checks=found, problems=problems))
    else:
        rows = [[check.name, check.verdict, check.found, check.consequence] for check in found]
        app.out.table(("CHECK", "VERDICT", "FOUND", "CONSEQUENCE"), rows)
    return FAILED if problems else OK


def _from_agent(app: App) -> list[Check]:
    """What a running agent says that it skips on this node."""
    from cli.checks import Check
    from slacktide.errors import StateError
    from standalone.state import find

    try:
        state = find(app.root)
    except StateError:
        return []  # said by the check of the state directory
    status = app.agent_status(state) if state is not None else None
    skipped = status.skipped if status else {}
    return [
        Check(name=f"agent: {name}", verdict="skipped", found=why, consequence="as the running agent says")
        for name, why in sorted(skipped.items())
    ]
