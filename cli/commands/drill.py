"""`slacktide drill`: run, list, show, report, abort."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.app import App, cluster_options, examples
from cli.completing import node_names
from cli.drillkinds import DEFAULT_SECONDS, Duration, Kind

if TYPE_CHECKING:
    from cli.drillreach import Reach

_F = TypeVar("_F", bound=Callable[..., Any])

_WAY = (
    click.option("--namespace", "-n", default="slacktide-system", show_default=True, help="Where Slacktide runs."),
    click.option(
        "--account",
        metavar="NAMESPACE/NAME",
        default="slacktide-system/slacktide-operator",
        show_default=True,
        help="Account that may drill; a token of it is made for this call alone.",
    ),
    click.option("--agent", metavar="HOST:PORT", default="", help="The agent, such as a port that kubectl forwards."),
    click.option("--server-name", default="slacktide-agent", show_default=True, help="In the agent's certificate."),
    click.option("--ca-file", metavar="FILE", default="", help="Instead of the ConfigMap slacktide-ca."),
    click.option("--token-file", metavar="FILE", default="", help="A token for drills, instead of one made now."),
    click.option("--certificate-file", metavar="FILE", default="", help="Client certificate, instead of a token."),
    click.option("--key-file", metavar="FILE", default="", help="Key of the client certificate."),
)
"""How agents of a cluster are reached."""


def _reaching(command: _F) -> _F:
    """The options of _WAY, handed over as one `reach`; and those of all commands about a cluster."""

    @functools.wraps(command)
    def call(
        *args: Any,
        namespace: str,
        account: str,
        agent: str,
        server_name: str,
        ca_file: str,
        token_file: str,
        certificate_file: str,
        key_file: str,
        **options: Any,
    ) -> Any:
        from cli.drillreach import Reach

        reach = Reach(
            namespace=namespace,
            account=account,
            agent=agent,
            server_name=server_name,
            ca_file=ca_file,
            token_file=token_file,
            certificate_file=certificate_file,
            key_file=key_file,
        )
        return command(*args, reach=reach, **options)

    made: Any = call
    for option in reversed(_WAY):
        made = option(made)
    return cluster_options(made)  # type: ignore[no-any-return] # click's decorators keep what they are given


@click.group(
    "drill",
    epilog=examples(
        "slacktide drill run --dry-run",
        "kubectl slacktide drill run --node worker-7 --victims-max 1 --reason 'game day'",
        "kubectl slacktide drill list",
        "kubectl slacktide drill report 3f9c2a7b1d04 > report.md",
    ),
)
@cluster_options
def command() -> None:
    """Rehearse a flood on one node: raise LS pressure there, and see how fast BE gives way and gets its room back.

    Or rehearse what else may happen to it: its memory runs short, its agent or the predictor is lost, its samples stay
    away. A drill that nobody watches ends by itself.
    """


@command.command(
    "run",
    epilog=examples(
        "slacktide drill run --dry-run",
        "kubectl slacktide drill run --node worker-7 --victims-max 1 --reason 'game day'",
        "kubectl slacktide drill run --selector pool=batch --pick 2 --kind agent-loss --yes --report report.md",
        "kubectl slacktide drill run --node worker-7 --agent 127.0.0.1:7444 --token-file token",
    ),
)
@click.option("--node", shell_complete=node_names, help="The node. On this machine it may be left out.")
@click.option("--selector", "-l", default="", metavar="LABELS", help="Instead: a random node with these labels.")
@click.option("--pick", type=click.IntRange(1, 1000), default=1, show_default=True, help="So many, one after another.")
@click.option(
    "--kind", type=click.Choice([kind.value for kind in Kind]), default="pressure", show_default=True, help="Of drill."
)
@click.option(
    "--intensity",
    "--load",
    "percent",
    type=click.IntRange(1, 100),
    metavar="PERCENT",
    help="With --kind pressure: burn so much of the idle CPU for real.",
)
@click.option(
    "--victims-max", type=click.IntRange(0, 1000), default=0, show_default=True, help="Pods that may be evicted."
)
@click.option(
    "--duration",
    type=Duration(0.1, 3600),
    metavar="TIME",
    help="Of the pressure: 30s, 2m. [default: 10s; 7m for predictor-loss and stale]",
)
@click.option("--dry-run", is_flag=True, help="Evict nobody; name those who would be. BE is throttled all the same.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask once the plan is shown.")
@click.option("--reason", default="by hand", show_default=True, help="For the events on node and pods.")
@click.option("--report", "report_file", metavar="FILE", default="", help="Write the report there: FILE.md, FILE.json.")
@click.option("--last-node", is_flag=True, help="Also where best-effort work has no other node to go to.")
@click.option(
    "--patience",
    type=Duration(1, 7200),
    metavar="TIME",
    help="A drill that takes longer is ended. [default: the duration and 5m]",
)
@_reaching
@click.pass_obj
def run_(
    app: App,
    /,
    node: str | None,
    selector: str,
    pick: int,
    kind: str,
    percent: int | None,
    victims_max: int,
    duration: float | None,
    dry_run: bool,
    yes: bool,
    reason: str,
    report_file: str,
    last_node: bool,
    patience: float | None,
    reach: Reach,
) -> int:
    """Show what a drill would meet, ask, drill, and hold the times against targets.

    Refused where the node is in trouble, where a disruption budget has no room for an expected victim, outside the
    hours that the node allows, and where as many drills run as may at once. Ctrl-C ends the drill and waits for the
    restore; a caller that vanishes is noticed by the node, which restores. Exit code 0: passed, 1: failed, 3: none
    began.
    """
    _check(app, node, selector, pick, kind, percent)
    if not yes and (app.out.json or not sys.stdin.isatty()):
        raise click.UsageError("nobody can be asked here: look at the plan on a terminal, or say --yes")
    from cli.drilling import Wish, run

    wanted = Kind(kind)
    wish = Wish(
        node=node,
        selector=selector,
        pick=pick,
        kind=wanted,
        seconds=DEFAULT_SECONDS[wanted] if duration is None else duration,
        load_percent=percent,
        victims_max=victims_max,
        dry_run=dry_run,
        yes=yes,
        reason=reason,
        report_file=report_file,
        patience=patience,
        last_node=last_node,
    )
    return run(app, wish, reach)


def _check(app: App, node: str | None, selector: str, pick: int, kind: str, percent: int | None) -> None:
    """Raises UsageError for options that do not go together."""
    if node is not None and selector:
        raise click.UsageError("--node and --selector are two ways to say the same: give one")
    if app.in_cluster and node is None and not selector:
        raise click.UsageError("say which node of the cluster is to drill: --node NAME, or --selector LABELS")
    if pick > 1 and not selector:
        raise click.UsageError("--pick is for the nodes of a --selector")
    if percent is not None and kind != "pressure":
        raise click.UsageError("--intensity is the load of --kind pressure; the other kinds have none")


_NODE = click.option(
    "--node", shell_complete=node_names, help="Ask this node too, which remembers its own last drills."
)


@command.command(
    "list", epilog=examples("slacktide drill list", "kubectl slacktide drill list -o wide --node worker-7")
)
@_NODE
@_reaching
@click.pass_obj
def list_(app: App, node: str | None, reach: Reach) -> None:
    """List drills that are remembered, newest first."""
    from cli.drillshown import print_list

    print_list(app, reach, node)


@command.command("show", epilog=examples("slacktide drill show 3f9c2a7b1d04"))
@click.argument("drill_id", metavar="ID")
@_NODE
@_reaching
@click.pass_obj
def show(app: App, drill_id: str, node: str | None, reach: Reach) -> None:
    """Show one drill: how it went or goes, times, pods, timeline."""
    from cli.drillshown import print_one

    print_one(app, reach, drill_id, node, markdown=False)


@command.command("report", epilog=examples("slacktide drill report 3f9c2a7b1d04 > report.md"))
@click.argument("drill_id", metavar="ID")
@_NODE
@_reaching
@click.pass_obj
def report(app: App, drill_id: str, node: str | None, reach: Reach) -> None:
    """Print the report of a drill as Markdown, or as JSON with --output json."""
    from cli.drillshown import print_one

    print_one(app, reach, drill_id, node, markdown=True)


@command.command("abort", epilog=examples("kubectl slacktide drill abort 3f9c2a7b1d04"))
@click.argument("drill_id", metavar="ID")
@_NODE
@_reaching
@click.pass_obj
def abort_(app: App, drill_id: str, node: str | None, reach: Reach) -> int:
    """End a drill that somebody began, and wait until it is over. Done again it does nothing."""
    from cli.drillshown import abort

    return abort(app, reach, drill_id, node)
