"""`drill list|show|report|abort`: what is remembered of drills, by records first and by the nodes themselves."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import grpc

from cli import drillreport
from cli.drilllive import Follower, Hooks
from cli.drillrecords import check_id, merged
from cli.drillreport import Report
from cli.drills import CALL_SECONDS
from cli.drillsites import Site, site_of
from cli.exits import FAILED, OK, CommandError
from cli.grid import plain
from cli.output import MISSING
from cli.podview import show_age
from slacktide.settings.values import nearest
from slacktide.v1 import drill_pb2 as pb
from slacktide.v1 import drill_pb2_grpc

if TYPE_CHECKING:
    from cli.app import App
    from cli.drillreach import Reach

COLUMNS: Final = ("ID", "NODE", "KIND", "AGE", "VERDICT", "BY", "REASON")
WIDE_COLUMNS: Final = (
    *COLUMNS[:-1], "DETECTED", "THROTTLED", "EVICTED", "RECOVERED", "PODS", "DRY RUN", "REASON",
)  # fmt: skip
_CALL_SECONDS: Final = 30.0
_ABORT_SECONDS: Final = 60.0


def print_list(app: App, reach: Reach, node: str | None) -> None:
    """All that is remembered, newest first; with `node` only its own, and what it remembers itself."""
    with site_of(app, reach) as site:
        found = _all(app, site, node)
    if app.out.json:
        app.out.document(drillreport.Drills(drills=found))
        return
    if not found and app.out.format != "name":
        app.out.say("no drill is remembered; begin one with `slacktide drill run`")
        return
    now = app.wall() * 1000
    columns = WIDE_COLUMNS if app.out.wide else COLUMNS
    rows = [_cells(one, now, wide=app.out.wide) for one in found]
    app.out.listing("drill", [one.id for one in found], columns, rows)


def print_one(app: App, reach: Reach, drill_id: str, node: str | None, *, markdown: bool) -> None:
    """One drill: in short, or as a report. Raises CommandError for one that nobody remembers."""
    with site_of(app, reach) as site:
        report = _named(app, site, drill_id, node)
    if app.out.json:
        app.out.document(report)
    elif markdown:
        app.out.text(drillreport.markdown(report).rstrip())
    else:
        _show(app, report)


def abort(app: App, reach: Reach, drill_id: str, node: str | None) -> int:
    """End a drill, wait until it is over, and say how. Raises CommandError."""
    with site_of(app, reach) as site:
        report = _named(app, site, drill_id, node)
        if not report.ended:
            report = _aborted(app, site, report)
    if app.out.json:
        app.out.document(report)
    else:
        app.out.text(plain(drillreport.sentence(report)))
    return OK if report.ended else FAILED


def _aborted(app: App, site: Site, report: Report) -> Report:
    connection = site.connect(report.node, _ABORT_SECONDS)
    stop = app.stop_signals()
    try:
        stub = drill_pb2_grpc.DrillServiceStub(connection.channel)
        request = pb.AbortDrillRequest(drill_id=report.id)
        try:
            said = stub.AbortDrill(request, timeout=CALL_SECONDS, metadata=connection.metadata).message
        except grpc.RpcError as error:
            raise CommandError(f"the agent of {report.node}: {error.code().name.lower()}: {error.details()}") from None
        hooks = Hooks(stop=stop, say=app.out.say, tell=lambda *_: None)
        course = Follower(connection, report.id, _ABORT_SECONDS, hooks).run()
    finally:
        stop.restore()
        connection.channel.close()
    done = drillreport.ended(report, course.phase, course.message, course.result, course.moments)
    # The caller that began it records its end.
    return done if not said else drillreport.restored(done, said)


def _show(app: App, report: Report) -> None:
    app.out.text(plain(drillreport.sentence(report)))
    app.out.text(plain(f"{drillreport.what(report)}, begun {drillreport.when(report.started_unix_millis)}"))
    app.out.text(plain(f"by {report.caller or MISSING}: {report.reason or MISSING}"))
    app.out.table(drillreport.TIME_COLUMNS, drillreport.target_rows(report))
    for line in drillreport.pod_lines(report):
        app.out.text(plain(line))
    for moment in report.timeline:
        app.out.text(plain(drillreport.moment_line(moment)))


def _all(app: App, site: Site, node: str | None) -> list[Report]:
    """Records, and what the agent of `node` (or of this machine) adds."""
    asks = node is not None or not site.in_cluster
    recorded: list[Report] = []
    try:
        recorded = site.records.all()
    except CommandError as error:
        if not asks:
            raise
        app.out.say(f"no records: {error}")
    remembered: list[Report] = []
    if asks:
        (name,) = site.nodes(node, "")
        remembered = _of_agent(app, site, name)
    return [one for one in merged(recorded, remembered) if node in (None, one.node)]


def _named(app: App, site: Site, drill_id: str, node: str | None) -> Report:
    """The drill of that id. Where its caller never told how it ended, its node is asked."""
    found = _all(app, site, node)
    report = next((one for one in found if one.id == check_id(drill_id)), None)
    if report is None:
        hint = nearest(drill_id, [one.id for one in found])
        more = "" if node or not site.in_cluster else "; the node itself may know it: give --node NODE"
        raise CommandError(f"no drill {drill_id!r} is remembered{hint}{more}")
    if report.ended or not site.in_cluster or node is not None:
        return report
    (known,) = [one for one in merged([report], _of_agent(app, site, report.node)) if one.id == drill_id]
    return known


def _of_agent(app: App, site: Site, node: str) -> list[Report]:
    """What the agent of a node remembers; nothing, and a remark, where it cannot be asked."""
    try:
        connection = site.connect(node, _CALL_SECONDS)
    except CommandError as error:
        app.out.say(f"the agent of {node or 'this machine'} cannot be asked: {error}")
        return []
    stub = drill_pb2_grpc.DrillServiceStub(connection.channel)
    with contextlib.closing(connection.channel):
        try:
            listed = stub.ListDrills(pb.ListDrillsRequest(), timeout=CALL_SECONDS, metadata=connection.metadata)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                whose = node or "this machine"
                app.out.say(
                    f"the agent of {whose} does not tell its drills: {error.code().name.lower()}: {error.details()}"
                )
            return []
    return [drillreport.of_record(one) for one in listed.drills]


def _cells(one: Report, now: float, *, wide: bool) -> list[str]:
    age = None if one.started_unix_millis is None else max(0.0, (now - one.started_unix_millis) / 1000)
    head = [one.id, one.node or MISSING, one.kind, show_age(age), _verdict(one, age), one.caller or MISSING]
    if wide:
        times = (one.detected_millis, one.throttled_millis, one.evicted_millis, one.recovered_millis)
        head += [drillreport.seconds(millis) for millis in times]
        head += [str(sum(victim.evicted for victim in one.victims)), "yes" if one.dry_run else "no"]
    return [*head, one.reason or MISSING]


def _verdict(one: Report, age: float | None) -> str:
    """Running drills that began too long ago were left by their callers: `show` asks the node how they ended."""
    longest = one.duration_millis / 1000 + 3600
    return "left" if not one.ended and age is not None and age > longest else one.verdict
