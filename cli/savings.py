"""What BE got over a period, from the counters that a Prometheus keeps. `ask` asks; the rest is pure."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from cli.exits import FAILED, CommandError
from cli.output import MISSING
from cli.prometheus import OF_NODE, OWN_NAMESPACE, label_of, summed

if TYPE_CHECKING:
    from predictor.prometheus.client import Client

CPU: Final = "slacktide_agent_be_cpu_seconds_total"
MEMORY: Final = "slacktide_agent_be_memory_byte_seconds_total"
COLUMNS: Final = ("WHO", "CORE HOURS", "CORES", "SHARE", "GIB HOURS")
TOTAL: Final = "total"

_HOUR: Final = 3600.0
_DAY: Final = 86_400.0
_GIB: Final = float(1 << 30)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one of them got. `cores` is the mean over the period, `share` of all core hours; None is not known."""

    who: str
    core_hours: float | None
    cores: float | None
    share: float | None
    gib_hours: float | None


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """How often the use rose above what was forecast, of one resource. `rate` is None where nothing was judged."""

    resource: str
    judged: float
    violated: float
    rate: float | None
    asked: float | None


class Savings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Times are seconds since the epoch."""

    begin: float
    end: float
    by: str
    rows: list[Share]
    total: Share
    forecasts: list[Kept]


def ask(client: Client, begin: float, end: float, by: str, label: str | None = None) -> Savings:
    """Ask for all of it; `label` names whoever is asked `by`, where scraping gives it an unusual one.

    Raises PrometheusError, Away, TooHeavy, CommandError when nobody scraped agents then, or not with that label.
    """
    if by == "day":
        parts = {name: _of_days(client, name, begin, end) for name in (CPU, MEMORY)}
    else:
        who = label_of(client, CPU, begin, end, label, OF_NODE if by == "node" else OWN_NAMESPACE)
        parts = {name: summed(client, _increase(name, who), begin, end, who) for name in (CPU, MEMORY)}
    if not parts[CPU]:
        raise CommandError(
            f"{client.access.base} has no {CPU} in that time: does it scrape the agents, and since when?", FAILED
        )
    return savings(begin, end, by, parts[CPU], parts[MEMORY], _forecasts(client, begin, end))


def _increase(metric: str, label: str) -> Callable[[str], str]:
    return lambda window: f"sum by ({label}) (increase({metric}[{window}]))"


def _of_days(client: Client, metric: str, begin: float, end: float) -> dict[str, float]:
    """Increases by day (UTC): the first and the last may be parts of days."""
    found: dict[str, float] = {}
    at = begin
    while at < end:
        until = min(end, (at // _DAY + 1) * _DAY)
        day = dt.datetime.fromtimestamp(at, dt.UTC).date().isoformat()
        value = summed(client, lambda window: f"sum(increase({metric}[{window}]))", at, until, "")
        if value:
            found[day] = sum(value.values())
        at = until
    return found


def _forecasts(client: Client, begin: float, end: float) -> list[Kept]:
    def increases(name: str) -> dict[str, float]:
        metric = f"slacktide_predictor_{name}_total"
        return summed(client, _increase(metric, "resource"), begin, end, "resource")

    judged, violated = increases("outcomes"), increases("violations")
    asked = summed(
        client,
        lambda window: f"max by (resource) (last_over_time(slacktide_predictor_asked_risk_ratio[{window}]))",
        max(begin, end - _HOUR),
        end,
        "resource",
    )
    return [
        Kept(
            resource=name,
            judged=count,
            violated=violated.get(name, 0.0),
            rate=violated.get(name, 0.0) / count if count else None,
            asked=asked.get(name),
        )
        for name, count in sorted(judged.items())
    ]


def savings(
    begin: float, end: float, by: str, cpu: Mapping[str, float], memory: Mapping[str, float], forecasts: list[Kept]
) -> Savings:
    """Put together what was asked: seconds of CPU and byte seconds of memory by name."""
    hours = (end - begin) / _HOUR
    total = sum(cpu.values())

    def share(who: str, seconds: float | None, byte_seconds: float | None, over: float) -> Share:
        core_hours = None if seconds is None else seconds / _HOUR
        return Share(
            who=who,
            core_hours=core_hours,
            cores=None if core_hours is None else core_hours / over,
            share=seconds / total if seconds is not None and total else None,
            gib_hours=None if byte_seconds is None else byte_seconds / _GIB / _HOUR,
        )

    known = cpu.keys() | memory.keys()
    names = sorted(known) if by == "day" else sorted(known, key=lambda name: (-cpu.get(name, 0.0), name))
    over = min(24.0, hours) if by == "day" else hours
    return Savings(
        begin=begin,
        end=end,
        by=by,
        rows=[share(name, cpu.get(name), memory.get(name), over) for name in names],
        total=share(TOTAL, total, sum(memory.values()) if memory else None, hours),
        forecasts=forecasts,
    )


def cells(one: Share) -> list[str]:
    """One row of the table."""
    numbers = [one.core_hours, one.cores]
    shown = [MISSING if value is None else f"{value:.2f}" for value in numbers]
    share = MISSING if one.share is None else f"{one.share:.1%}"
    return [one.who or MISSING, *shown, share, MISSING if one.gib_hours is None else f"{one.gib_hours:.2f}"]


def remarks(found: Savings) -> list[str]:
    """What forecasts cost, in sentences."""
    if not found.forecasts:
        return ["no forecast was judged in that time: outcomes are known an hour after a forecast"]
    lines = []
    for one in found.forecasts:
        asked = "" if one.asked is None else f", asked for {one.asked:.2%}"
        rate = MISSING if one.rate is None else f"{one.rate:.2%}"
        lines.append(f"{one.resource}: {one.violated:.0f} of {one.judged:.0f} forecasts were exceeded, {rate}{asked}")
    return lines


def csv_text(found: Savings) -> str:
    """The rows as CSV with a header line; an empty cell is not known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((found.by, "core_hours", "cores", "share", "gib_hours"))
    for one in found.rows:
        values = (one.core_hours, one.cores, one.share, one.gib_hours)
        writer.writerow((one.who, *("" if value is None else f"{value:.6g}" for value in values)))
    return text.getvalue().rstrip("\n")
