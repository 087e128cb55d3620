"""The few fields of Kubernetes objects that Slacktide reads, as msgspec structs over raw JSON.

A struct is a *view*: fields that are not listed are skipped when decoding and therefore must never be written
back. Every update is a patch of named fields (see `slacktide.cluster`), so nothing that we do not know is lost.
Quantities stay text here; `slacktide.quantity` reads them. Field names follow the API in snake case.

Defaults are the API's own, or the empty value; encoding leaves them out, `apiVersion` and `kind` too. `to_body`
adds those two and is what a create sends. In a strategic merge patch a field that is left out keeps its old value:
clear one by writing null.
Source: Kubernetes API reference, core/v1, coordination.k8s.io/v1, policy/v1.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

import msgspec


class View(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    """Base of all object views: camel-case JSON names, immutable, defaults left out when encoded."""


class OwnerReference(View, frozen=True):
    """Who owns an object (metadata.ownerReferences)."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class ObjectMeta(View, frozen=True):
    """metadata of any object. Timestamps are RFC 3339 text as the server sent them."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[OwnerReference] = []
    finalizers: list[str] = []


class ResourceRequirements(View, frozen=True):
    """requests and limits of a container or pod; values are quantities as text."""

    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}


Quantity = str | int | float
"""A quantity as JSON carries it: usually text, but the API accepts bare numbers too."""


class EnvVar(View, frozen=True):
    """One environment variable of a container."""

    name: str
    value: str = ""
    value_from: dict[str, Any] | None = None


class ContainerPort(View, frozen=True):
    """A port of a container; only `host_port` matters for placement."""

    container_port: int = 0
    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")


class ExecAction(View, frozen=True):
    """Command of a probe."""

    command: list[str] = []


class TCPSocketAction(View, frozen=True):
    """Port of a probe."""

    port: int | str = 0
    host: str = ""


class HTTPGetAction(View, frozen=True):
    """HTTP request of a probe."""

    port: int | str = 0
    path: str = "/"
    host: str = ""
    scheme: str = "HTTP"


class Probe(View, frozen=True):
    """readiness, liveness or startup probe; durations in whole seconds."""

    exec: ExecAction | None = None
    tcp_socket: TCPSocketAction | None = None
    http_get: HTTPGetAction | None = None
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3


class Container(View, frozen=True):
    """One container of a pod."""

    name: str = ""
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    working_dir: str = ""
    env: list[EnvVar] = []
    ports: list[ContainerPort] = []
    resources: ResourceRequirements = ResourceRequirements()
    restart_policy: str | None = None
    readiness_probe: Probe | None = None


class Toleration(View, frozen=True):
    """A taint that the pod tolerates. Empty key with Exists tolerates everything; empty effect means all."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class SchedulingGate(View, frozen=True):
    """A gate that keeps a pod out of the scheduling queue."""

    name: str


class SchedulingGroup(View, frozen=True):
    """Which pods are placed together with this one: those that name the same PodGroup (scheduling.k8s.io)."""

    pod_group_name: str = ""


class PodSpec(View, frozen=True):
    """spec of a pod."""

    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    restart_policy: str = "Always"
    termination_grace_period_seconds: int | None = None
    containers: list[Container] = []
    init_containers: list[Container] = []
    overhead: dict[str, Quantity] = {}
    resources: ResourceRequirements | None = None
    node_selector: dict[str, str] = {}
    affinity: dict[str, Any] | None = None
    tolerations: list[Toleration] = []
    topology_spread_constraints: list[dict[str, Any]] = []
    scheduling_gates: list[SchedulingGate] = []
    scheduling_group: SchedulingGroup | None = None
    volumes: list[dict[str, Any]] = []
    resource_claims: list[dict[str, Any]] = []
    host_network: bool = False


class PodCondition(View, frozen=True):
    """One entry of status.conditions of a pod. `status` is True, False or Unknown."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class ContainerStateRunning(View, frozen=True):
    """State of a container that runs."""

    started_at: str | None = None


class ContainerStateWaiting(View, frozen=True):
    """State of a container that does not run yet."""

    reason: str = ""
    message: str = ""


class ContainerStateTerminated(View, frozen=True):
    """State of a container that ended."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class ContainerState(View, frozen=True):
    """At most one of the three is set."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(View, frozen=True):
    """What the kubelet (or our runner) says about one container. `container_id` is `runtime://id`.

    `allocated_resources` and `resources` (what the node gave, what is in force) are only set by kubelets that
    resize in place.
    """

    name: str
    ready: bool = False
    started: bool | None = None
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    allocated_resources: dict[str, Quantity] = {}
    resources: ResourceRequirements | None = None


class PodStatus(View, frozen=True):
    """status of a pod. `phase` is Pending, Running, Succeeded, Failed or Unknown."""

    phase: str = ""
    qos_class: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    start_time: str | None = None
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: list[PodCondition] = []
    container_statuses: list[ContainerStatus] = []
    init_container_statuses: list[ContainerStatus] = []


class Pod(View, frozen=True):
    """A pod (core/v1)."""

    api_version: str = "v1"
    kind: str = "Pod"
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Taint(View, frozen=True):
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""


class NodeSpec(View, frozen=True):
    """spec of a node."""

    unschedulable: bool = False
    taints: list[Taint] = []
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeCondition(View, frozen=True):
    """One entry of status.conditions of a node. `status` is True, False or Unknown."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class NodeAddress(View, frozen=True):
    """One address of a node."""

    type: str
    address: str


