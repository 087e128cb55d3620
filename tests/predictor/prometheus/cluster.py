"""A cluster whose use is known: its past as cAdvisor, kube-state-metrics and node-exporter would have told it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.predictor.prometheus.server import Text

BEGIN = 1704844800
"""2024-01-10T00:00Z, a full slot, hour and day."""
SLOT = 300
SCRAPE = 30
MIB = 1 << 20


@dataclass
class Load:
    """Cores by slot, bytes by slot; None = not running."""

    cores: list[float | None]
    memory: list[float | None]

    def cpu_seconds(self, at: float) -> float | None:
        """The counter at an epoch second; None where the container does not run."""
        slot, inside = divmod(at - BEGIN, SLOT)
        place = int(slot)
        here = self.cores[place] if place < len(self.cores) else None
        before = self.cores[place - 1] if 0 < place <= len(self.cores) else None
        # On an edge both slots have a say: the one that ends there has its last sample then.
        if here is None and not (inside == 0 and before is not None):
            return None
        first = place
        while first > 0 and self.cores[first - 1] is not None:
            first -= 1
        return sum(SLOT * cores for cores in self.cores[first:place]) + (here or 0.0) * inside

    def working_set(self, at: float) -> float | None:
        """Bytes just before an epoch second: a sample on an edge is of the slot that ends there."""
        place = int((at - BEGIN - 1) // SLOT)
        return self.memory[place] if 0 <= place < len(self.memory) else None


@dataclass
class PodOf:
    """A pod with one container."""

    node: str
    name: str
    load: Load
    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    requests: dict[str, float] = field(default_factory=dict)
    owner: tuple[str, str] | None = None
    phase: str = "Running"

    @property
    def where(self) -> dict[str, str]:
        """Labels of kube-state-metrics."""
        return {"namespace": self.namespace, "pod": self.name, "uid": self.uid or f"uid-{self.name}"}


def cadvisor(
    text: Text, pods: list[PodOf], slots: int, extra: dict[str, str] | None = None, *, containers: bool = True
) -> None:
    """What the kubelets tell: the container, its pause container, and the cgroups around both."""
    times = range(BEGIN, BEGIN + slots * SLOT + 1, SCRAPE)
    for pod in pods:
        cgroup = f"/kubepods.slice/pod{pod.where['uid']}"
        labels = {"node": pod.node, "namespace": pod.namespace, "pod": pod.name, "cpu": "total", **(extra or {})}
        views = [({"container": "", "image": "", "id": cgroup}, 1.0)]
        if containers:
            views.append(({"container": "main", "image": "app:1", "id": f"{cgroup}/c1"}, 1.0))
            views.append(({"container": "POD", "image": "pause:3", "id": f"{cgroup}/c0"}, 0.0))
        for view, share in views:
            text.series(
                "container_cpu_usage_seconds_total",
                {**labels, **view},
                times,
                lambda at, pod=pod, share=share: _scaled(pod.load.cpu_seconds(at), share),
            )
            memory = {name: value for name, value in {**labels, **view}.items() if name != "cpu"}
            text.series(
                "container_memory_working_set_bytes",
                memory,
                times,
                lambda at, pod=pod, share=share: _scaled(pod.load.working_set(at), share),
            )


def roots(text: Text, totals: dict[str, Load], slots: int, extra: dict[str, str] | None = None) -> None:
    """The root cgroup of each node."""
    times = range(BEGIN, BEGIN + slots * SLOT + 1, SCRAPE)
    for node, load in totals.items():
        labels = {"node": node, "id": "/", "container": "", "pod": "", **(extra or {})}
        text.series("container_cpu_usage_seconds_total", {**labels, "cpu": "total"}, times, load.cpu_seconds)
        text.series("container_memory_working_set_bytes", labels, times, load.working_set)


def states(text: Text, pods: list[PodOf], slots: int, capacity: dict[str, tuple[float, float]]) -> None:
    """What kube-state-metrics tells."""
    times = range(BEGIN, BEGIN + slots * SLOT + 1, SCRAPE)
    for node, (cores, memory) in capacity.items():
        text.series("kube_node_info", {"node": node, "internal_ip": address(node)}, times, lambda _: 1.0)
        for resource, amount in (("cpu", cores), ("memory", memory)):
            text.series("kube_node_status_capacity", {"node": node, "resource": resource}, times, lambda _, a=amount: a)
    for pod in pods:

        def there(at: float, pod: PodOf = pod) -> float | None:
            return None if pod.load.working_set(at) is None else 1.0

        text.series("kube_pod_info", {**pod.where, "node": pod.node}, times, there)
        text.series("kube_pod_labels", {**pod.where, **pod.labels}, times, there)
        for phase in ("Pending", "Running", "Succeeded"):
            text.series(
                "kube_pod_status_phase",
                {**pod.where, "phase": phase},
                times,
                lambda at, phase=phase, pod=pod, there=there: _scaled(there(at), float(phase == pod.phase)),
            )
        if pod.owner:
            kind, name = pod.owner
            owner = {"owner_kind": kind, "owner_name": name, "owner_is_controller": "true"}
            text.series("kube_pod_owner", {**pod.where, **owner}, times, there)
        for resource, amount in pod.requests.items():
            text.series(
                "kube_pod_container_resource_requests",
                {**pod.where, "node": pod.node, "container": "main", "resource": resource},
                times,
                lambda at, amount=amount, there=there: _scaled(there(at), amount),
            )


def exporter(text: Text, totals: dict[str, Load], slots: int, capacity: dict[str, tuple[float, float]]) -> None:
    """What node-exporter tells of the same nodes, by instance only, on one core of several modes."""
    times = range(BEGIN, BEGIN + slots * SLOT + 1, SCRAPE)
    for node, load in totals.items():
        instance = {"instance": f"{address(node)}:9100", "job": "node"}
        cores, memory = capacity[node]
        for mode, share in (("user", 0.75), ("system", 0.25), ("guest", 0.5), ("iowait", 0.1)):
            text.series(
                "node_cpu_seconds_total",
                {**instance, "cpu": "0", "mode": mode},
                times,
                lambda at, load=load, share=share: _scaled(load.cpu_seconds(at), share),
            )
        for cpu in range(int(cores)):
            idle = {**instance, "cpu": str(cpu), "mode": "idle"}
            text.series("node_cpu_seconds_total", idle, times, lambda at: (at - BEGIN) * 0.5)
        text.series("node_memory_MemTotal_bytes", instance, times, lambda _, memory=memory: memory)
        text.series(
            "node_memory_MemAvailable_bytes",
            instance,
            times,
            lambda at, load=load, memory=memory: _rest(memory, load.working_set(at)),
        )


def address(node: str) -> str:
    """Address of a node whose name ends with a number."""
    return f"10.0.0.{node.rpartition('-')[2]}"


def _scaled(value: float | None, share: float) -> float | None:
    return None if value is None else value * share


def _rest(memory: float, used: float | None) -> float | None:
    return None if used is None else memory - used
