"""`slacktide history`: what the predictor remembers of the cluster's use."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from cli.app import App, common_options, examples
from cli.exits import FAILED, OK, USAGE, CommandError

if TYPE_CHECKING:
    from predictor.history import History
    from predictor.prometheus.client import Client
    from predictor.prometheus.importer import Importer, Outcome, Plan, Wish

_DIRECTORY = click.option(
    "--history-dir",
    metavar="DIR",
    help="Directory of the history, as the predictor has it. [default: that of this instance]",
)


@click.group(
    "history",
    epilog=examples(
        "slacktide history import --prometheus http://prometheus.monitoring:9090 --dry-run",
        "slacktide history import --prometheus https://thanos.example/prometheus --token-file /run/token --days 14",
        "slacktide history info",
        "slacktide history export --out use.parquet",
    ),
)
@common_options
def command() -> None:
    """See to what the predictor remembers of the use of nodes and pods.

    Only one process can have a history open: stop the predictor first, or import into a new directory.
    """


@command.command(
    "import",
    epilog=examples(
        "slacktide history import --prometheus http://localhost:9090 --dry-run",
        "slacktide history import --prometheus https://mimir.example/prometheus --header 'X-Scope-OrgID: team-a' \\",
        "    --match 'cluster=\"prod\"' --from 2026-11-01 --to 2026-11-15",
    ),
)
@click.option("--prometheus", "url", required=True, metavar="URL", help="Address, with the path it is served under.")
@click.option("--from", "begin", metavar="TIME", help="First moment: 2026-11-01, 2026-11-01T06:00Z or epoch seconds.")
@click.option("--to", "end", metavar="TIME", help="Last moment. [default: ten minutes ago]")
@click.option(
    "--days",
    type=click.FloatRange(0.01, 400),
    default=14.0,
    show_default=True,
    help="How far back, where --from is not given.",
)
@_DIRECTORY
@click.option(
    "--step",
    metavar="DURATION",
    help="Time between two windows in a slot: a divisor of 5m, from 5s to 60s. [default: as often as it scrapes]",
)
@click.option("--node-label", metavar="LABEL", help="Label that names the node in cAdvisor's series. [default: found]")
@click.option("--match", "matches", multiple=True, metavar="MATCHER", help="Only such series: 'cluster=\"prod\"'.")
@click.option("--pods/--no-pods", default=True, show_default=True, help="Also the use of single pods, by hours.")
@click.option("--token-file", metavar="FILE", help="File with a bearer token; read anew for each query.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Sent with each query.")
@click.option("--ca-file", metavar="FILE", help="CA that signed the server's certificate.")
@click.option("--cert-file", metavar="FILE", help="Certificate to show to the server.")
@click.option("--key-file", metavar="FILE", help="Key of that certificate.")
@click.option(
    "--rate",
    type=click.FloatRange(0.01, 100),
    default=10.0,
    show_default=True,
    help="At most so many queries a second.",
)
@click.option(
    "--timeout",
    "answer_seconds",
    type=click.FloatRange(1, 3600),
    default=120.0,
    show_default=True,
    help="Seconds for one query.",
)
@click.option("--again", is_flag=True, help="Also what was imported from there before.")
@click.option("--dry-run", is_flag=True, help="Look at the server and say what would be done; store nothing.")
@common_options
@click.pass_obj
def import_(app: App, /, dry_run: bool, history_dir: str | None, **options: Any) -> int:
    """Fill the history from a Prometheus, Thanos, Mimir or VictoriaMetrics, so that forecasts need not wait a week.

    A second run goes on where the first one ended, and changes nothing that Slacktide measured itself. The exit code
    is 1 when something could not be had.
    """
    _need_predictor()
    from predictor.history import open_history
    from predictor.prometheus.client import Client, Manners
    from predictor.prometheus.importer import Importer

    access, wish = _access(app, options), _wish(options)
    client = Client(access, Manners(per_second=options["rate"], answer_seconds=options["answer_seconds"]))
    try:
        if dry_run:
            return _look(app, client, Importer(client, None, wish))
        history = open_history(_directory(app, history_dir))
        try:
            return _import(app, client, Importer(client, history, wish))
        finally:
            history.close()
    finally:
        client.close()


def _access(app: App, options: dict[str, Any]) -> Any:
    from predictor.prometheus.access import access_of

    access = access_of(
        options["url"],
        options["headers"],
        options["token_file"],
        options["ca_file"],
        options["cert_file"],
        options["key_file"],
    )
    if access.bare:
        app.out.say(f"credentials go to {access.base} unencrypted: use https where you can")
    return access


def _wish(options: dict[str, Any]) -> Wish:
    from cli.times import moment, step_seconds
    from predictor.prometheus.importer import Wish
    from predictor.prometheus.queries import matcher

    end = time.time() if options["end"] is None else moment(options["end"], "--to")
    begin = end - options["days"] * 86400 if options["begin"] is None else moment(options["begin"], "--from")
    if begin >= end:
        raise click.UsageError("--from must be before --to")
    return Wish(
        from_second=begin,
        to_second=end,
        extra=tuple(matcher(text) for text in options["matches"]),
        node_label=options["node_label"],
        step=None if options["step"] is None else step_seconds(options["step"]),
        pods=options["pods"],
        again=options["again"],
    )


def _look(app: App, client: Client, importer: Importer) -> int:
    from cli.imported import describe

    plan = importer.plan()
    _remark(app, client, plan)
    described = describe(plan)
    if app.out.json:
        app.out.document(described)
    else:
        for line in described.lines():
            app.out.text(line)
    return OK


def _import(app: App, client: Client, importer: Importer) -> int:
    from cli.imported import ProgressLine, describe, result

    plan = importer.plan()
    _remark(app, client, plan)
    if not app.out.json:
        for line in describe(plan).lines():
            app.out.say(line)
    progress = ProgressLine()
    try:
        outcome = importer.run(plan, progress.tell)
    except KeyboardInterrupt:
        progress.clear()
        app.out.say("stopped; what was imported stays, and the same command goes on from there")
        raise
    progress.clear()
    told = result(plan, outcome, client.queries)
    if app.out.json:
        app.out.document(told)
    else:
        for line in told.lines():
            app.out.text(line)
    _advise(app, outcome)
    return OK if outcome.complete else FAILED


def _remark(app: App, client: Client, plan: Plan) -> None:
    if abs(client.skew_seconds) > 30:
        app.out.say(
            f"the clock of the server is {client.skew_seconds:+.0f} s off this machine's; its own times are used"
        )
    for remark in plan.survey.remarks:
        app.out.say(remark)


def _advise(app: App, outcome: Outcome) -> None:
    for problem in outcome.problems:
        app.out.say(problem)
    if not outcome.complete:
        app.out.say("not everything is there: the same command goes on with what is missing")


@command.command("info", epilog=examples("slacktide history info", "slacktide history info --output json"))
@_DIRECTORY
@common_options
@click.pass_obj
def info(app: App, history_dir: str | None) -> None:
    """Say what the history holds: nodes, the days that are covered, gaps, bytes."""
    _need_predictor()
    from cli.imported import holding

    history = _existing(_directory(app, history_dir))
    try:
        held = holding(history)
    finally:
        history.close()
    if app.out.json:
        app.out.document(held)
        return
    for line in held.lines():
        app.out.text(line)
    if held.nodes:
        app.out.table(held.COLUMNS, held.rows())


@command.command(
    "export",
    epilog=examples(
        "slacktide history export --out use.parquet",
        "slacktide history export --out memory.parquet --resource memory --from 2026-11-01",
        "slacktide history export --out pods.parquet --kind pods",
        "slacktide backtest use.parquet",
    ),
)
@click.option("--out", required=True, metavar="FILE.parquet", help="File to write.")
@click.option(
    "--kind",
    type=click.Choice(["protected", "ls", "system", "be", "capacity", "pods"]),
    default="protected",
    show_default=True,
    help="Which use: protected is LS + SYSTEM, what forecasts are of; pods is by hours.",
)
@click.option("--resource", type=click.Choice(["cpu", "memory"]), default="cpu", show_default=True)
@click.option("--from", "begin", metavar="TIME", help="First moment. [default: all]")
@_DIRECTORY
@common_options
@click.pass_obj
def export(app: App, out: str, kind: str, resource: str, begin: str | None, history_dir: str | None) -> None:
    """Write the history to a Parquet file: time, series, node, usage, request."""
    _need_predictor()
    from cli.times import moment
    from predictor.export import export_history

    since = None if begin is None else moment(begin, "--from")
    rows = export_history(_directory(app, history_dir), out, kind=kind, resource=resource, since=since)
    if app.out.json:
        app.out.document({"path": out, "rows": rows})
    else:
        app.out.say(f"{rows} rows written to {out}")


def _need_predictor() -> None:
    """Raises CommandError where the packages of the predictor are not installed."""
    try:
        import duckdb  # noqa: F401 - only whether it is there
        import numpy  # noqa: F401, ICN001 - only whether it is there
    except ImportError as error:
        raise CommandError(f"{error}; this command needs: pip install 'slacktide[predictor]'", USAGE) from error


def _directory(app: App, asked: str | None) -> str:
    """The history of this instance where none is named. Raises StateError when there is no instance."""
    from slacktide.errors import StateError
    from standalone.state import find

    if asked is not None:
        return asked
    state = find(app.root)
    if state is None:
        raise StateError(
            f"{app.root} is no state directory of Slacktide: name the predictor's own with --history-dir "
            "(in a cluster /var/lib/slacktide/predictor)"
        )
    return state.folder("predictor")


def _existing(directory: str) -> History:
    """The history there. Raises StateError when there is none."""
    from predictor.history import open_history
    from predictor.storage import FILE_NAME
    from slacktide.errors import StateError

    if not os.path.exists(os.path.join(directory, FILE_NAME)):
        raise StateError(f"there is no history in {directory}: the predictor writes one, or `history import` does")
    return open_history(directory)