class ContainerImage(View, frozen=True):
    """An image that a node has; `names` are all it goes by there, with tag or digest; null for one without."""

    names: list[str] | None = None
    size_bytes: int = 0


class NodeStatus(View, frozen=True):
    """status of a node; capacity and allocatable are quantities as text."""

    capacity: dict[str, Quantity] = {}
    allocatable: dict[str, Quantity] = {}
    conditions: list[NodeCondition] = []
    addresses: list[NodeAddress] = []
    images: list[ContainerImage] = []
    node_info: dict[str, Any] = {}


class Node(View, frozen=True):
    """A node (core/v1)."""

    api_version: str = "v1"
    kind: str = "Node"
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class ObjectReference(View, frozen=True):
    """Names another object (event.involvedObject, binding.target)."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""


class EventSource(View, frozen=True):
    """Who said an event."""

    component: str = ""
    host: str = ""


class Event(View, frozen=True):
    """An event (core/v1). `type` is Normal or Warning; repeats raise `count`."""

    api_version: str = "v1"
    kind: str = "Event"
    metadata: ObjectMeta = ObjectMeta()
    involved_object: ObjectReference = ObjectReference()
    type: str = ""
    reason: str = ""
    message: str = ""
    source: EventSource = EventSource()
    count: int = 0
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    reporting_component: str = ""
    reporting_instance: str = ""


class LeaseSpec(View, frozen=True):
    """spec of a lease (coordination.k8s.io/v1). Times are RFC 3339 with microseconds."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(View, frozen=True):
    """A lease (coordination.k8s.io/v1)."""

    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"
    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


def to_body(view: Pod | Node | Event | Lease) -> dict[str, Any]:
    """JSON-ready body of a whole object, `apiVersion` and `kind` included, other defaults left out."""
    fields: dict[str, Any] = msgspec.to_builtins(view)
    return {"apiVersion": view.api_version, "kind": view.kind, **fields}


_CRON_JOB: Final = re.compile(r"(?P<name>.+)-[0-9]{8}")
"""Minutes since the epoch have eight digits from 1989 to 2160."""

TERMINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


def is_terminal(pod: Pod) -> bool:
    """Whether the pod has ended for good and holds no resources any more."""
    return pod.status.phase in TERMINAL_PHASES


def is_terminating(pod: Pod) -> bool:
    """Whether deletion of the pod has begun; its resources are still held until it is gone."""
    return pod.metadata.deletion_timestamp is not None


def pod_key(pod: Pod) -> str:
    """`namespace/name`, the name people know a pod by."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def owner_group(pod: Pod) -> str:
    """What makes pods like `pod`, as `Kind/namespace/name`; empty for a pod that nothing controls.

    Pods of one group do the same work, so what is known of one says something of the next. A ReplicaSet or Job that
    itself was made by a Deployment or CronJob counts as that: its name is the maker's and a suffix (the pod template's
    hash; the scheduled time in minutes), which saves two caches that hold nothing else of use.
    Source: kubernetes pkg/controller/deployment/sync.go, pkg/controller/cronjob/cronjob_controllerv2.go (getJobName).
    """
    owner = next((one for one in pod.metadata.owner_references if one.controller), None)
    if owner is None:
        return ""
    kind, name = owner.kind, owner.name
    template = pod.metadata.labels.get("pod-template-hash", "")
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        kind, name = "Deployment", name.removesuffix(f"-{template}")
    elif kind == "Job" and (scheduled := _CRON_JOB.fullmatch(name)):
        kind, name = "CronJob", scheduled["name"]
    return f"{kind}/{pod.metadata.namespace}/{name}"


def epoch_seconds(timestamp: str | None) -> float | None:
    """Seconds since the epoch of RFC 3339 text; None when it is none, or names no zone."""
    try:
        when = datetime.fromisoformat(timestamp or "")
    except ValueError:
        return None
    return when.timestamp() if when.tzinfo is not None else None
