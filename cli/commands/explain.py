"""`slacktide explain`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cli.app import App, cluster_options, common_options, examples
from cli.completing import node_names, pod_names

if TYPE_CHECKING:
    from cli.explaining import NodeAnswer
    from slacktide.cluster import Client
    from slacktide.objects import Node

_F = TypeVar("_F", bound=Callable[..., Any])


_OF_A_POD_THAT_IS_GONE: Final = 3


def _system_option(command: _F) -> _F:
    option = click.option(
        "--system",
        metavar="NAMESPACE",
        default="slacktide-system",
        show_default=True,
        help="Where Slacktide runs in the cluster.",
    )
    return option(command)


@click.group(
    "explain",
    epilog=examples("slacktide explain node lab-1", "slacktide explain pod nightly", "slacktide explain eviction"),
)
@common_options
def command() -> None:
    """Say in words why a number is what it is."""


@command.command("node", epilog=examples("slacktide explain node", "slacktide explain node lab-1 --changes 30"))
@click.argument("name", metavar="NODE", required=False, shell_complete=node_names)
@click.option(
    "--changes", type=click.IntRange(0, 60), default=8, show_default=True, help="Last changes of each that are shown."
)
@_system_option
@cluster_options
@click.pass_obj
def node(app: App, name: str | None, changes: int, system: str) -> int:
    """Explain what may be sold on NODE, and what its agent does there.

    Every term of the number, what made it, and what holds it back; its last changes and what moved them; where the
    ladder stands and why, at which figures each rung is entered and opens, and what it did last. Without NODE: the
    only node there is.
    """
    from cli.explainshown import show_node

    said, code = _node(app, name, system)
    if app.out.json:
        app.out.document(said.document())
    else:
        show_node(app.out, said, app.now(), changes)
    return code


def _node(app: App, name: str | None, system: str) -> tuple[NodeAnswer, int]:
    """The answer and the exit code. On this machine daemons can be asked also while its API server is away."""
    from cli.exits import NOT_RUNNING, OK
    from cli.explaining import answer_without_api, node_answer
    from cli.forecasts import standing
    from slacktide.cluster import PODS
    from slacktide.cluster.errors import Unreachable

    with contextlib.closing(app.client()) as client:
        asked = app.components(app, client, system)
        try:
            found = _found(client, name)
            pods = list(client.list(PODS, field_selector=f"spec.nodeName={found.metadata.name}").items)
        except Unreachable as error:
            if app.in_cluster:
                raise
            return answer_without_api(asked, error), NOT_RUNNING
        now = app.now()
        return node_answer(asked, standing(found, pods, now), now), OK


def _found(client: Client, name: str | None) -> Node:
    """The node of that name, or the only one. Raises CommandError that says which there are."""
    from cli.forecasts import missing_node
    from slacktide.cluster import NODES
    from slacktide.cluster.errors import NotFound

    if name:
        with contextlib.suppress(NotFound):
            return client.get(NODES, name)
    nodes = client.list(NODES).items
    if name is None and len(nodes) == 1:
        return nodes[0]
    raise missing_node(name or "", [node.metadata.name for node in nodes])


@command.command(
    "pod", epilog=examples("slacktide explain pod nightly", "slacktide explain pod team/nightly --nodes 6")
)
@click.argument("name", metavar="POD", shell_complete=pod_names)
@click.option("--namespace", "-n", default="default", show_default=True, help="Where POD is, unless its name says so.")
@click.option(
    "--nodes", type=click.IntRange(1, 20), default=4, show_default=True, help="Nodes in the score table, best first."
)
@_system_option
@cluster_options
@click.pass_obj
def pod(app: App, name: str, namespace: str, nodes: int, system: str) -> None:
    """Explain where POD is, or why it is nowhere and what can be done; what holds it there, and why it had to go.

    From the records of those who decided. The scheduler: who refused how many nodes and how near the nearest was; for a
    pod that is placed, what each plugin gave the chosen node and the next best ones. The agent: what it sets on the
    pod and why, and whether it was told to go.
    """
    from cli.exits import CommandError
    from cli.explaining import evictions_answer, pod_answer
    from cli.explainshown import show_evictions, show_pod
    from cli.pods import find, split

    key, gone = "/".join(split(name, namespace)), None
    with contextlib.closing(app.client()) as client:
        asked = app.components(app, client, system)
        try:
            said = pod_answer(app, asked, find(client, name, namespace))
        except CommandError:
            gone = evictions_answer(app, client, asked, key, None)
            if not gone.known:
                raise
    if app.out.json:
        app.out.document(gone or said)
    elif gone is None:
        show_pod(app.out, said, app.now(), nodes)
    else:
        app.out.text(f"{key}: not there any more; it was told to go:")
        show_evictions(app.out, gone, app.now(), _OF_A_POD_THAT_IS_GONE)


@command.command(
    "eviction",
    epilog=examples("slacktide explain eviction nightly", "kubectl slacktide explain eviction --node worker-7"),
)
@click.argument("name", metavar="POD", required=False, shell_complete=pod_names)
@click.option("--namespace", "-n", default="default", show_default=True, help="Where POD was, unless its name says so.")
@click.option("--node", metavar="NODE", shell_complete=node_names, help="Ask the agent of this node.")
@click.option("--most", type=click.IntRange(1, 200), default=20, show_default=True, help="Decisions that are shown.")
@_system_option
@cluster_options
@click.pass_obj
def eviction(app: App, name: str | None, namespace: str, node: str | None, most: int, system: str) -> None:
    """Explain why POD had to go, or why pods did of late: evicted, killed, frozen, or spared although asked for.

    From the audits of the agents, which outlive pods and restarts. Of one pod the numbers that decided are shown, too.
    In a cluster events say whose agents to ask; they are kept for an hour, after that give --node.
    """
    from cli.explaining import evictions_answer
    from cli.explainshown import show_evictions
    from cli.pods import split

    key = "" if name is None else "/".join(split(name, namespace))
    with contextlib.closing(app.client()) as client:
        said = evictions_answer(app, client, app.components(app, client, system), key, node)
    if app.out.json:
        app.out.document(said)
    else:
        show_evictions(app.out, said, app.now(), most)
