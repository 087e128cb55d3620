"""A drill as it is kept, shown and printed: one struct for a running drill, its end, and one that was refused.

JSON of `Report` is what `drill run|list|show|report --output json` print and what records hold; version 1 gets new
fields only. Markdown is for people. Pure.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cli.drillorder import Order, kind_name, phase_name
from cli.grid import plain
from cli.output import MISSING
from slacktide.v1 import drill_pb2 as pb

VERSION: Final = 1
TIME_COLUMNS: Final = ("STEP", "AFTER", "TARGET", "VERDICT")
RUNNING: Final = "running"
REFUSED: Final = "refused"
RECOVERED: Final = "recovered"
UNKNOWN: Final = "unknown"
"""Nobody could say how it ended."""
HERE: Final = "this machine"
ENDS: Final = frozenset({RECOVERED, "aborted", "failed", REFUSED, UNKNOWN})


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the timeline; milliseconds since the pressure was raised, by the agent's monotonic clock."""

    step: str
    elapsed_millis: int
    detail: str = ""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A time that counts as good. `took_millis` is None for a step that did not come."""

    step: str
    within_millis: int
    after_lowered: bool = False
    took_millis: int | None = None

    @property
    def met(self) -> bool | None:
        """Whether the step came in time; None where it did not come, which the node judges."""
        return None if self.took_millis is None else self.took_millis <= self.within_millis


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that gave way, or would have."""

    namespace: str
    name: str
    uid: str = ""
    reason: str = ""
    evicted: bool = False


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One drill.

    `passed` is None while it runs and where nobody knows how it ended. `started_unix_millis` is by the node's clock,
    `skew_millis` how far that is ahead of the caller's. `id` is empty where no drill began.
    """

    version: int = VERSION
    id: str = ""
    node: str = ""
    kind: str = ""
    load_percent: int | None = None
    duration_millis: int = 0
    dry_run: bool = False
    victims_max: int = 0
    reason: str = ""
    caller: str = ""
    started_unix_millis: int | None = None
    skew_millis: int | None = None
    phase: str = RUNNING
    message: str = ""
    passed: bool | None = None
    misses: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()
    timeline: tuple[Moment, ...] = ()
    victims: tuple[Victim, ...] = ()
    restored: str = ""
    detected_millis: int | None = None
    throttled_millis: int | None = None
    evicted_millis: int | None = None
    recovered_millis: int | None = None
    ls_pressure_max: float | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.phase in ENDS

    @property
    def where(self) -> str:
        """The node, in words where nobody said its name."""
        return self.node or HERE

    @property
    def verdict(self) -> str:
        """One word: passed, failed, aborted, refused, running, unknown."""
        if self.passed is None:
            return self.phase if self.ended else RUNNING
        return "passed" if self.passed else ("aborted" if self.phase == "aborted" else "failed")


class Drills(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `drill run` and `drill list`."""

    drills: list[Report]


def begun(order: Order, drill_id: str, caller: str, started_unix_millis: int, skew_millis: int | None) -> Report:
    """The record of a drill that has just begun."""
    return Report(
        id=drill_id,
        node=order.node,
        kind=order.kind.value,
        load_percent=order.load_percent,
        duration_millis=round(order.duration_seconds * 1000),
        dry_run=order.dry_run,
        victims_max=order.victims_max,
        reason=order.reason,
        caller=caller,
        started_unix_millis=started_unix_millis,
        skew_millis=skew_millis,
        message="has begun",
    )


def refused(order: Order, refusals: Sequence[str], skew_millis: int | None = None) -> Report:
    """A drill that did not begin, with the reasons."""
    now = begun(order, "", "", 0, skew_millis)
    return msgspec.structs.replace(
        now, started_unix_millis=None, phase=REFUSED, message="; ".join(refusals), refusals=tuple(refusals)
    )


