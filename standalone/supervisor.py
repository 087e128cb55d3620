"""Starts the daemons, watches them, starts again what ends; never more than one of each.

One thread turns it (`turn`, a few times a second): reap, start what is due, ask for readiness, write down what
runs. Children are started from that thread on purpose, see `standalone.tether`. A daemon that does not answer
for a minute is killed and started again like one that ended. No decision here stops a pod: pods belong to the
runner's shims, which outlive every daemon.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from slacktide.disk import write_atomically
from standalone.components import Component
from standalone.probe import Answer, ready
from standalone.process import ProcessId, identify, stop
from standalone.restart import RestartPolicy, after_exit
from standalone.state import StateDir

STOP_GRACE_SECONDS: Final = 12.0
"""Daemons promise to end within 10 s of SIGTERM; then they are killed."""
SILENT_SECONDS: Final = 60.0
CALM_SECONDS: Final = 10.0
"""How long a daemon is held back for the others to start, at most."""
LOG_BYTES: Final = 8 << 20
SETTINGS_EXIT: Final = 2

_PROBE_SECONDS: Final = 1.0
_PROBE_SECONDS_STARTING: Final = 0.1
_TETHER: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tether.py")

Status = Literal["waiting", "starting", "ready", "not ready", "restarting", "crash loop", "stopped"]


class ComponentReport(msgspec.Struct, kw_only=True):
    """One daemon as written to run/supervisor.json. `since` is the wall time of the last change of `status`."""

    name: str
    status: Status = "waiting"
    detail: str = ""
    pid: int | None = None
    start_time: int | None = None
    restarts: int = 0
    since: float = 0.0
    log: str = ""


class SupervisorReport(msgspec.Struct, kw_only=True):
    """run/supervisor.json. `updated` is wall time, seconds since the epoch."""

    pid: int
    start_time: int
    node: str
    phase: Literal["starting", "ready", "degraded", "stopping"]
    updated: float
    components: list[ComponentReport]


@dataclass(slots=True)
class _Child:
    component: Component
    report: ComponentReport
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    answered: float = 0.0
    due: float = 0.0
    failures: int = 0
    next_probe: float = 0.0
    was_ready: bool = False
    wanted: bool = True


Spawn = Callable[[Component, str], "subprocess.Popen[bytes]"]


def spawn(component: Component, log: str, directory: str = "/") -> subprocess.Popen[bytes]:
    """Start a daemon tied to this process, in a session of its own so that Ctrl-C in a terminal does not reach it."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-S", "-E", _TETHER, str(os.getpid()), *component.argv],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            cwd=directory,
        )
    finally:
        os.close(descriptor)


