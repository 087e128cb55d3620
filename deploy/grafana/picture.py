"""A dashboard as a picture, from what Prometheus answered to the queries of its panels; drawn with matplotlib."""

from __future__ import annotations

import datetime as dt
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib import dates
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from deploy.grafana.panels import BYTES, SECONDS, SHARE, Board, Query, Question, Shape

COLUMNS: Final = 2
_WIDTH: Final = 6.2
_HEIGHT: Final = 2.5
_DPI: Final = 80
PANEL_PIXELS: Final = round(_HEIGHT * _DPI)
"""Height of a row of panels."""
_HEADROOM: Final = 1.3
"""Room above the lines, for the legend."""
_TICKS: Final = 5
_COLOURS: Final = 200
"""Colours of the picture: fewer make a smaller file."""
_MOST_NAMED: Final = 8
"""Series that the legend names, those with the highest last value first."""
_MOST_ROWS: Final = 7
_MISSING: Final = "no data"
_NOT_YET: Final = "no figure yet"
_LABEL: Final = re.compile(r"{{\s*(\w+)\s*}}")


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels and its points (seconds since the epoch, value); NaN is not drawn."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


Ask = Callable[[Query], Sequence[Series]]
"""Answers a query over the time that is drawn."""


def picture(board: Board, ask: Ask) -> bytes:
    """The PNG of a dashboard."""
    questions = board.questions
    rows = math.ceil(len(questions) / COLUMNS)
    figure = Figure(figsize=(COLUMNS * _WIDTH, rows * _HEIGHT), layout="constrained", dpi=_DPI)
    for place, question in enumerate(questions):
        axes = figure.add_subplot(rows, COLUMNS, place + 1)
        axes.set_title(question.title, fontsize=9, loc="left")
        answers = [(query, one) for query in question.queries for one in ask(query)]
        if not answers or all(math.isnan(last(one)) for _, one in answers):
            _words(axes, [_NOT_YET if answers else _MISSING])
        elif question.shape is Shape.NUMBER:
            _words(axes, [f"{name(query, one)}: {shown(last(one), question.unit)}" for query, one in answers])
        elif question.shape is Shape.TABLE:
            _words(axes, [", ".join(one.labels.values()) for _, one in answers])
        else:
            _lines(axes, question, answers)
    return _small(figure)


def name(query: Query, series: Series) -> str:
    """The legend of a series, as Grafana makes it."""
    return _LABEL.sub(lambda found: series.labels.get(found[1], ""), query.legend).strip()


def last(series: Series) -> float:
    """The newest value that is known; NaN where none is."""
    return next((value for _, value in reversed(series.points) if not math.isnan(value)), math.nan)


def shown(value: float, unit: str) -> str:
    """A value as people read it, in one of our units of Grafana."""
    if math.isnan(value):
        return _MISSING
    if unit == SHARE:
        return f"{100 * value:.3g} %" if abs(value) < 10 else f"{100 * value:,.0f} %"
    if unit == BYTES:
        return _scaled(value, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB"))
    if unit == SECONDS:
        return f"{1000 * value:.3g} ms" if 0 < abs(value) < 1 else f"{value:,.4g} s"
    text = f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    separator = "" if unit.endswith("/s") else " "
    return text + separator + unit.removeprefix("suffix:").strip() if unit.startswith("suffix:") else text


def _scaled(value: float, base: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if abs(value) < base:
            return f"{value:.3g} {unit}"
        value /= base
    return f"{value:.3g} {units[-1]}"


def _words(axes: Any, lines: Sequence[str]) -> None:
    axes.axis("off")
    more = len(lines) - _MOST_ROWS
    kept = [*lines[:_MOST_ROWS], f"and {more} more"] if more > 0 else lines
    axes.text(0.02, 0.95, "\n".join(kept), va="top", fontsize=8 if len(kept) > 3 else 11, wrap=True)


def _lines(axes: Any, question: Question, answers: Sequence[tuple[Query, Series]]) -> None:
    ranked = sorted(answers, key=lambda one: -abs(_or_zero(last(one[1]))))
    named = {id(one) for _, one in ranked[:_MOST_NAMED]}
    if question.shape is Shape.STACK:
        _stack(axes, answers)
    else:
        for query, one in answers:
            label = name(query, one) if id(one) in named else None
            axes.plot(*_columns(one), linewidth=1, label=label or None)
    for bound, colour in ((question.warn, "goldenrod"), (question.bad, "firebrick")):
        if bound is not None and axes.get_ylim()[1] > bound / 4:
            axes.axhline(bound, color=colour, linewidth=0.8, linestyle="--")
    _scale(axes, question.unit)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, question.unit)))
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))  # type: ignore[no-untyped-call]  # the library gives it no types
    axes.tick_params(labelsize=7)
    axes.grid(linewidth=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=6, loc="upper left", ncols=2, framealpha=0.7)


def _scale(axes: Any, unit: str) -> None:
    """From 0, where nothing is below, to above the highest value; steps of bytes are powers of two."""
    bottom, top = axes.dataLim.intervaly
    # Lines that lie on 0 need a scale, too.
    top = max(top, 0.0) * _HEADROOM or 1.0
    axes.set_ylim(min(bottom * _HEADROOM, 0.0), top)
    if unit == BYTES:
        axes.yaxis.set_major_locator(MultipleLocator(2.0 ** math.ceil(math.log2(top / _TICKS))))


def _stack(axes: Any, answers: Sequence[tuple[Query, Series]]) -> None:
    moments = sorted({at for _, one in answers for at, _ in one.points})
    rows = []
    for _, one in answers:
        known = dict(one.points)
        rows.append([_or_zero(known.get(at, math.nan)) for at in moments])
    axes.stackplot([_date(at) for at in moments], *rows, labels=[name(query, one) for query, one in answers], alpha=0.6)


def _columns(series: Series) -> tuple[list[dt.datetime], list[float]]:
    return [_date(at) for at, _ in series.points], [value for _, value in series.points]


def _date(at: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(at, dt.UTC)


def _or_zero(value: float) -> float:
    """For what must be ordered or piled up; a gap is not drawn as a value anywhere else."""
    return 0.0 if math.isnan(value) else value


def _small(figure: Figure) -> bytes:
    """The PNG with few colours."""
    from PIL import Image

    plain, out = io.BytesIO(), io.BytesIO()
    figure.savefig(plain, format="png")
    plain.seek(0)
    Image.open(plain).convert("RGB").quantize(_COLOURS).save(out, "PNG", optimize=True)
    return out.getvalue()
