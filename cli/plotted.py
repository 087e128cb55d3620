"""History of a node as a picture: use, what was expected, what was offered and sold, and where the use rose above it.

`ask` takes it from a Prometheus; strips of blocks draw it on any terminal, matplotlib into a PNG.
"""

from __future__ import annotations

import datetime as dt
import importlib
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from cli.exits import FAILED, CommandError
from cli.fleet import BARS, PLAIN_BARS
from cli.output import MISSING
from cli.prometheus import OF_NODE, OWN_NODE, label_of

if TYPE_CHECKING:
    from predictor.prometheus.client import Client

Values = list[float | None]
Resource = Literal["cpu", "memory"]

STEP_SECONDS: Final = 300.0
HORIZON_SECONDS: Final = 3600.0
"""How far a peak looks ahead."""

_POINTS_MAX: Final = 2_000
_TITLE: Final = 20
_UNITS: Final[dict[Resource, tuple[str, float]]] = {"cpu": ("cores", 1000.0), "memory": ("GiB", float(1 << 30))}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity over time; None is not known."""

    name: str
    values: Values


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """What is drawn. `times` are seconds since the epoch; `exceeded` says where the use was above a peak in force."""

    node: str
    resource: str
    unit: str
    times: list[float]
    lines: list[Line]
    exceeded: list[bool]

    def of(self, name: str) -> Values:
        """The values of a line."""
        return next(line.values for line in self.lines if line.name == name)


def ask(
    client: Client, node: str, resource: Resource, begin: float, end: float, node_label: str | None = None
) -> Drawn:
    """Ask for the history of a node; `node_label` names it on series of agents, where scraping has an unusual one.

    Raises PrometheusError, Away, TooHeavy, CommandError when there is none.
    """
    from predictor.prometheus.answers import complete, grid

    step = max(STEP_SECONDS, math.ceil((end - begin) / _POINTS_MAX / STEP_SECONDS) * STEP_SECONDS)
    count = int((end - begin) // step) + 1
    unit, scale = _UNITS[resource]
    tier = "slacktide_agent_tier_cpu_millis" if resource == "cpu" else "slacktide_agent_tier_memory_bytes"
    window = f"[{round(step)}s]"
    name = node.replace("\\", r"\\").replace('"', r"\"")
    of_agent = label_of(client, tier, begin, end, node_label, OF_NODE)
    said_by = label_of(client, "slacktide_predictor_peak", begin, end, None, OWN_NODE)
    agent, about = f'{tier}{{{of_agent}="{name}",tier', f'{{{said_by}="{name}",resource="{resource}"}}{window}'
    asked = {
        "LS and SYSTEM use": (f'max(max_over_time((sum by (instance) ({agent}=~"LS|SYSTEM"}}))[{round(step)}s:]))'),
        "BE use": f'max(max_over_time({agent}="BE"}}{window}))',
        **{
            said: f"max(max_over_time(slacktide_predictor_{metric}{about}))"
            for said, metric in (("expected peak", "peak"), ("may be sold", "reclaimable"), ("sold", "sold"))
        },
    }
    lines = []
    for said, expression in asked.items():
        points = grid(complete(client.range(expression, begin, end, step)), begin, step, count)
        values = points[0].tolist() if len(points) else [math.nan] * count
        lines.append(Line(name=said, values=[None if math.isnan(value) else value / scale for value in values]))
    if all(value is None for line in lines for value in line.values):
        raise CommandError(
            f"{client.access.base} has nothing about node {node!r} in that time, by label `{of_agent}` of agents and "
            f"`{said_by}` of the predictor: `slacktide forecast` lists nodes",
            FAILED,
        )
    use, peak = lines[0].values, lines[2].values
    return Drawn(
        node=node,
        resource=resource,
        unit=unit,
        times=[begin + index * step for index in range(count)],
        lines=lines,
        exceeded=exceeded(use, peak, round(HORIZON_SECONDS / step)),
    )


def exceeded(use: Values, peak: Values, horizon: int) -> list[bool]:
    """Where the use is above the lowest peak that was said in the `horizon` points before."""
    found = []
    for index, value in enumerate(use):
        said = [one for one in peak[max(0, index - horizon) : index] if one is not None]
        found.append(value is not None and bool(said) and value > min(said) * (1 + 1e-6))
    return found


def strips(drawn: Drawn, width: int, *, plain: bool) -> list[str]:
    """Lines of text: a strip for each quantity on one scale, and marks where a peak was exceeded."""
    bars = PLAIN_BARS if plain else BARS
    cells = max(8, width - _TITLE - 10)
    known = [value for line in drawn.lines for value in line.values if value is not None]
    top = max(known) or 1.0
    text = [f"{drawn.node}, {drawn.resource}, one scale from 0 to {top:.2f} {drawn.unit}"]
    for line in drawn.lines:
        packed = pack(line.values, cells)
        newest = next((value for value in reversed(line.values) if value is not None), None)
        shown = MISSING if newest is None else f"{newest:.2f}"
        strip = "".join(
            " " if value is None else bars[min(len(bars) - 1, int(value / top * len(bars)))] for value in packed
        )
        text.append(f"{line.name:<{_TITLE}}{shown:>8}  {strip}")
    marks = pack([1.0 if one else None for one in drawn.exceeded], cells)
    count = sum(drawn.exceeded)
    text.append(f"{'above the peak':<{_TITLE}}{count:>8}  {''.join(' ' if one is None else '^' for one in marks)}")
    first, last = (dt.datetime.fromtimestamp(drawn.times[index], dt.UTC) for index in (0, -1))
    form = "%H:%M" if drawn.times[-1] - drawn.times[0] <= 2 * 86_400 else "%m-%d"
    ends = (first.strftime(form), f"{last.strftime(form)} UTC")
    gap = max(1, min(cells, len(drawn.times)) - len(ends[0]) - len(ends[1]))
    text.append(" " * (_TITLE + 10) + ends[0] + " " * gap + ends[1])
    return text


def pack(values: Sequence[float | None], cells: int) -> Values:
    """At most `cells` values: the highest known of each part."""
    if len(values) <= cells:
        return list(values)
    bounds = [round(index * len(values) / cells) for index in range(cells + 1)]
    parts = [[one for one in values[a:b] if one is not None] for a, b in itertools.pairwise(bounds)]
    return [max(part) if part else None for part in parts]


def save_png(drawn: Drawn, path: str) -> None:
    """Draw it into a file. Raises CommandError where matplotlib is missing or the file cannot be written."""
    try:
        from matplotlib.figure import Figure

        # It publishes no types for what is called here.
        dates: Any = importlib.import_module("matplotlib.dates")
    except ImportError as error:
        raise CommandError("a PNG needs matplotlib: install slacktide[backtest]", FAILED) from error
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.add_subplot()
    times = dates.date2num([dt.datetime.fromtimestamp(at, dt.UTC) for at in drawn.times])
    axes.xaxis.set_major_locator(locator := dates.AutoDateLocator())
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    for line in drawn.lines:
        axes.plot(times, [math.nan if value is None else value for value in line.values], label=line.name)
    use = drawn.of("LS and SYSTEM use")
    marked = [(at, value) for at, value, over in zip(times, use, drawn.exceeded, strict=True) if over]
    if marked:
        axes.scatter(*zip(*marked, strict=True), color="red", zorder=3, label="above the peak")
    axes.set(title=f"{drawn.node}, {drawn.resource}", ylabel=drawn.unit, ylim=(0, None))
    axes.legend(loc="upper left", fontsize="small")
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}", FAILED) from error
