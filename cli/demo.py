"""`slacktide demo`: an LS server alone, beside BE work, and beside BE work under Slacktide, live, then a table."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cli.app import agent_status
from cli.demoplacement import diagnose
from cli.demoplacement import lines as placement_lines
from cli.drills import Rehearsal, rehearse
from cli.gather import Room, room_of
from cli.podexplained import PodExplanation
from slacktide.cluster import NODES, PODS, Client
from slacktide.cluster.errors import ClusterError
from slacktide.status import AgentStatus
from standalone.load.colocation import Measurement, Plan, plan_for, run_managed, run_plain, usable_cpus
from standalone.load.driver import percentile
from standalone.load.stack import running
from standalone.runner.nodeobject import CGROUPS_ANNOTATION
from standalone.state import StateDir

LS_LOAD = 0.6
RUN_SECONDS = 6.0
DRILL_SECONDS = 1.0
DRILL_PATIENCE_SECONDS = 30.0
"""BE gets its room back by steps of ten percent, so the way back takes longer than the cut."""

AT_ANY_TIME: Final = {"SLACKTIDE_AGENT_DRILL__REFUSE_IN_TROUBLE": "false"}
"""The demo's own load is trouble enough for a node to refuse a drill."""


@dataclass
class View:
    """What the live view shows; written by the measuring thread, read by the drawing one."""

    plan: Plan
    done: list[tuple[str, Measurement]] = field(default_factory=list)
    phase: str = ""
    elapsed: float = 0.0
    latencies: list[float] = field(default_factory=list)
    status: AgentStatus | None = None
    room: Room | None = None

    def __rich__(self) -> RenderableType:
        """Draw the current state."""
        parts: list[RenderableType] = [self.headline(), results_table(self.done)]
        if self.phase:
            parts.append(self._now())
        if self.status is not None:
            parts.append(self._agent(self.status))
        return Group(*parts)

    def headline(self) -> Text:
        """What runs, in one line."""
        plan = self.plan
        return Text(
            f"LS server: {plan.rate:.0f} requests/s of {plan.service_seconds * 1000:.1f} ms CPU on {plan.cpus} CPUs "
            f"({plan.load:.0%} load). BE job: {plan.be_processes} busy processes.",
            style="dim",
        )

    def _now(self) -> Text:
        recent = sorted(self.latencies[-4000:])
        numbers = (
            f"p50 {percentile(recent, 0.5) * 1000:.1f} ms  p99 {percentile(recent, 0.99) * 1000:.1f} ms"
            if recent
            else ""
        )
        return Text.assemble(("» ", "cyan"), (self.phase, "bold"), f"  {self.elapsed:4.1f} s  {numbers}")

    def _agent(self, status: AgentStatus) -> Text:
        tiers = "  ".join(f"{tier} {_cores(usage.cpu_millis)}" for tier, usage in sorted(status.tiers.items()))
        room = self.room
        forecast = f"forecast: BE may ask for {_cores(room.left.cpu_millis)} more cores" if room else "no forecast yet"
        return Text(f"agent: {status.line}\nCPU use in cores: {tiers}\n{forecast}", style="green")


def results_table(done: list[tuple[str, Measurement]]) -> Table:
    """Table of finished runs; the first one is the baseline of the ratios."""
    table = Table(title=None, header_style="bold")
    for name in ("LS server", "p50 ms", "p99 ms", "p99 / alone", "BE share of idle CPU"):
        table.add_column(name, justify="left" if name == "LS server" else "right")
    for name, measured in done:
        found = measured.latencies
        ratio = found.p99_millis / done[0][1].latencies.p99_millis
        share = "-" if measured.be_idle_share is None else f"{min(measured.be_idle_share, 9.99):.0%}"
        table.add_row(name, f"{found.p50_millis:.1f}", f"{found.p99_millis:.1f}", f"{ratio:.2f}x", share)
    return table


