"""`slacktide backtest`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click

from cli.app import App, common_options, examples
from cli.exits import FAILED, USAGE, CommandError

if TYPE_CHECKING:
    from predictor.backtest.nodes import Layout
    from predictor.backtest.replay import Replay
    from predictor.backtest.run import Plan, Result

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """`1h`, `90m`, `2d` or seconds; a float of seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds of the text."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", str(value).strip())
        if not found:
            self.fail(f"{value!r} is no duration: write 1h, 90m, 2d or seconds", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


class Part(click.ParamType[tuple[int, int]]):
    """`1/3`: the first of three parts; (fold from 0, folds)."""

    name = "part"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """The fold and how many there are."""
        found = re.fullmatch(r"(\d+)/(\d+)", str(value))
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            self.fail(
                f"{value!r} is no part: write 1/2 for the first half of the series, 2/2 for the other", param, ctx
            )
        return int(found[1]) - 1, int(found[2])


@click.command(
    "backtest",
    epilog=examples(
        "slacktide backtest usage.parquet --out forecasts.parquet",
        "slacktide backtest usage.csv --model all --horizon 1h --horizon 24h --plot models.png",
        "slacktide backtest cpu_2026-0[123].csv.gz --pack 25 --passes 6 --model published --model window_max",
        "slacktide history export --out use.parquet && slacktide backtest use.parquet",
    ),
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    default=("published",),
    show_default=True,
    help="A model, NAME+cal for one that is calibrated, published for what the product would do, all. Repeatable.",
)
@click.option("--horizon", "horizons", type=Duration(), multiple=True, default=("1h",), help="1h, 24h. Repeatable.")
@click.option("--risk", "risks", type=float, multiple=True, default=(0.01,), help="Asked share of violations.")
@click.option("--out", metavar="FILE.parquet", help="Write each forecast as a row.")
@click.option("--plot", metavar="FILE.png", help="Draw savings over violations, and one node.")
@click.option("--split", type=Part(), metavar="K/N", help="Only the series of part K of N, chosen by their names.")
@click.option("--pack", type=click.IntRange(1, 10_000), metavar="N", help="Make nodes of N series each.")
@click.option("--passes", type=click.IntRange(1, 1000), default=1, show_default=True, help="Pack so many times over.")
@click.option("--seed", type=int, default=0, show_default=True, help="Dice of packing and of intervals.")
@click.option("--every", type=Duration(), help="Time between decisions. [default: 1h; above 6h of horizon 6h]")
@click.option("--warmup", type=Duration(), help="Not scored. [default: 14d, at most half of the data]")
@click.option("--resource", type=click.Choice(["cpu", "memory"]), default="cpu", show_default=True)
@click.option("--skip-bad-rows", is_flag=True, help="Drop rows that cannot be used, and count them.")
@click.option("--scheduler", metavar="ADDRESS", help="Run on the Dask cluster of this scheduler.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes. [default: one a CPU]")
@common_options
@click.pass_obj
def command(app: App, /, files: tuple[str, ...], **options: Any) -> None:
    """Replay recorded usage and score forecasts on it: violations, savings, waste.

    FILE is long (time, series, node, usage, request: CSV or Parquet, node and request may lack) or wide (a row a
    series, a column a slot); docs/backtest.md has the names that are understood. Each forecast sees the past alone.
    """
    from predictor.backtest.forecasts import UnknownForecaster
    from predictor.backtest.run import ClusterError
    from predictor.backtest.trace import BadInput
    from predictor.backtest.write import WriteError

    try:
        _backtest(app, files, options)
    except (BadInput, UnknownForecaster) as error:
        raise CommandError(str(error), USAGE) from error
    except (ClusterError, WriteError) as error:
        raise CommandError(str(error), FAILED) from error


def _backtest(app: App, files: tuple[str, ...], options: dict[str, Any]) -> None:
    from cli import backtested
    from predictor.backtest.judge import judge
    from predictor.backtest.nodes import replays
    from predictor.backtest.read import read
    from predictor.backtest.trace import Reading
    from predictor.backtest.write import write

    plan = _plan(options)
    reading = Reading(options["resource"], skip_bad_rows=options["skip_bad_rows"])
    made, notes = replays(read(files, reading), _layout(options))
    for note in notes:
        app.out.say(note)
    results = _run(made, plan)
    rows = None if options["out"] is None else write(results, options["out"])
    verdicts = judge(made, results, options["seed"])
    if not any(verdict.score.decisions for verdict in verdicts):
        notes.append("no decision is scored: warm-up and horizon leave none; give more data or a shorter --warmup")
        app.out.say(notes[-1])
    if options["plot"]:
        from predictor.backtest.plot import draw

        draw(made, results, verdicts, options["plot"])
    lines = [backtested.line(verdict) for verdict in verdicts]
    if app.out.json:
        app.out.document(
            backtested.Backtest(
                results=lines, notes=notes, forecasts=options["out"], forecast_rows=rows, plot=options["plot"]
            )
        )
        return
    app.out.table(backtested.COLUMNS, [backtested.cells(item) for item in lines])
    if rows is not None:
        app.out.say(f"written: {options['out']}, {rows} forecasts")


def _run(made: list[Replay], plan: Plan) -> list[Result]:
    from cli.progress import Progress
    from predictor.backtest.run import run

    progress = Progress("decisions")
    try:
        return run(made, plan, progress.tell)
    finally:
        progress.clear()


def _plan(options: dict[str, Any]) -> Plan:
    from predictor.backtest.forecasts import named
    from predictor.backtest.run import Plan

    names = tuple(name for text in options["models"] for name in text.split(",") if name)
    return Plan(
        models=named(names),
        horizons=options["horizons"],
        risks=options["risks"],
        every_seconds=options["every"],
        resource=options["resource"],
        jobs=options["jobs"] or len(os.sched_getaffinity(0)),
        scheduler=options["scheduler"],
    )


def _layout(options: dict[str, Any]) -> Layout:
    from predictor.backtest.nodes import Layout, Split

    return Layout(
        pack=options["pack"],
        passes=options["passes"],
        seed=options["seed"],
        split=None if options["split"] is None else Split(*options["split"]),
        warmup_seconds=options["warmup"],
    )