def ended(
    report: Report, phase: str, message: str, result: pb.DrillResult | None, moments: Sequence[Moment] = ()
) -> Report:
    """The report with what the node says of its end; `moments` were heard meanwhile, and stand in for an old agent."""
    result = result if result is not None else pb.DrillResult()
    timeline = _timeline(result.timeline) or tuple(moments)
    misses = tuple(result.misses)
    return msgspec.structs.replace(
        report,
        phase=phase,
        message=message,
        passed=None if phase == UNKNOWN else phase == RECOVERED and not misses,
        misses=misses,
        targets=_targets(result.targets, timeline),
        timeline=timeline,
        victims=victims_of(result.victims),
        detected_millis=_optional(result, "detected_millis"),
        throttled_millis=_optional(result, "throttled_millis"),
        evicted_millis=_optional(result, "evicted_millis"),
        recovered_millis=_optional(result, "recovered_millis"),
        ls_pressure_max=result.ls_pressure_max if result.HasField("ls_pressure_max") else None,
    )


def restored(report: Report, words: str) -> Report:
    """The report with what the agent said when it was asked to end the drill."""
    return msgspec.structs.replace(report, restored=words)


def of_record(record: pb.DrillRecord) -> Report:
    """What a node remembers of a drill."""
    phase = phase_name(record.phase)
    known = Report(
        id=record.drill_id,
        node=record.node,
        kind=kind_name(record.pressure),
        load_percent=(record.intensity_percent or 100) if record.pressure == pb.PRESSURE_KIND_LOAD else None,
        duration_millis=record.duration_millis,
        dry_run=record.dry_run,
        victims_max=record.victim_budget,
        reason=record.reason,
        caller=record.caller,
        started_unix_millis=record.started_unix_millis or None,
        message=record.message,
    )
    if phase in ENDS:
        return ended(known, phase, record.message, record.result)
    return msgspec.structs.replace(ended(known, RUNNING, record.message, record.result), passed=None)


def moment_of(one: pb.DrillMoment) -> Moment:
    """A line of the timeline from the wire."""
    return Moment(step=one.step, elapsed_millis=one.elapsed_millis, detail=one.detail)


def victims_of(victims: Iterable[pb.Victim]) -> tuple[Victim, ...]:
    """Pods from the wire."""
    return tuple(
        Victim(namespace=one.namespace, name=one.name, uid=one.uid, reason=one.reason, evicted=one.evicted)
        for one in victims
    )


def _timeline(moments: Iterable[pb.DrillMoment]) -> tuple[Moment, ...]:
    return tuple(moment_of(one) for one in moments)


def _targets(targets: Iterable[pb.DrillTarget], timeline: Sequence[Moment]) -> tuple[Target, ...]:
    lowered = next((one.elapsed_millis for one in timeline if one.step == "lowered"), None)
    return tuple(
        Target(
            step=one.step,
            within_millis=one.within_millis,
            after_lowered=one.after_lowered,
            took_millis=_took(one, timeline, lowered),
        )
        for one in targets
    )


def _took(target: pb.DrillTarget, timeline: Sequence[Moment], lowered: int | None) -> int | None:
    if target.after_lowered and lowered is None:
        return None
    origin = (lowered or 0) if target.after_lowered else 0
    times = (one.elapsed_millis - origin for one in timeline if one.step == target.step)
    return next((took for took in times if took >= 0), None)


def _optional(result: pb.DrillResult, field: str) -> int | None:
    # Generated HasField takes literal names only.
    return int(getattr(result, field)) if result.HasField(field) else None  # type: ignore[arg-type]


def seconds(millis: int | None) -> str:
    """Milliseconds as people read them; '-' for what did not happen."""
    return MISSING if millis is None else f"{millis / 1000:.2f} s"


def moment_line(one: Moment) -> str:
    """A line of the timeline for a terminal."""
    return f"+{one.elapsed_millis / 1000:7.2f} s  {one.step}{': ' if one.detail else ''}{one.detail}"


def what(report: Report) -> str:
    """Kind and size of a drill in a few words."""
    load = f" with load of {report.load_percent} % of idle CPU" if report.load_percent else ""
    limit = f"at most {report.victims_max} evicted" if report.victims_max else "nobody evicted"
    limit = "a dry run" if report.dry_run else limit
    return f"{report.kind}{load} for {report.duration_millis / 1000:g} s, {limit}"


