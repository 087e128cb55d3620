"""How commands ask a Prometheus: its options, and a client that says where it was asked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cli.exits import FAILED, CommandError

if TYPE_CHECKING:
    from cli.app import App
    from predictor.prometheus.client import Client

_F = TypeVar("_F", bound=Callable[..., Any])

OF_NODE: Final = ("node", "kubernetes_node", "node_name", "nodename", "kubernetes_node_name")
"""Labels by which scraping names the node of an agent."""

OWN_NODE: Final = ("exported_node", "node")
"""Labels by which the predictor names the node that a figure is about."""

OWN_NAMESPACE: Final = ("exported_namespace", "namespace")
"""Labels by which an agent names the namespace that a figure is about."""

LEAST_SECONDS: Final = 900.0
"""A window is not cut into smaller parts than this when the server finds it too heavy."""

_OPTIONS: Final = (
    click.option(
        "--prometheus",
        "url",
        metavar="URL",
        envvar="SLACKTIDE_PROMETHEUS",
        show_envvar=True,
        help="Address of the Prometheus that scrapes Slacktide, with the path it is served under.",
    ),
    click.option("--token-file", metavar="FILE", help="File with a bearer token for it; read anew for each query."),
    click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Sent with each query."),
    click.option("--ca-file", metavar="FILE", help="CA that signed its certificate."),
    click.option("--cert-file", metavar="FILE", help="Certificate to show to it."),
    click.option("--key-file", metavar="FILE", help="Key of that certificate."),
)


def prometheus_options(command: _F) -> _F:
    """--prometheus and what it takes to be let in."""
    return functools.reduce(lambda made, option: option(made), reversed(_OPTIONS), command)


def client_of(app: App, options: dict[str, Any]) -> Client:
    """A client of the server that the options name, which answers.

    Raises click.UsageError, CommandError, PrometheusError, Away.
    """
    try:
        from predictor.prometheus.access import access_of
        from predictor.prometheus.client import Client
    except ImportError as error:
        raise CommandError(f"this needs slacktide[predictor] ({error.name} is not installed)", FAILED) from error
    if not options["url"]:
        raise click.UsageError("which Prometheus? Name it with --prometheus URL or SLACKTIDE_PROMETHEUS")
    names = ("token_file", "ca_file", "cert_file", "key_file")
    access = access_of(options["url"], options["headers"], **{name: options[name] for name in names})
    if access.bare:
        app.out.say(f"credentials go to {access.base} unencrypted: use https where you can")
    client = Client(access)
    # One that is not there must not take the half minute of patience that a long query has.
    client.greet()
    return client


def label_of(client: Client, metric: str, begin: float, end: float, wanted: str | None, usual: Sequence[str]) -> str:
    """Which label of `metric` to ask by: the one that is `wanted`, else the first of `usual` that its series have.

    Scraping decides: where it does not honour labels, what a component says itself is `exported_NAME`. Where the metric
    has no series at all it is as good as any. Raises CommandError that lists the labels there are, where it is none of
    these; PrometheusError, Away, TooHeavy.
    """
    from predictor.prometheus.answers import complete

    window = max(1, round(end - begin))
    found = complete(client.instant(f"topk(1, last_over_time({metric}[{window}s]))", end))
    have = {name for one in found for name in one.metric if not name.startswith("__")}
    if not have:
        return wanted or next(name for name in usual if not name.startswith("exported_"))
    choice = next((name for name in ([wanted] if wanted else usual) if name in have), None)
    if choice is not None:
        return choice
    raise CommandError(
        f"{client.access.base} has no label {wanted or usual[0]!r} on {metric}; its labels are: "
        f"{', '.join(sorted(have))} (docs/dashboards.md says how scraping should set them)",
        FAILED,
    )


def summed(client: Client, expression: Callable[[str], str], begin: float, end: float, label: str) -> dict[str, float]:
    """Values by `label` of `expression(WINDOW)` over `begin` to `end`, cut in halves where it is too much at once.

    Only for what may be added up, such as increases. Raises PrometheusError, Away, TooHeavy.
    """
    from predictor.prometheus.answers import complete
    from predictor.prometheus.errors import TooHeavy

    try:
        series = complete(client.instant(expression(f"{round(end - begin)}s"), end))
    except TooHeavy:
        if end - begin < 2 * LEAST_SECONDS:
            raise
        middle = (begin + end) / 2
        first, second = (summed(client, expression, *part, label) for part in ((begin, middle), (middle, end)))
        return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in first | second}
    return {one.metric.get(label, ""): float(one.value[1]) for one in series if one.value is not None}
