"""Pods of the emulated node, and what the kernel holds of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slacktide.cluster import PODS
from slacktide.cluster.errors import NotFound
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from slacktide.objects import Pod
from tests.kubelet import tools
from tests.kubelet.machine import CGROUPS, NAME, Machine

NAMESPACE: Final = "work"
IDLE: Final = ("/bin/sleep", "1000000")
BUSY_AT_FIRST: Final = ("/bin/sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done; exec sleep 1000000")
POD_KNOBS: Final = ("cpu.idle", "cpu.max", "cpu.weight", "memory.high", "memory.max", "pids.max")
CONTAINER_KNOBS: Final = ("cpu.max", "cpu.weight", "memory.high", "memory.max", "memory.swap.max")
MIB: Final = 1 << 20


def batch(cpu: int, memory: int, request: int | None = None) -> dict[str, Any]:
    """Resources of a container that asks for batch resources only, in millicores and bytes."""
    limits = {BATCH_CPU: str(cpu), BATCH_MEMORY: str(memory)}
    return {"limits": limits, "requests": {**limits, BATCH_CPU: str(request or cpu)}}


def native(cpu: str, memory: str) -> dict[str, Any]:
    """Resources of a Guaranteed container."""
    return {"limits": {"cpu": cpu, "memory": memory}}


@dataclass(frozen=True)
class Group:
    """One cgroup of a pod: its directory in the guest."""

    path: str

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]


class Pods:
    """Makes pods on the node, and finds their cgroups."""

    def __init__(self, machine: Machine) -> None:
        assert machine.client is not None
        self.machine = machine
        self.client = machine.client
        self.inside = machine.inside

    def create(
        self, name: str, resources: Sequence[Mapping[str, Any]], command: Sequence[str] = IDLE, **spec: Any
    ) -> Pod:
        """A pod with one container for each of `resources`, called c0, c1 and so on."""
        containers = [
            {
                "name": f"c{number}",
                "image": tools.reference("busybox"),
                "imagePullPolicy": "Never",
                "command": list(command),
                "resources": dict(wanted),
            }
            for number, wanted in enumerate(resources)
        ]
        body = {
            "metadata": {"name": name},
            "spec": {
                "nodeName": NAME,
                "containers": containers,
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                **spec,
            },
        }
        return self.client.create(PODS, body, NAMESPACE)

    def get(self, name: str) -> Pod | None:
        """The pod as the API has it; None when it is gone."""
        try:
            return self.client.get(PODS, name, NAMESPACE)
        except NotFound:
            return None

    def running(self, name: str, restarts: int = 0) -> Pod:
        """The pod, once all its containers run and have started anew so often."""

        def found() -> Pod | None:
            pod = self.get(name)
            statuses = pod.status.container_statuses if pod is not None else ()
            ready = bool(statuses) and all(one.ready and one.restart_count >= restarts for one in statuses)
            return pod if ready else None

        return self.machine.wait(found, f"run of pod {name}")

    def delete(self, *names: str) -> None:
        """Delete pods, and wait until they and their cgroups are gone."""
        uids = [pod.metadata.uid for name in names if (pod := self.get(name)) is not None]
        for name in names:
            self.client.delete(PODS, name, NAMESPACE)
        self.machine.wait(lambda: all(self.get(name) is None for name in names), f"end of {', '.join(names)}")
        self.machine.wait(lambda: not any(map(self.directory, uids)), "end of their cgroups")

    def directory(self, uid: str) -> str:
        """Directory of the pod's cgroup, whichever driver named it; empty where there is none."""
        names = (f"pod{uid}", f"kubepods*-pod{uid.replace('-', '_')}.slice")
        found = [
            path for name in names for path in self.inside.find(f"{CGROUPS}/kubepods*/**/{name}") if "/cri-" not in path
        ]
        return found[0] if found else ""

    def group(self, pod: Pod) -> Group:
        """The pod's cgroup, which must be there."""
        path = self.directory(pod.metadata.uid)
        assert path, f"{pod.metadata.name} has no cgroup"
        return Group(path)

    def containers(self, pod: Pod) -> dict[str, Group]:
        """Cgroup of each container, and of the sandbox as `sandbox`."""
        ids = {one.container_id.rpartition("://")[2]: one.name for one in pod.status.container_statuses}
        found = {}
        for path in self.inside.find(f"{self.group(pod).path}/*/cpu.max"):
            directory = path.rpartition("/")[0]
            name = next((name for one, name in ids.items() if one in directory), "sandbox")
            found[name] = Group(directory)
        return found

    def read(self, group: Group, knob: str) -> str:
        """A knob's value; empty where the cgroup or the knob is not there."""
        (text,) = self.inside.reads([f"{group.path}/{knob}"])
        return (text or "").strip()

    def values(self, pod: Pod) -> dict[str, str]:
        """All knobs of a pod and its containers as they are now, by owner and name; those that are not there are ""."""
        paths = {f"pod {knob}": f"{self.group(pod).path}/{knob}" for knob in POD_KNOBS}
        for name, group in sorted(self.containers(pod).items()):
            paths |= {f"{name} {knob}": f"{group.path}/{knob}" for knob in CONTAINER_KNOBS}
        texts = self.inside.reads(list(paths.values()))
        return {name: (text or "").strip() for name, text in zip(paths, texts, strict=True)}

    def processes(self, group: Group) -> list[int]:
        """Process ids in a cgroup."""
        return [int(word) for word in self.read(group, "cgroup.procs").split()]
