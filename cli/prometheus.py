"""How commands ask a Prometheus: its options, and a client that says where it was asked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cli.exits import FAILED, CommandError

if TYPE_CHECKING:
    from cli.app import App
    from predictor.prometheus.client import Client

_F = TypeVar("_F", bound=Callable[..., Any])

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
    """A client of the server that the options name. Raises click.UsageError, CommandError, PrometheusError."""
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
    return Client(access)


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
