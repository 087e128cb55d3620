"""Starts the node agent: probes the host, adopts what an earlier agent left, runs the loop until it is told to stop.

Threads: control (loop), spool and stream (report), guard (which feeds the watchdog, a process of its own), the
informer's and the observe server's. Stopping ends the loop first, then restores, then the rest, so that nothing is
written after it was restored.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from dataclasses import replace
from typing import Final

import msgspec

from agent import restore
from agent.act.executor import Executor
from agent.act.guard import Guard
from agent.act.journal import Journal
from agent.act.owner import Ownership
from agent.beat import Beat
from agent.certificates import follow_certificates
from agent.explaining import Explainer
from agent.host.affinity import Affinity
from agent.host.cgroup import CgroupLister
from agent.host.fds import FdBudget, raise_limit
from agent.host.own import join as join_own
from agent.host.probe import probe
from agent.host.proc import Proc
from agent.host.reader import HostReader
from agent.host.schedstat import RunDelayReader
from agent.host.signals import HostSignals
from agent.host.threads import ThreadReader
from agent.host.watch import CgroupWatch
from agent.live import Live, status_of
from agent.loop import Loop, Turn
from agent.metrics import AgentMetrics
from agent.parts import AgentParts, Helpers
from agent.permissions import needed
from agent.pods import PodBook
from agent.policy.base import Context
from agent.policy.registry import build as build_policies
from agent.policy.spread import Spread
from agent.report import Reporter
from agent.settings import SILENT_TURNS, AgentSettings
from agent.spool import Spool
from slacktide.cluster import PODS, ClusterMetrics, Informer, Rights, connect
from slacktide.errors import SettingsError, StateError
from slacktide.explaining import EVICTIONS_ROUTE, LADDER_ROUTE, POD_ROUTE
from slacktide.garbage import keep_what_is_here
from slacktide.kernel.hierarchy import Hierarchy, discover
from slacktide.observe import Daemon, Queried, get_logger, run_daemon

_LOG: Final = get_logger("agent")
_LOOP_STOP_SECONDS: Final = 3.0
_LIVE_SECONDS: Final = 10.0
_GARBAGE_THRESHOLDS: Final = (20_000, 20, 20)
"""When the garbage collector looks for cycles. Hardly anything here is in one: a turn's values go with the next turn.
With Python's 700 a look through all that was ever imported, 60 ms in the middle of a beat, came every 20 s."""


