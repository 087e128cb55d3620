# ruff: noqa: INP001 - a script beside what it writes, not a package
"""Writes docs/metrics.md from the metrics that the daemons register; `--check` only says whether it is current.

Usage: python docs/generate_metrics.py [--check]. Exit code 0 is written or current, 1 is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import Metric

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# Only now, so that the script describes the checkout that it lies in and not what happens to be installed.
from agent.capabilities import Capabilities  # noqa: E402 - see above
from agent.drill_metrics import DrillMetrics  # noqa: E402 - see above
from agent.metrics import AgentMetrics  # noqa: E402 - see above
from deploy import series  # noqa: E402 - see above
from deploy.written import write_or_check  # noqa: E402 - see above
from predictor.metrics import Metrics as PredictorMetrics  # noqa: E402 - see above
from scheduler_plugins.extender.metrics import ExtenderMetrics  # noqa: E402 - see above
from scheduler_plugins.framework.cache import CacheSize  # noqa: E402 - see above
from scheduler_plugins.metrics import SchedulerMetrics  # noqa: E402 - see above
from slacktide.cluster import ClusterMetrics  # noqa: E402 - see above
from slacktide.observe import Daemon, StopSignals, build_info  # noqa: E402 - see above
from slacktide.observe.logs import _counter, _dropped  # noqa: E402 - see above
from slacktide.settings import DaemonSettings, load  # noqa: E402 - see above
from slacktide.transport.watched import ExpiryMetrics  # noqa: E402 - see above
from standalone.api.metrics import Metrics as ApiMetrics  # noqa: E402 - see above
from standalone.runner.metrics import Metrics as RunnerMetrics  # noqa: E402 - see above

TARGET: Final = ROOT / "docs" / "metrics.md"
NODES: Final = 5000
"""Size of the fleet that the series are counted for."""

_HEAD: Final = """\
# Metrics

<!-- Written by docs/generate_metrics.py from what the daemons register; `make pytest` fails when it is out of date. -->

All that the daemons export at `/metrics`. A figure that is not known has no series, or is NaN; it is never 0. Counters
end in `_total`, units are in the names. See [dashboards and alerts](dashboards.md) and [runbooks](runbooks.md).

