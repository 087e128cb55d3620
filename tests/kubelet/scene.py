"""What the tests do on the emulated node: sell, restart things, and read what the kubelet complains of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from predictor.publish import Cause, Publication
from predictor.published import names_of, patch_body
from predictor.settings import PredictorSettings
from slacktide.cluster import NODES
from slacktide.forecast import Amount, Forecast, Terms
from slacktide.objects import Pod
from tests.kubelet.agent import GuestAgent
from tests.kubelet.machine import NAME, Machine
from tests.kubelet.pods import MIB, Pods, batch

SETTINGS: Final = {
    "policies": ["batch_limits", "weight", "spread", "pids", "burst", "memory", "io", "close", "evict", "kill"],
    "watchdog_seconds": 120,
    "turn_seconds": 2,
    "beat_seconds": 0.5,
    "busy_beat_seconds": 0.5,
    "collect": {"gpu": False},
    "evict": {"max_per_hour": 0},
    "kill": {"max_per_hour": 0},
}
"""The agent's. An emulated machine is short of everything at times, and its agent late: nobody goes before a test wants
it, and what limits BE as a whole (suppress, contention) is left out, or no value would be certain."""

_ERROR: Final = re.compile(r'^E\d{4} \S+ +\d+ (\S+\.go:\d+)\] ("(?:[^"\\]|\\.)*")?')


_OF_SLOWNESS: Final = (
    "Housekeeping took longer than expected",
    "Failed to update lease",
    "Failed to get status for pod",
    "Partial failure issuing cadvisor.ContainerInfoV2",
    "Failed to create existing container",
    "failed to read memory cgroup",
    "not registered",
    "No retries permitted until",
    '"ContainerStatus from runtime service failed" err="rpc error: code = NotFound',
)
"""What a slow kubelet says now and then, whoever else is there: its own calls time out, and what it looks at is gone by
then, or not loaded yet after its restart."""


@dataclass
class Scene:
    """The node and what is known of it. `early` asked for batch resources before any were sold."""

    machine: Machine
    pods: Pods
    early: Pod | None = None
    before: dict[str, dict[str, str]] = field(default_factory=dict)
    errors_alone: set[str] = field(default_factory=set)
    agent: GuestAgent | None = None

    def sell(self, cpu_millis: int, memory_bytes: int) -> None:
        """Publish what the node may sell, by the predictor's own patch."""
        node = self.machine.node()
        amount = Amount(cpu_millis=cpu_millis, memory_bytes=memory_bytes)
        none = Amount()
        terms = Terms(capacity=none, reserve=none, peak=none, now=none, sold=none)
        forecast = Forecast(at=0.0, ttl_seconds=60.0, peak=none, reclaimable=amount, terms=terms)
        body = patch_body(node, Publication(amount, forecast, Cause.FIRST), names_of(PredictorSettings()))
        self.pods.client.patch(NODES, NAME, None, body, subresource="status")

    def sold(self) -> tuple[dict[str, str], dict[str, str]]:
        """Capacity and allocatable of the node as the API has them."""
        status = self.pods.client.get_dict(NODES, NAME)["status"]
        return status["capacity"], status["allocatable"]

    def heartbeat(self) -> str:
        """When the kubelet last reported the node."""
        conditions = self.pods.client.get_dict(NODES, NAME)["status"]["conditions"]
        return next(one["lastHeartbeatTime"] for one in conditions if one["type"] == "Ready")

    def next_heartbeat(self, count: int = 1) -> None:
        """Wait until the kubelet has reported the node so often again."""
        for _ in range(count):
            before = self.heartbeat()
            self.machine.wait(lambda before=before: self.heartbeat() != before, "report of the kubelet")

    def restart_kubelet(self) -> None:
        """End the kubelet and start another."""
        self.machine.inside.run(
            "kill $(cat /run/kubelet.pid); while kill -0 $(cat /run/kubelet.pid) 2> /dev/null; do sleep 0.2; done; "
            "sh /mnt/kubelet"
        )
        self.next_heartbeat(2)

    def errors(self) -> set[str]:
        """Where and how the kubelet logged errors, without the particulars."""
        lines = (line for line in self.machine.kubelet_log() if not any(words in line for words in _OF_SLOWNESS))
        return {f"{match[1]} {match[2] or ''}" for match in map(_ERROR.match, lines) if match}

    def restart_container(self, pod: Pod, name: str) -> Pod:
        """Kill a container's processes; the pod once the kubelet has started it again."""
        old = next(one for one in pod.status.container_statuses if one.name == name)
        for pid in self.pods.processes(self.pods.containers(pod)[name]):
            self.machine.inside.run(f"kill -KILL {pid}")

        def again():
            now = self.pods.get(pod.metadata.name)
            one = next(one for one in now.status.container_statuses if one.name == name)
            return now if one.ready and one.container_id != old.container_id else None

        return self.machine.wait(again, f"restart of {name}")

    def live(self, name: str) -> None:
        """The life of a batch pod: made, a container dies and comes back, deleted."""
        self.pods.create(name, [batch(300, 64 * MIB)])
        self.restart_container(self.pods.running(name), "c0")
        self.pods.delete(name)