def main(argv: list[str] | None = None) -> int:
    """Run the agent, or `restore`; returns the exit code (0 stopped, 1 failed, 2 bad settings)."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["restore"]:
        return restore.main(arguments[1:])
    return run_daemon("agent", AgentSettings, _body, argv, about="Protects LS pods of this node from BE pods.")


def _body(daemon: Daemon[AgentSettings]) -> int:
    settings = daemon.settings
    try:
        os.makedirs(settings.state_dir, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StateError(f"state_dir {settings.state_dir} cannot be made: {error.strerror}") from error
    # What is wrong with the settings is said before anything is looked for on the node.
    build_policies(settings.policies)
    hierarchy, lister = _host(settings)
    writes = not settings.observe_only
    owner = Ownership(settings.state_dir, hierarchy, lister.root, settings.proc_root, node=writes)
    try:
        agent = Agent(daemon, hierarchy, lister)
        agent.start()
        keep_what_is_here(_GARBAGE_THRESHOLDS)
        daemon.stop.wait()
        agent.stop()
    finally:
        owner.close()
    return 0


class Agent:
    """All parts of one agent, wired; `start` and `stop` are called once each."""

    def __init__(self, daemon: Daemon[AgentSettings], hierarchy: Hierarchy, lister: CgroupLister) -> None:
        self._daemon = daemon
        settings = daemon.settings
        self._node = settings.node or platform.node().lower()
        self._policies = build_policies(settings.policies)
        self._own_cgroup(hierarchy)
        proc = Proc(settings.proc_root, time.monotonic)
        boot_id = proc.boot_id()
        # Their processes are started here, before there is any thread or channel.
        self._guard = None if settings.observe_only else _guard(settings)
        helpers = Helpers(settings, hierarchy, lister, tuple(sorted(os.sched_getaffinity(0))))
        self.capabilities = probe(hierarchy, lister, settings.proc_root, try_writes=not settings.observe_only)
        self._journal = Journal(settings.state_dir, boot_id)
        affinity = Affinity(settings.proc_root)
        may = replace(self.capabilities, writable=frozenset()) if settings.observe_only else self.capabilities
        raise_limit()
        self._budget = FdBudget()
        self._executor = Executor(
            lister, self._journal, may, affinity=affinity, relaxed=self._lifted, budget=self._budget
        )
        self._spreads = Spread.name in settings.policies
        self._context = self._adopt(lister)
        cluster_metrics = ClusterMetrics(daemon.registry)
        self._client = connect(settings.cluster, "slacktide-agent", metrics=cluster_metrics)
        self._informer = Informer(
            self._client,
            PODS,
            field_selector=f"spec.nodeName={self._node}",
            name="pods",
            metrics=cluster_metrics,
            on_add=lambda _pod: self._loop.wake(),
            on_update=lambda _old, _new: self._loop.wake(),
        )
        self._rights = Rights(self._client, needed(settings))
        self._watch = CgroupWatch(lister, time.monotonic)
        self._delays = RunDelayReader(settings.proc_root, time.monotonic, settings.pressure_threads)
        self._spool = Spool(settings.state_dir, settings.report.spool_bytes, settings.report.spool_seconds)
        self._reporter = Reporter(
            self._node,
            boot_id,
            self._spool,
            settings.report,
            settings.predictor,
            held=lambda: self._parts.drilling.board.hold(),
        )
        self._parts = AgentParts(
            daemon,
            self._node,
            boot_id,
            hierarchy,
            lister,
            self.capabilities,
            self._client,
            helpers,
            self._guard,
            lambda: (self._reporter.connected, self._spool.waiting()),
        )
        self._live = Live()
        self._explainer = Explainer(
            self._node,
            lambda: daemon.settings,
            writes=lambda: not (daemon.settings.observe_only or self.capabilities.observe_only),
            lost=lambda: self._parts.audit_lost,
            since=time.time(),
        )
        self._metrics = AgentMetrics(daemon.registry, self.capabilities)
        follow_certificates(settings, daemon.registry)
        self._turns = 0
        self._loop = self._make_loop(hierarchy, lister, proc)

    def _lifted(self) -> int:
        """How often the watchdog lifted limits."""
        return self._guard.fired if self._guard is not None else 0

    def _own_cgroup(self, hierarchy: Hierarchy) -> None:
        settings = self._daemon.settings
        if not settings.own_cgroup:
            return
        try:
            problems = join_own(hierarchy, settings.own_cgroup, settings.own_memory_bytes, os.getpid())
        except ValueError as error:
            raise SettingsError([f"own_cgroup: {error}"]) from error
        for problem in problems:
            _LOG.warning("own cgroup", problem=problem)

    def _adopt(self, lister: CgroupLister) -> Context:
        """Take over what an earlier agent left; its masks are given back where nothing places threads any more."""
        adopted = self._executor.adopt() if lister.version is not None else None
        if self._journal.problem:
            _LOG.warning("journal unusable, originals come from the kubelet's rules", problem=self._journal.problem)
        entries = len(self._journal.entries())
        if entries:
            _LOG.info("adopted what an earlier agent left", knobs=entries, be_limit_millis=adopted)
        if self._daemon.settings.observe_only:
            if entries:
                _LOG.warning("observe only: what an earlier agent left stays; `agent restore` gives it back")
        elif not self._spreads and self._journal.masks() and not self.capabilities.observe_only:
            outcome = self._executor.restore_masks()
            _LOG.info("masks of threads restored", writes=outcome.writes, problems=list(outcome.problems))
        return Context(
            capabilities=self.capabilities,
            adopted_be_limit_millis=adopted,
            adopted_masks=self._journal.masks(),
            journal_lost=self._journal.lost,
        )

    def _make_loop(self, hierarchy: Hierarchy, lister: CgroupLister, proc: Proc) -> Loop:
        settings = self._daemon.settings
        budget = self._budget
        changed = self._watch.take_changed
        reader = HostReader(hierarchy, lister, proc, time.monotonic, budget=budget, changed=changed)
        signals = HostSignals(reader, self._delays, proc)
        cpus = max(1, proc.counters().capacity_cpu_millis // 1000)
        return Loop(
            lambda: self._daemon.settings,
            reader,
            Beat(
                signals,
                self.capabilities,
                settings.pressure_window_seconds,
                cpus,
                self._parts.burnt_seconds,
                lambda: self._daemon.settings.shortage.busy_percent / 100,
            ),
            PodBook(self._informer, settings.resources),
            self._policies,
            self._context,
            self._executor,
            on_turn=self._after_turn,
            on_sample=self._reporter.submit,
            on_arrival=self._metrics.arrival,
            watch=self._watch,
            effects=self._parts.effects,
            threads=self._thread_reader(lister, hierarchy, budget),
        )

    def _thread_reader(self, lister: CgroupLister, hierarchy: Hierarchy, budget: FdBudget) -> ThreadReader | None:
        """Where threads of BE are read from; none where no policy places any."""
        if not self._spreads:
            return None
        root = self._daemon.settings.proc_root
        return ThreadReader(lister, hierarchy, root, time.monotonic, ballast=self._parts.burnt, budget=budget)

    def start(self) -> None:
        """Start all threads; never waits for API or predictor."""
        _LOG.info("host", cgroups=self.capabilities.mode, can_write=sorted(self.capabilities.writable))
        for what, reason in sorted(self.capabilities.skipped.items()):
            _LOG.info("not on this node", what=what, reason=reason)
        if self._daemon.settings.observe_only:
            _LOG.warning("observe only, as asked: what would be done is said, and nothing written")
        elif self.capabilities.observe_only:
            _LOG.warning("observe only: nothing can be written on this node")
        if self._spool.problem:
            _LOG.warning("spool set aside", problem=self._spool.problem)
        self._daemon.routes |= {
            "/status": self._live.body,
            LADDER_ROUTE: self._explainer.ladder,
            POD_ROUTE: Queried(self._explainer.pod),
            EVICTIONS_ROUTE: Queried(self._explainer.evictions),
        }
        self._daemon.health.add_live("turn", self._turn_age)
        self._daemon.health.add_ready("turn", lambda: None if self._turns else "no turn was done yet")
        self._daemon.health.add_ready("pods", lambda: None if self._informer.synced else "the API has not answered yet")
        self._daemon.health.add_ready("permissions", self._rights.problem)
        self._informer.start()
        self._rights.start()
        self._reporter.start()
        self._parts.start()
        self._loop.start()
        if self._guard is not None:
            earlier = self._guard.earlier()
            if earlier is not None:
                _LOG.warning("the watchdog of an earlier agent lifted limits", report=msgspec.to_builtins(earlier))
            self._guard.watch(lambda: self._loop.last_sign)

    def stop(self) -> None:
        """End the loop, restore, end the rest. A loop that hangs is not waited for, and nothing is restored over it."""
        ended = self._loop.stop(_LOOP_STOP_SECONDS)
        restores = self._daemon.settings.restore_on_stop and not self._daemon.settings.observe_only
        if ended:
            if restores:
                outcome = self._executor.restore()
                _LOG.info("restored", writes=outcome.writes, problems=list(outcome.problems))
        else:
            _LOG.error("the control loop does not end: the watchdog is left to lift its limits")
        if self._guard is not None:
            self._guard.stop(lift=not ended)
        self._parts.stop(restore=restores)
        self._reporter.stop()
        self._informer.stop()
        self._rights.stop()
        self._client.close()
        self._spool.close()
        self._watch.close()
        self._delays.close()

    def _turn_age(self) -> str | None:
        if self._parts.effects.silenced:
            # A drill keeps it silent for a bounded time: whoever restarted the agent now would spoil it.
            return None
        age = time.monotonic() - self._loop.last_sign
        limit = max(_LIVE_SECONDS, SILENT_TURNS * self._daemon.settings.turn_seconds)
        return None if age < limit else f"no turn went well for {age:.1f} s"

    def _after_turn(self, turn: Turn) -> None:
        """On the control thread: publish status and metrics."""
        self._turns = turn.number
        self._parts.drilling.look(turn)
        self._explainer.look(turn)
        counters = self._counters()
        observes = self._daemon.settings.observe_only
        drill = self._parts.drilling.board.current()
        missing = dict(self._parts.why_not())
        if self._watch.why_not:
            missing["inotify"] = self._watch.why_not
        known = (self._node, turn, self.capabilities, counters)
        self._live.set(lambda: status_of(*known, observe_only=observes, drill=drill, missing=missing))
        ballast = self._parts.ballast()
        if ballast is not None:
            self._metrics.ballast(ballast)
        self._metrics.turn(turn, counters, self._spool.size_bytes, connected=self._reporter.connected)

    def _counters(self) -> dict[str, int]:
        report = self._reporter.counters
        return {
            **self._loop.counters,
            **self._parts.counters(),
            **{name: self._executor.counters[name] for name in _EXECUTOR_COUNTERS},
            "watchdog": self._lifted(),
            "watchdog_restarts": self._guard.restarts if self._guard is not None else 0,
            "spool_drops": self._spool.dropped + report["queue_drops"],
            "samples_sent": report["sent"],
            "samples_acknowledged": report["acknowledged"],
            "samples_refused": report["refused"],
            "stream_failures": report["failures"],
        }


_EXECUTOR_COUNTERS: Final = (
    *("writes", "drift", "fights", "refused", "mismatch", "vanished", "journal_errors"),
    *("spread_refused", "spread_vanished"),
)


def _host(settings: AgentSettings) -> tuple[Hierarchy, CgroupLister]:
    """Where cgroups are. Raises SettingsError for a root that leaves the mount."""
    hierarchy = discover(settings.proc_root)
    try:
        return hierarchy, CgroupLister(hierarchy, settings.cgroup_root)
    except ValueError as error:
        raise SettingsError([f"cgroup_root: {error}"]) from error


def _guard(settings: AgentSettings) -> Guard:
    """The watchdog; where turns are long, some may be missed before it acts."""
    return Guard(settings.state_dir, settings.proc_root, settings.watchdog_limit_seconds)