class Supervisor:
    """Keeps the given daemons running. Clock, spawner and probe are injected; `on_change` hears each new status."""

    def __init__(
        self,
        components: Sequence[Component],
        state: StateDir,
        node: str,
        *,
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        spawner: Spawn | None = None,
        probe: Callable[[str], Answer] = ready,
        on_change: Callable[[ComponentReport], None] = lambda _report: None,
    ) -> None:
        self._state = state
        self._node = node
        self._policy = policy or RestartPolicy()
        self._clock = clock
        self._wall = wall
        self._spawn = spawner or (lambda component, log: spawn(component, log, state.root))
        self._probe = probe
        self._children = {
            c.name: _Child(c, ComponentReport(name=c.name, log=state.log_file(c.name))) for c in components
        }
        self._on_change = on_change
        self._began = clock()
        self._stopping = False
        self._written = b""
        self.trouble = ""
        """What keeps the supervisor itself from its work, in words; empty when nothing does."""

    def turn(self) -> None:
        """One round over all daemons. A full disk is reported in `trouble` and never ends the supervision."""
        trouble = ""
        for child in self._children.values():
            try:
                self._reap(child)
                self._start_if_due(child)
                self._ask(child)
                rotate(child.report.log)
            except OSError as error:
                trouble = f"{child.component.name}: {error}"
                if child.process is None:
                    child.due = self._clock() + self._policy.longest_seconds
                    self._set(child, "restarting", f"cannot be started: {error}")
        rotate(self._state.log_file("supervisor"))
        self.trouble = self._write() or trouble

    @property
    def reports(self) -> Mapping[str, ComponentReport]:
        """What is known of each daemon, by name."""
        return {name: child.report for name, child in self._children.items()}

    @property
    def report(self) -> SupervisorReport:
        """What run/supervisor.json says."""
        me = identify(os.getpid())
        return SupervisorReport(
            pid=os.getpid(),
            start_time=me.start_time if me else 0,
            node=self._node,
            phase=self._phase(),
            updated=self._wall(),
            components=[child.report for child in self._children.values()],
        )

    def all_ready(self) -> bool:
        """Whether every daemon says that it is ready."""
        return all(child.report.status == "ready" for child in self._children.values())

    def start_failure(self) -> str | None:
        """Name of a daemon that will not come up by waiting: bad settings, or ended three times and was never ready."""
        for name, child in self._children.items():
            ended_badly = child.report.detail.startswith(f"exit code {SETTINGS_EXIT}") or child.failures >= 3
            if child.process is None and ended_badly and not child.was_ready:
                return name
        return None

    def reload(self) -> None:
        """Pass SIGHUP on: daemons read their settings files again."""
        for child in self._children.values():
            if child.process is not None and child.process.poll() is None:
                child.process.send_signal(signal.SIGHUP)

    def begin_stop(self) -> None:
        """Say in the report that the end has begun; daemons are still kept running until `stop` names them."""
        self._stopping = True

    def stop(self, name: str, grace: float = STOP_GRACE_SECONDS) -> bool:
        """End one daemon for good. False when it had to be killed. A name that is not supervised is done already."""
        child = self._children.get(name)
        if child is None:
            return True
        child.wanted = False
        clean = True
        if child.process is not None:
            child.process.terminate()
            try:
                child.process.wait(grace)
            except subprocess.TimeoutExpired:
                clean = False
                child.process.kill()
                child.process.wait()
        self._clear(child, "stopped", "" if clean else f"had to be killed after {grace:g} s")
        self._write()
        return clean

    def _reap(self, child: _Child) -> None:
        if child.process is None or (code := child.process.poll()) is None:
            return
        verdict = after_exit(child.failures, self._clock() - child.started, self._policy)
        child.failures = verdict.failures
        child.due = self._clock() + verdict.delay
        self._clear(child, "crash loop" if verdict.looping else "restarting", describe_exit(code))

    def _clear(self, child: _Child, status: Status, detail: str) -> None:
        child.process = None
        child.report.pid = child.report.start_time = None
        self._set(child, status, detail)

    def _start_if_due(self, child: _Child) -> None:
        if child.process is not None or not child.wanted or self._clock() < child.due:
            return
        missing = self._not_ready_yet(child.component.after)
        if not missing and self._clock() - self._began < CALM_SECONDS:
            missing = self._not_ready_yet(child.component.calm_after)
        if missing:
            self._set(child, "waiting", f"for {', '.join(missing)}")
            return
        first = child.report.status == "waiting"
        child.process = self._spawn(child.component, child.report.log)
        identity = identify(child.process.pid)
        child.report.pid = child.process.pid
        child.report.start_time = identity.start_time if identity else None
        child.report.restarts += 0 if first else 1
        child.started = child.answered = child.next_probe = self._clock()
        self._set(child, "starting", "" if first else f"again, after {child.report.detail}")

    def _not_ready_yet(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name in self._children and not self._children[name].was_ready]

    def _ask(self, child: _Child) -> None:
        now = self._clock()
        if child.process is None or now < child.next_probe:
            return
        answer = self._probe(child.component.observe)
        ready_now = answer.answered and answer.ready
        child.next_probe = now + (_PROBE_SECONDS if ready_now else _PROBE_SECONDS_STARTING)
        if answer.answered:
            child.answered = now
        elif now - child.answered > SILENT_SECONDS:
            # The exit is seen by the next turn, which starts it again.
            child.process.kill()
        if ready_now:
            child.was_ready = True
            self._set(child, "ready", "")
        else:
            self._set(child, "not ready" if child.was_ready else "starting", answer.detail)

    def _set(self, child: _Child, status: Status, detail: str) -> None:
        changed = child.report.status != status
        child.report.status, child.report.detail = status, detail
        if changed:
            child.report.since = self._wall()
            self._on_change(child.report)

    def _phase(self) -> Literal["starting", "ready", "degraded", "stopping"]:
        if self._stopping:
            return "stopping"
        if self.all_ready():
            return "ready"
        return "degraded" if all(child.was_ready for child in self._children.values()) else "starting"

    def _write(self) -> str:
        """Write the report if it says something new; returns what went wrong."""
        report = self.report
        # Compared without the time stamp: an unchanged report costs no disk write.
        content = msgspec.json.encode((report.phase, report.components))
        if content == self._written:
            return ""
        try:
            write_atomically(self._state.supervisor_file, msgspec.json.encode(report), durable=False)
        except OSError as error:
            return str(error)
        self._written = content
        return ""


def describe_exit(code: int) -> str:
    """An exit status of subprocess in words."""
    if code >= 0:
        meaning = {0: " without being asked to", SETTINGS_EXIT: " (its settings cannot be used)"}.get(code, "")
        return f"exit code {code}{meaning}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def rotate(log: str, limit: int = LOG_BYTES) -> None:
    """Keep a daemon's log below `limit` bytes: copy to LOG.1, then empty it.

    The daemon holds the file open in append mode and goes on at its new end; lines written between copy and
    truncation are lost, the price of not standing between the daemon and its log.
    """
    try:
        if os.path.getsize(log) <= limit:
            return
        with open(log, "rb") as source, open(f"{log}.1", "wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
        os.truncate(log, 0)
    except FileNotFoundError:
        return


def tail(log: str, lines: int = 15) -> str:
    """The last lines of a log, for a person who must see why; empty when there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - (1 << 16)))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def read_report(state: StateDir) -> SupervisorReport | None:
    """What the present or last supervisor wrote; None when there is nothing readable."""
    try:
        with open(state.supervisor_file, "rb") as file:
            return msgspec.json.decode(file.read(), type=SupervisorReport)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def stop_leftovers(state: StateDir, grace: float = STOP_GRACE_SECONDS) -> list[str]:
    """End daemons that a killed supervisor left behind, found by recorded pid and start time; returns their names.

    Called with the lock held, so the recorded supervisor is dead. Its daemons have SIGTERM already (see
    `standalone.tether`); this waits for them, and takes those that hang.
    """
    report = read_report(state)
    ended = []
    for component in report.components if report else ():
        if component.pid is None or component.start_time is None:
            continue
        process = ProcessId(component.pid, component.start_time)
        if identify(component.pid) == process:
            stop(process, grace)
            ended.append(component.name)
    return ended