def when(unix_millis: int | None) -> str:
    """A moment as RFC 3339 text in UTC; '-' where it is not known."""
    if unix_millis is None:
        return MISSING
    return dt.datetime.fromtimestamp(unix_millis / 1000, tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def sentence(report: Report) -> str:
    """How it went, in one sentence."""
    head = f"drill {report.id} of {report.where}" if report.id else f"drill of {report.where}"
    tail = "; ".join(report.misses) or report.message
    return f"{head}: {report.verdict}{f': {tail}' if tail and not report.passed else ''}"


def target_rows(report: Report) -> list[tuple[str, str, str, str]]:
    """STEP, AFTER, TARGET, VERDICT: each target, and the steps that came without one."""
    rows = []
    for one in report.targets:
        step = f"{one.step} (after the trouble)" if one.after_lowered else one.step
        words = {True: "met", False: "missed", None: "missed" if _missed(report, one) else "not needed"}[one.met]
        rows.append((step, seconds(one.took_millis), seconds(one.within_millis), words))
    aimed = {one.step for one in report.targets}
    steps = {
        "detected": report.detected_millis,
        "throttled": report.throttled_millis,
        "evicted": report.evicted_millis,
        "recovered": report.recovered_millis,
    }
    others = ((name, took) for name, took in steps.items() if name not in aimed and took is not None)
    rows += [(name, seconds(took), MISSING, MISSING) for name, took in others]
    return rows


def pod_lines(report: Report) -> list[str]:
    """What became of each pod."""
    return [
        f"{one.namespace}/{one.name} {'evicted' if one.evicted else 'spared'}: {one.reason}" for one in report.victims
    ]


def _missed(report: Report, target: Target) -> bool:
    return report.ended and any(target.step in miss for miss in report.misses)


def markdown(report: Report) -> str:
    """The report for people, as Markdown."""
    title = f"# Drill {report.id or '(refused)'} of {report.where}: {report.verdict}"
    facts = [
        ("what", what(report)),
        ("why", report.reason or MISSING),
        ("by", report.caller or MISSING),
        ("began", f"{when(report.started_unix_millis)} (clock of the node)"),
        ("clock of the node", _skew(report.skew_millis)),
        ("end", f"{report.phase}: {report.message}" if report.message else report.phase),
        ("LS pressure, highest", MISSING if report.ls_pressure_max is None else f"{report.ls_pressure_max:.3g}"),
    ]
    parts = [title, _table(("drill", report.id or MISSING), facts)]
    if report.refusals:
        parts += ["## Refused", _bullets(report.refusals)]
        return "\n\n".join(parts) + "\n"
    if report.misses:
        parts += ["## Missed", _bullets(report.misses)]
    rows = target_rows(report)
    parts += ["## Times", _table(("step", "after", "target", "verdict"), rows) if rows else "No step came."]
    parts += ["## Pods", _victims(report)]
    parts += ["## Restored", _restored(report)]
    if report.timeline:
        lines = [(f"+{one.elapsed_millis / 1000:.2f} s", one.step, one.detail) for one in report.timeline]
        parts += ["## Timeline", _table(("time", "step", "what"), lines)]
    return "\n\n".join(parts) + "\n"


def _victims(report: Report) -> str:
    if not report.victims:
        return "None was evicted." if report.ended else "None so far."
    rows = [
        (f"{one.namespace}/{one.name}", "evicted" if one.evicted else "spared", one.reason) for one in report.victims
    ]
    return _table(("pod", "was", "why"), rows)


def _restored(report: Report) -> str:
    opened = [one for one in report.timeline if one.step.startswith("open:") or one.step == RECOVERED]
    lines = [f"+{one.elapsed_millis / 1000:.2f} s {one.step}: {one.detail or 'open again'}" for one in opened]
    if report.restored:
        lines.append(report.restored)
    if not lines:
        return "Nothing was said of it."
    return _bullets(lines)


def _skew(skew_millis: int | None) -> str:
    if skew_millis is None:
        return "not told"
    way = "ahead of" if skew_millis >= 0 else "behind"
    return f"{abs(skew_millis) / 1000:.1f} s {way} the caller's"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_cell(line)}" for line in lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    made = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    made += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join(made)


def _cell(text: str) -> str:
    return " ".join(plain(text).split()).replace("|", "\\|")