class Demo:
    """Runs the three parts, asks about placement, has a drill, and keeps the view up to date."""

    def __init__(self, plan: Plan, on_phase: Callable[[str], None]) -> None:
        self.view = View(plan)
        self.left_out: str | None = None
        self.drill: Rehearsal | None = None
        self.placement: list[PodExplanation] = []
        self._on_phase = on_phase

    def run(self) -> None:
        """All parts, one after another; the drill is beside the load of the third."""
        self._measure("alone", lambda: run_plain(self.view.plan, False, self._progress))
        self._measure("beside BE, without Slacktide", lambda: run_plain(self.view.plan, True, self._progress))
        self._phase("starting Slacktide")
        with running(settings=AT_ANY_TIME) as (state, client):
            self.left_out = left_out(client)
            name = "beside BE, with Slacktide" if self.left_out is None else "beside BE, Slacktide without limits"
            with self._watching(state, client):
                after = functools.partial(self._after, state, client)
                self._measure(name, lambda: run_managed(client, self.view.plan, self._progress, after))
            self._phase("stopping Slacktide")
        self.view.phase = ""

    def _measure(self, name: str, run: Callable[[], Measurement]) -> None:
        self._phase(name)
        self.view.done.append((name, run()))

    def _after(self, state: StateDir, client: Client) -> None:
        """What is shown while LS and BE still run and nothing is measured any more."""
        self._phase("asking why pods are where they are")
        self.placement = diagnose(state, client, self.view.plan.cpus)
        self._phase("a drill: LS pressure is raised as a signal")
        self.drill = rehearse(f"unix:{state.drill_socket}", DRILL_SECONDS, "demo", DRILL_PATIENCE_SECONDS)

    def _phase(self, name: str) -> None:
        self.view.phase, self.view.elapsed = name, 0.0
        self.view.latencies = []
        self._on_phase(name)

    def _progress(self, elapsed: float, latencies: list[float]) -> None:
        self.view.elapsed, self.view.latencies = elapsed, latencies

    @contextlib.contextmanager
    def _watching(self, state: StateDir, client: Client) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(state, client, stop), name="demo-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(5.0)
            self.view.status = self.view.room = None

    def _watch(self, state: StateDir, client: Client, stop: threading.Event) -> None:
        while not stop.wait(0.5):
            self.view.status = agent_status(state)
            with contextlib.suppress(ClusterError):
                nodes, pods = client.list(NODES).items, client.list(PODS).items
                self.view.room = room_of(nodes[0], list(pods), time.time(), []) if nodes else None


def left_out(client: Client) -> str | None:
    """Why this machine's cgroups cannot be used, in words; None when they can."""
    for node in client.list(NODES).items:
        reason = node.metadata.annotations.get(CGROUPS_ANNOTATION)
        if reason is not None and reason.startswith("off"):
            return reason.partition(":")[2].strip() or "cgroups of this machine cannot be written"
    return None


def run_demo(output: str, console: Console, seconds: float = RUN_SECONDS) -> int:
    """Run the demo and print its table (or JSON); returns the exit status."""
    plan = plan_for(usable_cpus(), LS_LOAD, seconds)
    started = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # As Ctrl-C does it: what was started is ended on the way out.
        signal.signal(number, signal.default_int_handler)
    if output == "json" or not console.is_terminal:
        progress = Console(stderr=True)
        demo = Demo(plan, lambda name: progress.print(f"{time.monotonic() - started:5.1f} s  {name}", highlight=False))
        demo.run()
    else:
        demo = Demo(plan, lambda _name: None)
        with Live(demo.view, console=console, refresh_per_second=4, transient=True):
            demo.run()
    if output == "json":
        document = {
            "plan": plan,
            "results": dict(demo.view.done),
            "drill": demo.drill,
            "placement": demo.placement,
            "left_out": demo.left_out,
        }
        console.out(msgspec.json.encode(document).decode(), highlight=False)
        return 0
    console.print(demo.view.headline())
    console.print(results_table(demo.view.done))
    if demo.placement:
        console.print("Placement of BE, as `slacktide explain pod` tells it:", style="bold")
    for line in placement_lines(demo.placement):
        console.print(line, highlight=False, markup=False)
    if demo.drill is not None:
        console.print(drill_line(demo.drill), highlight=False)
    if demo.left_out:
        console.print(
            f"Left out: limits on BE. {demo.left_out}. Run as root on a machine with writable cgroups to see them."
        )
    console.print(f"Took {time.monotonic() - started:.0f} s; nothing is left behind.", style="dim")
    return 0


def drill_line(drill: Rehearsal) -> str:
    """What the ladder did when LS pressure rose, in one line."""
    if drill.detected_millis is None:
        return f"Drill: {drill.problem or 'the node did not answer'}."
    steps = [f"seen after {drill.detected_millis} ms"]
    if drill.throttled_millis is not None:
        steps.append(f"BE cut after {drill.throttled_millis} ms ({drill.answer})")
    if drill.recovered_millis is not None:
        steps.append(f"BE had all its room back after {drill.recovered_millis / 1000:.0f} s")
    return f"Drill, LS pressure raised for {DRILL_SECONDS:g} s: {', '.join(steps)}."


def _cores(millis: int | None) -> str:
    return "?" if millis is None else f"{millis / 1000:.2f}"