No metric has a label for a pod. Two labels grow: `node` on the predictor, for `metrics.nodes_max` nodes at most, and
`namespace` on an agent, for 64 namespaces at most.
"""

EVERYWHERE: Final = ("Every daemon", "Client of the API", "Certificates")
"""Sections that agent and predictor have both."""

_SERIES: Final = """\
Counted from the labels, each with all its values. What really is there is less: on a machine under work, after a drill,
an agent had 158 series, a predictor 204, a scheduler 991, an extender 71. Tests hold all four to these bounds, the
predictor and the scheduler with 5,000 nodes. Of nodes beyond `metrics.nodes_max` (5000) it has sums only."""


class Idle:
    """Queue and cache of a scheduler that has nothing to do."""

    def counts(self) -> Mapping[str, int]:
        """No pods."""
        return {}

    def unschedulable_by_plugin(self) -> Mapping[tuple[str, str], int]:
        """No pods."""
        return {}

    def in_flight_counts(self) -> Mapping[str, int]:
        """No events."""
        return {}

    def size(self) -> CacheSize:
        """Nothing."""
        return CacheSize(0, 0, 0)


def _every_daemon() -> CollectorRegistry:
    registry = Daemon("test", load(DaemonSettings, "test", [], {}), StopSignals(), []).registry
    _counter(registry)
    _dropped(registry)
    build_info(registry, "test")
    return registry


def _made(make: Callable[[CollectorRegistry], object]) -> Callable[[], CollectorRegistry]:
    def registry() -> CollectorRegistry:
        made = CollectorRegistry()
        make(made)
        return made

    return registry


def _agent(registry: CollectorRegistry) -> None:
    AgentMetrics(registry, Capabilities(mode="v2", cpu_version=2))
    DrillMetrics(registry)


@dataclass(frozen=True, slots=True)
class Section:
    """The metrics of one part; `note` is a sentence below the title."""

    title: str
    registry: Callable[[], CollectorRegistry]
    note: str = ""


SECTIONS: Final = (
    Section("Every daemon", _every_daemon),
    Section("Client of the API", _made(ClusterMetrics), "Agent, predictor, scheduler, extender and node runner."),
    Section("Certificates", _made(ExpiryMetrics), "Agent, predictor and extender, where they have any."),
    Section("Agent", _made(_agent)),
    Section("Predictor", _made(PredictorMetrics)),
    Section(
        "Scheduler",
        _made(lambda registry: SchedulerMetrics(registry).watch(Idle(), Idle())),
        "Those that begin with `scheduler_` have names and labels of kube-scheduler, so its dashboards show them.",
    ),
    Section("Extender", _made(lambda registry: ExtenderMetrics(registry).watch(Idle()))),
    Section("Embedded API server", _made(ApiMetrics)),
    Section("Node runner", _made(RunnerMetrics)),
)


def families(registry: CollectorRegistry) -> Iterator[tuple[Metric, tuple[str, ...]]]:
    """Each metric of `registry` with the names of its labels, in the order of registration."""
    # The library has no public way to the labels of a metric that has no series yet.
    for collector in list(registry._collector_to_names):  # noqa: SLF001 - see above
        described = getattr(collector, "describe", None)
        for family in (described() if described is not None else ()) or collector.collect():
            labels = getattr(family, "_labelnames", None) or getattr(collector, "_labelnames", ())
            yield family, tuple(labels)


def name_of(family: Metric) -> str:
    """The name of the series as it is scraped; of a histogram, that without `_bucket`."""
    return family.name + ("_total" if family.type == "counter" else "")


def names() -> set[str]:
    """All names of all parts."""
    return {name_of(family) for section in SECTIONS for family, _ in families(section.registry())}


def document() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(line for section in SECTIONS for line in _lines(section)), *_series()])


def _lines(section: Section) -> Iterator[str]:
    yield from (f"## {section.title}", "")
    if section.note:
        yield from (section.note, "")
    yield from ("| metric | type | labels | is |", "|---|---|---|---|")
    for family, labels in families(section.registry()):
        shown = ", ".join(f"`{label}`" for label in labels)
        yield f"| `{name_of(family)}` | {family.type} | {shown} | {_text(family)} |"
    yield ""


def _text(family: Metric) -> str:
    return family.documentation.replace("|", "\\|").rstrip(".")


def bounds(*titles: str) -> tuple[int, int]:
    """(series at most, those by node left out; series for each node) of a daemon that has these sections."""
    found = [section.registry() for section in SECTIONS if section.title in titles]
    each = [pair for registry in found for pair in families(registry)]
    return series.at_most(each, {name: count for registry in found for name, count in _buckets(registry)})


def _buckets(registry: CollectorRegistry) -> Iterator[tuple[str, int]]:
    for collector in list(registry._collector_to_names):  # noqa: SLF001 - the library tells them nowhere else
        if isinstance(collector, Histogram):
            yield collector._name, len(collector._upper_bounds)  # noqa: SLF001 - see above


def _series() -> Iterable[str]:
    (agent, _), (predictor, each) = bounds(*EVERYWHERE, "Agent"), bounds(*EVERYWHERE, "Predictor")
    most = series.MOST
    rows = (
        ("each agent", f"{agent:,}", "namespaces of BE pods, drills of each kind, what the node lacks", ""),
        ("predictor", f"{predictor:,}, and {each} for each node", "nodes", f"{predictor + each * NODES:,}"),
        ("scheduler", f"{most['scheduler']:,}", "plugins, extension points", f"{most['scheduler']:,}"),
        ("extender", f"{most['extender']:,}", "plugins, extension points", f"{most['extender']:,}"),
        ("all, two replicas each", "", "", f"{NODES * agent + 2 * (predictor + each * NODES + sum_of(most)):,}"),
    )
    yield from ("## How many series", "", _SERIES, "")
    yield from (f"| | series at most | by | at {NODES:,} nodes |", "|---|---|---|---|")
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


def sum_of(most: Mapping[str, int]) -> int:
    """What scheduler and extender have together."""
    return most["scheduler"] + most["extender"]


def main(argv: list[str]) -> int:
    """Write the page, or with `--check` compare it."""
    return write_or_check(TARGET, document(), argv, "python docs/generate_metrics.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
