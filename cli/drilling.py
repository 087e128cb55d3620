"""`drill run`: plan, question, drill, report; one node after the other."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click
import grpc
import msgspec

from cli import drillplan, drillreport
from cli.drilllive import Course, Follower, Hooks
from cli.drillorder import Order
from cli.drillreport import Moment, Report
from cli.drillsites import Site, caller, site_of
from cli.exits import FAILED, OK, REFUSED, SIGNAL, USAGE, CommandError
from cli.grid import plain
from slacktide.v1 import drill_pb2_grpc

if TYPE_CHECKING:
    from cli.app import App
    from cli.drillkinds import Kind
    from cli.drillreach import Reach
    from cli.session import StopSignals
    from slacktide.transport import Connection

RECOVER_SECONDS: Final = 300.0
"""What a drill may take beyond its pressure, unless --patience says otherwise."""

_START_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a person asked for; `node` or `selector`, and of the latter `pick` nodes."""

    node: str | None
    selector: str
    pick: int
    kind: Kind
    seconds: float
    load_percent: int | None
    victims_max: int
    dry_run: bool
    yes: bool
    reason: str
    report_file: str
    patience: float | None
    last_node: bool

    @property
    def patience_seconds(self) -> float:
        """How long one drill may take in all."""
        return self.seconds + RECOVER_SECONDS if self.patience is None else self.patience

    def order(self, node: str) -> Order:
        """The same for one node."""
        return Order(
            node=node,
            kind=self.kind,
            duration_seconds=self.seconds,
            load_percent=self.load_percent,
            victims_max=self.victims_max,
            dry_run=self.dry_run,
            reason=self.reason,
        )


def run(app: App, wish: Wish, reach: Reach) -> int:
    """Drill, and print what came of it; the exit code of the command. Raises CommandError."""
    if wish.report_file:
        # Found out before anything is pressed, not after.
        _writable(wish.report_file)
    with site_of(app, reach) as site:
        drills = Drills(app, site, wish)
        reports = list(drills.reports())
    if app.out.json:
        app.out.document(drillreport.Drills(drills=reports))
    else:
        for report in reports:
            show(app, report)
    if wish.report_file:
        _write(wish.report_file, reports)
    if drills.signal is not None:
        return SIGNAL + drills.signal
    if not any(one.id for one in reports):
        return REFUSED
    return OK if all(one.passed for one in reports if one.id) else FAILED


