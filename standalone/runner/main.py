"""The node runner as a daemon: wiring, loop, shutdown. Containers outlive it and are adopted by its successor."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Final

from slacktide.cluster import NODES, PODS, Client, ClusterMetrics, EventRecorder, Informer, connect
from slacktide.cluster.errors import ClusterError
from slacktide.errors import KernelError
from slacktide.kernel.hierarchy import Hierarchy, discover
from slacktide.objects import Node, Pod
from slacktide.observe import Daemon, get_logger, run_daemon
from slacktide.resources import node_allocatable
from slacktide.weights import shares_of
from standalone.runner.containers import Containers, LogRules
from standalone.runner.groups import Groups, why_not
from standalone.runner.heartbeat import Heartbeat
from standalone.runner.lifecycle import BackOff
from standalone.runner.machine import Machine, read_machine, read_pressure
from standalone.runner.metrics import Metrics
from standalone.runner.narrator import Narrator
from standalone.runner.nodeobject import NodeFacts, Thresholds
from standalone.runner.outbox import Outbox
from standalone.runner.plan import Rules
from standalone.runner.probes import Prober
from standalone.runner.records import Store
from standalone.runner.settings import RunnerSettings
from standalone.runner.turn import Turns
from standalone.runner.wake import Wake

ABOUT: Final = "Runs the pods bound to this machine as processes in cgroups."
STALLED_SECONDS: Final = 30.0

log = get_logger("runner")


class Runner:
    """All parts of one runner. `run` returns when the daemon is to stop."""

    def __init__(self, daemon: Daemon[RunnerSettings]) -> None:
        settings = daemon.settings
        self._daemon = daemon
        self._settings = settings
        self._turned_at = time.monotonic()
        self._node = settings.node or socket.gethostname().lower()
        hierarchy = discover()
        machine = read_machine(hierarchy)
        groups, note = open_groups(settings, hierarchy, machine)
        self._store = Store(settings.state_dir, machine.boot_id)
        self._wake = Wake(self._store.wake_path)
        cluster_metrics = ClusterMetrics(daemon.registry)
        self._client = connect(settings.cluster, user_agent="slacktide-runner", metrics=cluster_metrics)
        self._pods = _informer(self._client, self._node, self._wake, cluster_metrics)
        self._nodes: Informer[Node] = Informer(
            self._client, NODES, field_selector=f"metadata.name={self._node}", name="node", metrics=cluster_metrics
        )
        self._recorder = EventRecorder(self._client, "slacktide-runner", self._node, metrics=cluster_metrics)
        self._outbox = Outbox(self._client, done=self._wake.poke)
        self._prober = Prober(self._wake.poke)
        self._metrics = Metrics(daemon.registry)
        self._containers = Containers(
            self._store,
            groups,
            LogRules(directory=settings.log_dir, max_bytes=settings.log_max_bytes, keep=settings.log_keep),
            settings.address,
            machine.boot_id,
            machine.memory_bytes,
        )
        rules = Rules(back_off=_back_off(settings))
        self._turns = Turns(
            pods=self._pods,
            containers=self._containers,
            outbox=self._outbox,
            narrator=Narrator(self._recorder, self._metrics, rules.back_off),
            prober=self._prober,
            allocatable=self._allocatable,
            metrics=self._metrics,
            rules=rules,
            address=settings.address,
        )
        self._heartbeat = self._make_heartbeat(machine, hierarchy.mode if groups else "off", note)
        daemon.health.add_live("turns", self._stalled)
        daemon.health.add_ready("pods", lambda: None if self._pods.synced else "the pods have not been listed yet")
        daemon.health.add_ready("node", self._heartbeat.trouble)

    def run(self) -> None:
        """Turn until the daemon is to stop, then leave everything running."""
        stop = self._daemon.stop
        stop.on_stop(self._wake.poke)
        self._heartbeat.start()
        self._nodes.start()
        self._outbox.start()
        self._pods.start()
        while not stop.is_set():
            stop.run_pending()
            pause = self._turn()
            self._wake.wait(pause)
        self._shut()

    def _turn(self) -> float:
        tick = self._settings.tick_seconds
        try:
            due = self._turns.turn()
        except Exception:
            # The one broad handler: a turn that fails is logged and counted, and the next one begins.
            log.exception("turn failed")
            self._metrics.turn_errors.inc()
            return tick
        self._turned_at = time.monotonic()
        return tick if due is None else min(tick, max(0.0, due - self._turned_at))

    def _shut(self) -> None:
        self._pods.stop()
        self._nodes.stop()
        self._prober.stop()
        self._heartbeat.stop()
        self._outbox.stop(1.0)
        self._recorder.stop(1.0)
        self._client.close()
        self._wake.close()
        self._store.close()

    def _stalled(self) -> str | None:
        age = time.monotonic() - self._turned_at
        return None if age < STALLED_SECONDS else f"the loop has not turned for {age:.0f} s"

    def _allocatable(self, fresh: bool) -> Mapping[str, int] | None:
        if fresh:
            try:
                return node_allocatable(self._client.get(NODES, self._node))
            except ClusterError as error:
                log.warning("the node cannot be read, new pods wait", error=str(error))
                return None
        node = self._nodes.get("", self._node)
        return node_allocatable(node) if node is not None and node.status.allocatable else None

    def _make_heartbeat(self, machine: Machine, cgroups: str, note: str) -> Heartbeat:
        settings = self._settings
        return Heartbeat(
            self._client,
            NodeFacts(
                name=self._node,
                address=settings.address,
                machine=machine,
                max_pods=settings.max_pods,
                cgroups=cgroups,
                cgroups_note=note,
            ),
            problem=self._stalled,
            pressure=lambda: read_pressure([settings.state_dir, settings.log_dir]),
            thresholds=Thresholds(memory_bytes=settings.memory_pressure_bytes, disk_bytes=settings.disk_pressure_bytes),
            seconds=settings.heartbeat_seconds,
            lease_seconds=settings.lease_seconds,
        )


def open_groups(settings: RunnerSettings, hierarchy: Hierarchy, machine: Machine) -> tuple[Groups | None, str]:
    """The cgroup trees, made ready; None with the reason where they cannot or shall not be used."""
    if settings.cgroups == "off":
        return None, "cgroups are off by setting: pods run without weights and limits"
    groups = Groups(hierarchy, settings.cgroup_root)
    try:
        groups.prepare(shares_of(machine.cpu_millis))
    except KernelError as error:
        note = why_not(error)
        log.warning(note)
        return None, note
    return groups, ""


def _back_off(settings: RunnerSettings) -> BackOff:
    return BackOff(
        first_seconds=settings.back_off_first_seconds,
        max_seconds=settings.back_off_max_seconds,
        reset_seconds=settings.back_off_reset_seconds,
    )


def _informer(client: Client, node: str, wake: Wake, metrics: ClusterMetrics) -> Informer[Pod]:
    def changed(*_: object) -> None:
        wake.poke()

    selector = f"spec.nodeName={node}"
    return Informer(
        client, PODS, field_selector=selector, on_add=changed, on_update=changed, on_delete=changed, metrics=metrics
    )


def _run(daemon: Daemon[RunnerSettings]) -> None:
    os.makedirs(daemon.settings.log_dir, mode=0o750, exist_ok=True)
    Runner(daemon).run()


def main(argv: list[str] | None = None) -> int:
    """Run the node runner until SIGTERM; returns the exit code."""
    return run_daemon("runner", RunnerSettings, _run, argv, about=ABOUT)
