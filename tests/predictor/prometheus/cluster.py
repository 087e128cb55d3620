"""A cluster whose use is known: its past as cAdvisor, kube-state-metrics and node-exporter would have told it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tests.predictor.prometheus.server import Text

BEGIN = 1704844800
"""2024-01-10T00:00Z, a full slot, hour and day."""
SLOT = 300
MIB = 1 << 20

Steps = list[float | None]


@dataclass
class Load:
    """Cores by slot, bytes by slot; None = not running. The counter starts at `offset` core seconds."""

    cores: Steps
    memory: Steps
    offset: float = 0.0

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
        return self.offset + sum(SLOT * (cores or 0.0) for cores in self.cores[first:place]) + (here or 0.0) * inside

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
    labels: dict[str, str] = field(default_factory=dict)
    requests: dict[str, float] = field(default_factory=dict)
    owner: tuple[str, str] | None = None
    phase: str = "Running"

    @property
    def where(self) -> dict[str, str]:
        """Labels of kube-state-metrics."""
        return {"namespace": self.namespace, "pod": self.name, "uid": f"uid-{self.name}"}


def sum_of(loads: Iterable[Load], slots: int, cores: float = 0.0, memory: float = 0.0) -> Load:
    """All of `loads` together, and so much more."""
    taken = list(loads)
    return Load(
        [cores + sum(load.cores[slot] or 0.0 for load in taken) for slot in range(slots)],
        [memory + sum(load.memory[slot] or 0.0 for load in taken) for slot in range(slots)],
    )


def by_node(node: str) -> dict[str, str]:
    """The label that names a node, as most clusters have it."""
    return {"node": node}


class Past:
    """Writes what the exporters of one cluster would have told from BEGIN on, each `scrape` seconds."""

    def __init__(
        self,
        text: Text,
        slots: int,
        cluster: str,
        *,
        scrape: int = 30,
        down: Callable[[float], bool] = lambda _: False,
    ) -> None:
        self._text = text
        self._extra = {"cluster": cluster}
        self._times = [at for at in range(BEGIN, BEGIN + slots * SLOT + 1, scrape) if not down(at)]

    def cadvisor(
        self,
        pods: Iterable[PodOf],
        extra: Mapping[str, str] = {},
        *,
        containers: bool = True,
        named: Callable[[str], dict[str, str]] = by_node,
    ) -> None:
        """What the kubelets tell: the container, its pause container, and the cgroup around both."""
        for pod in pods:
            cgroup = f"/kubepods.slice/pod{pod.where['uid']}"
            labels = {**named(pod.node), "namespace": pod.namespace, "pod": pod.name, **extra}
            views = [({"container": "", "image": "", "id": cgroup}, 1.0)]
            if containers:
                views.append(({"container": "main", "image": "app:1", "id": f"{cgroup}/c1"}, 1.0))
                views.append(({"container": "POD", "image": "pause:3", "id": f"{cgroup}/c0"}, 0.0))
            for view, share in views:
                self.use({**labels, **view}, pod.load, share)

    def roots(
        self,
        totals: Mapping[str, Load],
        extra: Mapping[str, str] = {},
        named: Callable[[str], dict[str, str]] = by_node,
    ) -> None:
        """The root cgroup of each node."""
        for node, load in totals.items():
            self.use({**named(node), "id": "/", "container": "", "pod": "", **extra}, load)

    def use(self, labels: Mapping[str, str], load: Load, share: float = 1.0) -> None:
        """CPU and memory of one cgroup."""
        self._series(
            "container_cpu_usage_seconds_total",
            {**labels, "cpu": "total"},
            lambda at: _times(load.cpu_seconds(at), share),
        )
        self._series("container_memory_working_set_bytes", labels, lambda at: _times(load.working_set(at), share))

    def states(
        self,
        pods: Iterable[PodOf],
        capacity: Mapping[str, tuple[float, float]],
        *,
        reporter: Mapping[str, str] | None = None,
    ) -> None:
        """What kube-state-metrics tells. `reporter`: it is scraped without honor_labels, and these are its own."""
        for node, amounts in capacity.items():
            self._state("kube_node_info", {"node": node, "internal_ip": address(node)}, lambda _: 1.0, reporter)
            for resource, amount in zip(("cpu", "memory"), amounts, strict=True):
                labels = {"node": node, "resource": resource}
                self._state("kube_node_status_capacity", labels, lambda _, amount=amount: amount, reporter)
        for pod in pods:
            self._pod(pod, reporter)

    def info(self, node: str, internal_ip: str) -> None:
        """Another node of the same name."""
        self._series("kube_node_info", {"node": node, "internal_ip": internal_ip}, lambda _: 1.0)

    def _state(
        self,
        name: str,
        labels: Mapping[str, str],
        value: Callable[[float], float | None],
        reporter: Mapping[str, str] | None,
    ) -> None:
        own = reporter or {}
        moved = {f"exported_{label}" if label in own else label: text for label, text in labels.items()}
        self._series(name, {**moved, **own}, value)

    def _pod(self, pod: PodOf, reporter: Mapping[str, str] | None) -> None:
        def there(at: float, value: float = 1.0) -> float | None:
            return None if pod.load.working_set(at) is None else value

        def tell(name: str, labels: Mapping[str, str], value: float = 1.0) -> None:
            self._state(name, {**pod.where, **labels}, lambda at: there(at, value), reporter)

        tell("kube_pod_info", {"node": pod.node})
        tell("kube_pod_labels", pod.labels)
        for phase in ("Pending", "Running", "Succeeded"):
            tell("kube_pod_status_phase", {"phase": phase}, float(phase == pod.phase))
        if pod.owner:
            owner = {"owner_kind": pod.owner[0], "owner_name": pod.owner[1], "owner_is_controller": "true"}
            tell("kube_pod_owner", owner)
        for resource, amount in pod.requests.items():
            labels = {"node": pod.node, "container": "main", "resource": resource}
            tell("kube_pod_container_resource_requests", labels, amount)

    def exporter(self, totals: Mapping[str, Load], capacity: Mapping[str, tuple[float, float]]) -> None:
        """What node-exporter tells of the same nodes, by instance only."""
        for node, load in totals.items():
            instance = {"instance": f"{address(node)}:9100", "job": "node"}
            cores, memory = capacity[node]
            for mode, share in (("user", 0.75), ("system", 0.25), ("guest", 0.5), ("iowait", 0.1)):
                labels = {**instance, "cpu": "0", "mode": mode}
                self._series(
                    "node_cpu_seconds_total", labels, lambda at, load=load, s=share: _times(load.cpu_seconds(at), s)
                )
            for cpu in range(int(cores)):
                idle = {**instance, "cpu": str(cpu), "mode": "idle"}
                self._series("node_cpu_seconds_total", idle, lambda at: (at - BEGIN) * 0.5)
            self._series("node_memory_MemTotal_bytes", instance, lambda _, memory=memory: memory)
            self._series(
                "node_memory_MemAvailable_bytes",
                instance,
                lambda at, load=load, memory=memory: _rest(memory, load.working_set(at)),
            )

    def _series(self, name: str, labels: Mapping[str, str], value: Callable[[float], float | None]) -> None:
        self._text.series(name, {**labels, **self._extra}, self._times, value)


def address(node: str) -> str:
    """Address of a node whose name ends with a number."""
    return f"10.0.0.{node.rpartition('-')[2]}"


def _times(value: float | None, share: float) -> float | None:
    return None if value is None else value * share


def _rest(memory: float, used: float | None) -> float | None:
    return None if used is None else memory - used
