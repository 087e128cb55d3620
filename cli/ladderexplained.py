"""The agent's ladder and the predictor's last publications of a node, as rows of tables. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from cli.output import MISSING
from cli.podview import show_age, show_bytes, show_cpu
from slacktide.explaining import Ladder, Published, RungLine, Signal
from slacktide.forecast import closed_words

RUNG_COLUMNS: Final = ("RUNG", "LEVEL", "FOR", "WHAT", "REASON")
SIGNAL_COLUMNS: Final = ("SIGNAL", "NOW", "DETAIL")
CHANGE_COLUMNS: Final = ("AGE", "RUNG", "LEVEL", "REASON")
PUBLISHED_COLUMNS: Final = ("AGE", "CAUSE", "CPU", "MEMORY", "IN STATUS", "REASON")

DOES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "batch_limits": "weight, quota and memory limit that a BE container asked for",
        "weight": "BE runs when nobody else wants the CPU",
        "spread": "each busy BE thread on a CPU of its own",
        "pids": "bounds the tasks of BE pods",
        "burst": "withholds bursts of LS beyond its own quota",
        "suppress": "limits CPU of BE while the node is full of LS, or blind",
        "contention": "limits CPU of BE while LS is short of it",
        "cache_bandwidth": "takes cache and memory bandwidth from BE",
        "memory": "BE may not grow, then gives memory back",
        "io": "bounds disk rates of BE",
        "close": "nothing more is sold here",
        "evict": "BE pods go, through the Eviction API",
        "kill": "kills one BE pod for memory, freezes BE while the API is away",
    }
)
"""What each policy does while it is engaged."""

_CAUSES: Final[Mapping[str, str]] = MappingProxyType({"sold": "sold beyond it", "refresh": "written again"})


def headline(ladder: Ladder, now: float) -> list[str]:
    """What the agent says of itself, in lines."""
    said = [f"ladder of {ladder.node} (the agent, {show_age(max(0.0, now - ladder.at))} ago): {ladder.line}"]
    if not ladder.writes:
        said.append("* the agent observes only: what is said below is what it would do")
    if ladder.held:
        said.append(f"* nothing is decided now: {ladder.held}")
    elif ladder.shortage:
        said.append(f"* is LS short of CPU? {ladder.shortage}")
    return said


def rung_rows(ladder: Ladder) -> list[list[str]]:
    """A row a policy, mildest first."""
    return [
        [
            rung.name,
            MISSING if rung.level is None else f"{rung.level} of {rung.top}",
            show_age(rung.for_seconds),
            DOES.get(rung.name, MISSING),
            _reason(rung),
        ]
        for rung in ladder.rungs
    ]


def _reason(rung: RungLine) -> str:
    if not rung.level or not rung.opens_when:
        return rung.reason
    times = [f"calm for {rung.quiet_seconds:g} s"] if rung.quiet_seconds else []
    times += [f"at this level for {rung.dwell_seconds:g} s at least"] if rung.dwell_seconds else []
    waits = f" ({', '.join(times)})" if times else ""
    opens = f"opens when {rung.opens_when}{waits}"
    return f"{rung.reason}; {opens}" if rung.reason else opens


def signal_rows(ladder: Ladder) -> list[list[str]]:
    """A row a figure that rungs look at: what it is now, and at which marks of which rung something happens.

    What counts only together with another figure stands in that one's row.
    """
    rows: dict[tuple[str, str], list[tuple[str, list[Signal]]]] = {}
    for rung in ladder.rungs:
        for group in _joined(rung.signals):
            first = group[0]
            rows.setdefault((first.what, _value(first.now, first.unit)), []).append((rung.name, group))
    return [[what, now, _details(groups)] for (what, now), groups in rows.items()]


def _details(groups: list[tuple[str, list[Signal]]]) -> str:
    """The marks of all rungs; what counts together with each of them is said once."""
    shared = [one for one in groups[0][1][1:] if all(one in group[1:] for _, group in groups)]
    marks = [_marks(rung, group[0], [one for one in group[1:] if one not in shared]) for rung, group in groups]
    also = [f"only while {' and '.join(_also(one) for one in shared)}"] if shared else []
    return "; ".join([*marks, *also])


def _joined(signals: Iterable[Signal]) -> list[list[Signal]]:
    groups: list[list[Signal]] = []
    for signal in signals:
        if signal.joint and groups:
            groups[-1].append(signal)
        else:
            groups.append([signal])
    return groups


def _marks(rung: str, signal: Signal, others: list[Signal]) -> str:
    words = [rung]
    if signal.enters is not None:
        words.append(f"{'from' if signal.above else 'below'} {signal.enters:g}")
        if signal.speaks:
            words.append("(now)")
    if signal.lasts_seconds:
        words.append(f"for {signal.lasts_seconds:g} s")
    if others:
        words.append(f"while {' and '.join(_also(other) for other in others)}")
    if signal.opens is not None:
        words.append(f"(opens {'below' if signal.above else 'from'} {signal.opens:g})")
    return " ".join(words)


def _also(signal: Signal) -> str:
    mark = "" if signal.enters is None else f" {'from' if signal.above else 'below'} {signal.enters:g}"
    return f"{signal.what}{mark} (now {_value(signal.now, signal.unit)})"


def _value(now: float | None, unit: str) -> str:
    if now is None:
        return MISSING
    return f"{now:.3g} {unit}".rstrip() if abs(now) < 1000 else f"{now:.0f} {unit}".rstrip()


def change_rows(ladder: Ladder, now: float, most: int) -> list[list[str]]:
    """The last changes of the ladder, newest first."""
    return [
        [
            show_age(max(0.0, now - change.at)),
            change.name,
            f"{change.before} -> {change.after} of {change.top}",
            change.reason,
        ]
        for change in ladder.changes[:most]
    ]


def published_rows(published: Published, now: float, most: int) -> list[list[str]]:
    """The last changes of what is offered, newest first; amounts are those of then."""
    return [
        [
            show_age(max(0.0, now - change.at)),
            _CAUSES.get(change.cause, change.cause),
            show_cpu(change.offered.cpu_millis),
            show_bytes(change.offered.memory_bytes),
            f"{show_cpu(change.published.cpu_millis)} / {show_bytes(change.published.memory_bytes)}",
            closed_words(change.closed) if change.closed else change.why,
        ]
        for change in published.changes[:most]
    ]


def published_remarks(published: Published) -> list[str]:
    """What waits, and what keeps a number from going out."""
    said = []
    for waiting in published.waiting:
        least = show_cpu(waiting.least) if waiting.resource == "cpu" else show_bytes(waiting.least)
        said.append(f"a rise of {waiting.resource} waits for {waiting.seconds:.0f} s by now; up to {least} may follow")
    if published.refused:
        said.append(f"the last write was refused: {published.refused}")
    if published.stopped:
        said.append(f"nothing is published here: {published.stopped}")
    return said


def since(moment: float | None, now: float) -> str:
    """How far back a record goes, in words."""
    return "" if moment is None else f"kept for {show_age(max(0.0, now - moment))}"
