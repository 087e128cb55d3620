"""The scheduler as a process against the embedded API server as a process."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from scheduler_plugins.evictor import ApiEvictor
from scheduler_plugins.framework.nominator import Nominator
from scheduler_plugins.framework.waiting import WaitingRoom
from scheduler_plugins.metrics import SchedulerMetrics
from slacktide import names
from slacktide.cluster import EVENTS, LEASES, NODES, PODS, Client, connect
from slacktide.cluster.errors import ClusterError
from slacktide.objects import Pod
from slacktide.settings import ClusterSettings
from tests.scheduler_plugins.build import GI, READER, be, forecast, offering
from tests.scheduler_plugins.rig import Recorder

SECONDS = 40.0


def until(what: str, check: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Wait for a condition; the test fails with its name when it does not come."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


class Machine:
    """Processes in one temporary directory; everything ends with the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = path / "api.sock"
        self.client: Client = connect(ClusterSettings(server=f"unix:{self.socket}"), user_agent="test")
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        log = (self.path / f"{argv[0]}.log").open("ab")
        process = subprocess.Popen([sys.executable, "-m", *argv], stdout=log, stderr=log)
        log.close()
        self._running.append(process)
        return process

    def start_api(self) -> None:
        folders = ("--database", f"{self.path}/objects.sqlite", "--log-dir", f"{self.path}/logs")
        self.start("standalone.api", "--socket", str(self.socket), *folders)
        until("the API server answers", self.answers)

    def start_scheduler(self, *more: str) -> subprocess.Popen[bytes]:
        observe = ("--observe.listen", f"unix:{self.path}/observe.sock")
        cluster = ("--cluster.server", f"unix:{self.socket}")
        return self.start("scheduler_plugins", *cluster, *observe, "--identity", "the-one", *more)

    def observed(self, route: str) -> str:
        """What the scheduler's own endpoint answers; empty while it is not there."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(5)
                connection.connect(f"{self.path}/observe.sock")
                connection.sendall(f"GET {route} HTTP/1.0\r\nHost: scheduler\r\n\r\n".encode())
                return b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        except OSError:
            return ""

    def answers(self) -> bool:
        try:
            return bool(self.client.version().git_version)
        except ClusterError:
            return False

    def stop(self) -> None:
        self.client.close()
        for process in self._running:
            process.kill()
            process.wait()

    def offer(self, cpu: int, name: str = "n1") -> None:
        node = json.loads(msgspec.json.encode(offering(name, forecast(cpu, 8 * GI, at=time.time(), ttl=600))))
        for field in ("uid", "resourceVersion"):
            node["metadata"].pop(field)
        if name not in {n.metadata.name for n in self.client.list(NODES).items}:
            self.client.create(NODES, node)
            self.client.patch(NODES, name, None, {"status": node["status"]}, "status")
        self.client.patch(NODES, name, None, {"metadata": {"annotations": node["metadata"]["annotations"]}})

    def create(self, name: str, cpu: int, **spec: Any) -> None:
        pod = json.loads(msgspec.json.encode(be(name, cpu, **spec)))
        requests = pod["spec"]["containers"][0]["resources"]
        requests["limits"] = requests["requests"]
        pod["spec"]["containers"][0]["image"] = names.HOST_PROCESS_IMAGE
        pod["metadata"] = {"name": name, "namespace": "default"}
        self.client.create(PODS, {"metadata": pod["metadata"], "spec": pod["spec"]})

    def pods(self) -> tuple[Pod, ...]:
        return self.client.list(PODS).items

    def bound(self) -> dict[str, str]:
        return {pod.metadata.name: pod.spec.node_name for pod in self.pods() if pod.spec.node_name}

    def condition(self, name: str) -> str:
        pod = self.client.get(PODS, name, "default")
        return next((c.message for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "False"), "")

    def event_reasons(self, name: str) -> set[str]:
        return {e.reason for e in self.client.list(EVENTS, "default").items if e.involved_object.name == name}


@pytest.fixture
def machine() -> Iterator[Machine]:
    # A socket path must be short, which a path below pytest's own directory is not.
    path = Path(tempfile.mkdtemp(prefix="slk-"))
    one = Machine(path)
    try:
        yield one
    finally:
        one.stop()
        shutil.rmtree(path)


def test_pod_waits_with_its_reason_and_is_placed_when_the_forecast_grows(machine: Machine) -> None:
    scheduler = machine.start_scheduler()
    machine.start_api()
    machine.offer(1000)
    machine.create("p", 2000)
    message = until("a reason in the condition", lambda: machine.condition("p"))
    assert (
        message == "0/1 nodes are available: 1 no forecast room for kubernetes.io/batch-cpu (needs 2000m, room 1000m)."
        " preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    )
    until("the event", lambda: "FailedScheduling" in machine.event_reasons("p"))
    assert machine.bound() == {}
    machine.offer(3000)
    until("the pod is placed", lambda: machine.bound() == {"p": "n1"})
    until("the event", lambda: "Scheduled" in machine.event_reasons("p"))
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(10) == 0


def test_scheduler_killed_in_the_middle_places_nothing_twice_and_sells_nothing_twice(machine: Machine) -> None:
    machine.start_api()
    machine.offer(1000, "n1")
    machine.offer(1500, "n2")
    for i in range(30):
        machine.create(f"p{i}", 100)
    first = machine.start_scheduler()
    seen = dict(until("the first pods are placed", machine.bound))
    first.kill()
    first.wait()
    seen |= machine.bound()
    machine.start_scheduler()
    until("all room is sold", lambda: len(machine.bound()) >= 25)
    until("the rest waits with a reason", lambda: all(machine.condition(p.metadata.name) for p in waiting(machine)))
    after = machine.bound()
    assert {name: after[name] for name in seen} == seen
    assert sorted(after.values()) == ["n1"] * 10 + ["n2"] * 15
    bindings = [e for e in machine.client.list(EVENTS, "default").items if e.reason == "Scheduled"]
    assert all(event.count == 1 for event in bindings)


def test_a_scheduler_that_does_not_lead_places_nothing(machine: Machine) -> None:
    machine.start_api()
    machine.offer(4000)
    machine.create("p", 1000)
    where = {"name": names.SCHEDULER_NAME, "namespace": names.SYSTEM_NAMESPACE}
    held = {"holderIdentity": "another", "leaseDurationSeconds": 3600}
    machine.client.create(LEASES, {"metadata": where, "spec": held}, names.SYSTEM_NAMESPACE)
    machine.start_scheduler()
    until("it has listed everything", lambda: " 200 " in machine.observed("/readyz"))
    pending = 'scheduler_pending_pods{queue="active"} 1.0'
    assert pending in until("the endpoint answers", lambda: machine.observed("/metrics"))
    assert machine.bound() == {}
    free = {"spec": {"holderIdentity": ""}}
    machine.client.patch(LEASES, names.SCHEDULER_NAME, names.SYSTEM_NAMESPACE, free)
    until("the pod is placed", lambda: machine.bound() == {"p": "n1"})
    lease = machine.client.get(LEASES, names.SCHEDULER_NAME, names.SYSTEM_NAMESPACE)
    assert lease.spec.holder_identity == "the-one"


def test_preemption_through_a_real_server_marks_the_victim_and_spares_its_namesake(machine: Machine) -> None:
    machine.start_api()
    machine.offer(4000)
    machine.create("victim", 1000)
    machine.create("low", 1000)
    victim = machine.client.get(PODS, "victim", "default")
    machine.client.bind(victim, "n1")
    nominator = Nominator()
    waiting_room = WaitingRoom(time.monotonic)
    metrics = SchedulerMetrics(CollectorRegistry())
    recorder = Recorder()
    evictor = ApiEvictor(machine.client, waiting_room, nominator, recorder, metrics, time.time)
    by = READER.read(be("boss"))
    another = READER.read(msgspec.structs.replace(victim, metadata=renamed(victim, "another-uid")))
    assert evictor.preempt(another, by, "n1").ok
    assert machine.client.get(PODS, "victim", "default").metadata.deletion_timestamp is None
    assert evictor.preempt(READER.read(victim), by, "n1").ok
    left = [pod for pod in machine.pods() if pod.metadata.name == "victim"]
    assert [bool(pod.metadata.deletion_timestamp) for pod in left] == [True]
    conditions = [c for c in left[0].status.conditions if c.type == "DisruptionTarget"]
    assert [(c.status, c.reason) for c in conditions] == [("True", "PreemptionByScheduler")]
    assert [event[2] for event in recorder.events] == ["Preempted"]
    machine.client.patch(PODS, "low", "default", {"status": {"nominatedNodeName": "n1"}}, "status", "strategic")
    low = machine.client.get(PODS, "low", "default")
    assert low.status.nominated_node_name == "n1"
    assert evictor.withdraw(READER.read(low)).ok
    assert machine.client.get(PODS, "low", "default").status.nominated_node_name == ""


def renamed(pod: Pod, uid: str) -> Any:
    return msgspec.structs.replace(pod.metadata, uid=uid)


TWO_PROFILES = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
profiles:
- schedulerName: slacktide-scheduler
- schedulerName: spreading
  plugins:
    score:
      disabled: [{name: "*"}]
      enabled: [{name: NodeResourcesFit, weight: 7}]
"""


