"""From a question to a panel of Grafana, and from a list of them to a dashboard."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models import dashboard as board_models
from grafana_foundation_sdk.models import prometheus as queries

DATASOURCE: Final = board_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
CORES: Final = "suffix: cores"
BYTES: Final = "bytes"
SECONDS: Final = "s"
SHARE: Final = "percentunit"
RATE: Final = "suffix:/s"
COUNT: Final = "short"

WIDTH: Final = 12
HEIGHT: Final = 8
RUNBOOKS: Final = "${runbooks}"

Visual = timeseries.Panel | stat.Panel | table.Panel


class Shape(enum.Enum):
    """How the answer is drawn."""

    LINES = "lines"
    STACK = "stack"
    NUMBER = "number"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of PromQL; `legend` names its series, with labels in double braces."""

    expr: str
    legend: str = ""


def meant(query: Query, node: str, rate_interval: str, range_seconds: int) -> str:
    """The expression as Grafana asks it, for one node and a range of time.

    `rate_interval` is a duration of PromQL, such as `30s`.
    """
    stands_for = {
        "$__rate_interval": rate_interval,
        "$__range_s": str(range_seconds),
        "$__range": f"{range_seconds}s",
        "$node": node,
    }
    expr = query.expr
    for name, value in stands_for.items():
        expr = expr.replace(name, value)
    return expr


@dataclass(frozen=True, slots=True)
class Question:
    """One panel: what it answers, how, and where to go when the answer is bad.

    unit      Grafana's name of the unit.
    runbook   heading of docs/runbooks.md that explains what to do.
    warn, bad values from which the answer is yellow and red; with `falling`, values below which it is.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    runbook: str
    about: str = ""
    warn: float | None = None
    bad: float | None = None
    falling: bool = False
    shape: Shape = Shape.LINES


@dataclass(frozen=True, slots=True)
class Section:
    """A row of panels."""

    title: str
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A whole dashboard. `variable` is a label that the reader chooses a value of, with the metric that has it."""

    uid: str
    title: str
    about: str
    sections: tuple[Section, ...]
    variable: tuple[str, str] | None = None

    @property
    def questions(self) -> tuple[Question, ...]:
        """All panels."""
        return tuple(question for section in self.sections for question in section.questions)


def build(board: Board) -> board_models.Dashboard:
    """The dashboard as Grafana reads it."""
    made = (
        Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(["slacktide"])
        .time("now-6h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(board_models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Slacktide")
            .type(board_models.DashboardLinkType.DASHBOARDS)
            .tags(["slacktide"])
            .as_dropdown(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus").label("Prometheus"))
        .with_variable(
            dashboard.ConstantVariable("runbooks")
            .value("/docs/runbooks.md")
            .description("where the runbooks are served")
        )
    )
    if board.variable is not None:
        made.with_variable(_chosen(*board.variable))
    for section in board.sections:
        made.with_row(dashboard.Row(section.title))
        for question in section.questions:
            made.with_panel(_panel(question))
    return made.build()


def _chosen(label: str, metric: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(label)
        .datasource(DATASOURCE)
        .query(f"label_values({metric}, {label})")
        .refresh(board_models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(board_models.VariableSort.NATURAL_ASC)
    )


def _panel(question: Question) -> Visual:
    visual = _visual(question)
    visual.title(question.title).description(question.about).unit(question.unit).datasource(DATASOURCE)
    visual.height(HEIGHT).span(WIDTH).thresholds(_thresholds(question))
    visual.links([dashboard.DashboardLink("runbook").type(board_models.DashboardLinkType.LINK).url(_address(question))])
    visual.targets(_targets(question))
    return visual


def _visual(question: Question) -> Visual:
    if question.shape is Shape.NUMBER:
        return (
            stat.Panel()
            .color_mode(models.BigValueColorMode.BACKGROUND)
            .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        )
    if question.shape is Shape.TABLE:
        return table.Panel()
    drawn = timeseries.Panel().line_width(1).fill_opacity(10).show_points(models.VisibilityMode.NEVER)
    if question.warn is not None or question.bad is not None:
        drawn.thresholds_style(common.GraphThresholdsStyleConfig().mode(models.GraphThresholdsStyleMode.DASHED))
    if question.shape is Shape.STACK:
        drawn.stacking(common.StackingConfig().mode(models.StackingMode.NORMAL)).fill_opacity(40)
    return drawn


def _thresholds(question: Question) -> dashboard.ThresholdsConfig:
    colours = ("green", "yellow", "red")
    bounds = (question.warn, question.bad)
    if question.falling:
        colours, bounds = ("red", "yellow", "green"), (question.bad, question.warn)
        if question.bad is None:
            colours = ("yellow", "yellow", "green")
    steps = [board_models.Threshold(value=None, color=colours[0])]
    steps += [
        board_models.Threshold(value=bound, color=colour)
        for bound, colour in zip(bounds, colours[1:], strict=True)
        if bound is not None
    ]
    return dashboard.ThresholdsConfig().mode(board_models.ThresholdsMode.ABSOLUTE).steps(steps)


def _address(question: Question) -> str:
    return f"{RUNBOOKS}#{question.runbook}"


def _targets(question: Question) -> list[Builder[Dataquery]]:
    made: list[Builder[Dataquery]] = []
    for index, query in enumerate(question.queries):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(chr(ord("A") + index))
        if question.shape is Shape.TABLE:
            target.instant().format(queries.PromQueryFormat.TABLE)
        else:
            target.range()
        made.append(target)
    return made