class Drills:
    """The drills of one call. `signal` is what asked for their end; None: nothing did."""

    def __init__(self, app: App, site: Site, wish: Wish, chance: random.Random | None = None) -> None:
        self._app = app
        self._site = site
        self._wish = wish
        self._chance = chance or random.Random()
        self._said = ""
        self.signal: signal.Signals | None = None

    def reports(self) -> Iterator[Report]:
        """Drill nodes until `pick` have had their drill, one did not pass, or none is left."""
        nodes = self._site.nodes(self._wish.node, self._wish.selector)
        if self._wish.node is None:
            self._chance.shuffle(nodes)
        begun = 0
        for node in nodes:
            report = self._one(self._wish.order(node))
            yield report
            begun += bool(report.id)
            if begun == self._wish.pick or (report.id and not report.passed):
                return

    def _one(self, order: Order) -> Report:
        try:
            seconds = self._wish.patience_seconds + _START_SECONDS
            with _closing(self._site.connect(order.node, seconds)) as connection:
                return self._planned(order, connection)
        except CommandError as error:
            if error.code == USAGE:
                raise
            return drillreport.refused(order, (str(error),))
        except drillplan.NotHeard as error:
            return drillreport.refused(order, (str(error),))

    def _planned(self, order: Order, connection: Connection) -> Report:
        """Plan, ask, and drill if nothing speaks against it. Raises CommandError, NotHeard."""
        # An agent of this machine may just begin; one that shows a wrong certificate is not waited for.
        told = drillplan.ask(connection, order, waits=not self._site.in_cluster, wall_clock=self._app.wall)
        facts = self._site.facts(order, told)
        plan = drillplan.judge(order, told, facts, last_node=self._wish.last_node, in_cluster=self._site.in_cluster)
        if not self._app.out.json:
            for line in drillplan.lines(plan):
                click.echo(plain(line), err=True)
        if plan.refusals:
            return drillreport.refused(order, plan.refusals, told.skew_millis)
        if not (self._wish.yes or _agreed()):
            return drillreport.refused(order, ("nobody agreed to it",), told.skew_millis)
        # While a place is waited for, Ctrl-C means what it always does.
        with self._site.place(order, self._say) as place, _stopping(self._app) as stop:
            hooks = Hooks(stop=stop, say=self._say, tell=self._tell, broken=place)
            report = self._drilled(plan, connection, hooks)
            self.signal = stop.first
        return report

    def _drilled(self, plan: drillplan.Plan, connection: Connection, hooks: Hooks) -> Report:
        """From the start to the end. Raises NotHeard."""
        stub = drill_pb2_grpc.DrillServiceStub(connection.channel)
        try:
            request, carried = plan.order.request(), connection.metadata
            started = stub.StartDrill(request, timeout=drillplan.PLAN_SECONDS, metadata=carried)
        except grpc.RpcError as error:
            raise drillplan.NotHeard(f"{error.code().name.lower()}: {error.details()}") from None
        skew = plan.told.skew_millis
        began = round(self._app.wall() * 1000) + (skew or 0)
        report = drillreport.begun(plan.order, started.drill_id, caller(), began, skew)
        self._say(f"drill {report.id} has begun; Ctrl-C ends it")
        # Beside it: an API server that is slow must not keep the drill from being watched.
        keeping = threading.Thread(target=self._keep, args=(report,), name="drill-record", daemon=True)
        keeping.start()
        course = Follower(connection, report.id, self._wish.patience_seconds, hooks).run()
        report = _final(report, course)
        keeping.join()
        self._keep(report)
        return report

    def _keep(self, report: Report) -> None:
        """Remember it; a record that cannot be kept is no reason to stop."""
        try:
            self._site.records.put(report)
        except CommandError as error:
            self._say(f"this drill is not recorded: {error}")

    def _say(self, text: str) -> None:
        if text != self._said and not self._app.out.json:
            self._app.out.say(text)
        self._said = text

    def _tell(self, moment: Moment, pressure: float | None) -> None:
        if not self._app.out.json:
            beside = "" if pressure is None else f"  (LS pressure {pressure:.3g})"
            click.echo(plain(f"  {drillreport.moment_line(moment)}{beside}"), err=True)


def _final(report: Report, course: Course) -> Report:
    """What is known once nobody follows any more."""
    if course.left:
        return msgspec.structs.replace(report, message=course.left, timeline=tuple(course.moments))
    done = drillreport.ended(report, course.phase, course.message, course.result, course.moments)
    return drillreport.restored(done, course.restored)


@contextlib.contextmanager
def _closing(connection: Connection) -> Iterator[Connection]:
    try:
        yield connection
    finally:
        connection.channel.close()


@contextlib.contextmanager
def _stopping(app: App) -> Iterator[StopSignals]:
    """Signals that ask for an end, for as long as there may be a drill to end."""
    stop = app.stop_signals()
    try:
        yield stop
    finally:
        stop.restore()


def _agreed() -> bool:
    """Ask the person. Ctrl-C means no."""
    try:
        return click.confirm("Drill now?", err=True)
    except click.Abort:
        return False


def show(app: App, report: Report) -> None:
    """A report in short: times against targets, pods, verdict."""
    if report.id:
        app.out.table(drillreport.TIME_COLUMNS, drillreport.target_rows(report))
        for line in drillreport.pod_lines(report):
            app.out.text(plain(line))
    app.out.text(plain(drillreport.sentence(report)))


def _writable(path: str) -> None:
    try:
        with open(path, "ab"):
            return
    except OSError as error:
        raise CommandError(f"--report {path}: {error.strerror}", USAGE) from None


def _write(path: str, reports: list[Report]) -> None:
    """Markdown, or JSON where the name ends so. Raises CommandError."""
    if path.endswith(".json"):
        text = msgspec.json.format(msgspec.json.encode(drillreport.Drills(drills=reports)), indent=2).decode() + "\n"
    else:
        text = "\n".join(drillreport.markdown(report) for report in reports)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CommandError(f"--report {path}: {error.strerror}") from None