def test_two_profiles_of_a_file_and_the_cycles_that_people_can_look_at(machine: Machine) -> None:
    (machine.path / "scheduler.yaml").write_text(TWO_PROFILES)
    machine.start_api()
    for name in ("n1", "n2"):
        machine.offer(4000, name)
    machine.create("a", 1000)
    machine.create("b", 1000, schedulerName="spreading")
    machine.create("c", 9000, schedulerName="spreading")
    machine.create("d", 1000, schedulerName="nobody")
    machine.start_scheduler("--configuration", str(machine.path / "scheduler.yaml"))
    until("both profiles place their pods", lambda: machine.bound().keys() == {"a", "b"})
    until("the one that fits nowhere has a reason", lambda: machine.condition("c"))
    body = machine.observed("/debug/scheduling").partition("\r\n\r\n")[2]
    cycles = {cycle["pod"]: cycle for cycle in json.loads(body)["cycles"]}
    assert cycles.keys() == {"default/a", "default/b", "default/c"}
    scored = cycles["default/b"]
    assert (scored["profile"], scored["result"], scored["feasible"]) == ("spreading", "chosen", 2)
    assert scored["weights"] == {"NodeResourcesFit": 7}
    assert {one["node"] for one in scored["scores"]} == {"n1", "n2"}
    assert all(one["total"] == 7 * one["plugins"]["NodeResourcesFit"]["normalised"] for one in scored["scores"])
    assert "BatchForecast" in cycles["default/a"]["weights"]
    (refusal,) = cycles["default/c"]["refusals"]
    assert (cycles["default/c"]["result"], refusal["nodes"]) == ("unschedulable", 2)
    assert machine.bound() == {"a": cycles["default/a"]["node"], "b": scored["node"]}
    assert machine.client.list(LEASES, names.SYSTEM_NAMESPACE).items == ()


def waiting(machine: Machine) -> list[Pod]:
    return [pod for pod in machine.pods() if not pod.spec.node_name]


def test_a_signal_brings_a_comparison_with_the_api_into_the_log(machine: Machine) -> None:
    scheduler = machine.start_scheduler()
    machine.start_api()
    machine.offer(3000)
    machine.create("p", 2000)
    until("the pod is placed", lambda: machine.bound() == {"p": "n1"})
    log = machine.path / "scheduler_plugins.log"

    def agrees() -> bool:
        scheduler.send_signal(signal.SIGUSR2)
        return "cache and queue agree with the API" in log.read_text()

    until("cache and queue agree with the API", agrees)
    assert scheduler.poll() is None
    scheduler.send_signal(signal.SIGTERM)
    assert scheduler.wait(10) == 0
