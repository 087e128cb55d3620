"""What a pod asks for and what a node has, as integers: `cpu` in millicores, everything else in whole units.

The effective request of a pod follows the scheduler (kubernetes component-helpers, resource/helpers.go):
max(apps + sidecars, each init container + the sidecars started before it), then requests of the whole pod where
they are set, then overhead. Sums are exact and rounded up at the end, as there. A limit without a request is
its own request (API defaulting), and a container that is being resized in place counts with the largest of what is
asked, given and in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from slacktide import quantity
from slacktide.errors import QuantityError
from slacktide.forecast import Amount
from slacktide.objects import Container, ContainerStatus, Node, Pod, Quantity, ResourceRequirements
from slacktide.settings import ResourceNames
from slacktide.tier import BATCH_RESOURCES

CPU: Final = "cpu"
MEMORY: Final = "memory"
PODS: Final = "pods"

_Exact = dict[str, int]
"""Resource name -> nano units."""


def requests_of(pod: Pod) -> dict[str, int]:
    """Effective request of `pod`: only names that it asks for, `cpu` in millicores. Raises QuantityError."""
    total = _with_pod_level(pod, _aggregate(pod, _request_reader(pod)))
    _add(total, _exact(pod.spec.overhead))
    return _rounded(total)


def limits_of(pod: Pod) -> dict[str, int]:
    """Effective limit of `pod` by the same rule. Raises QuantityError.

    A name counts as limited when any container limits it, as the scheduler has it: a container without a limit
    beside one that has one is not bounded by the sum.
    """
    total = _aggregate(pod, lambda container: _exact(container.resources.limits))
    if pod.spec.resources is not None:
        total.update(_pod_level(_exact(pod.spec.resources.limits)))
    for name, amount in _exact(pod.spec.overhead).items():
        if total.get(name):
            total[name] += amount
    return _rounded(total)


def batch_request(pod: Pod, names: ResourceNames) -> Amount:
    """What `pod` takes of the sold resources; 0 for one that it does not name, since that is known."""
    requests = requests_of(pod)
    return Amount(cpu_millis=requests.get(names.cpu, 0), memory_bytes=requests.get(names.memory, 0))


def node_allocatable(node: Node) -> dict[str, int]:
    """What the pods of `node` may use, `cpu` in millicores. A resource that is absent has no entry."""
    return _rounded(_exact(node.status.allocatable))


def node_capacity(node: Node) -> dict[str, int]:
    """What `node` has, `cpu` in millicores. A resource that is absent has no entry."""
    return _rounded(_exact(node.status.capacity))


def amounts_of(quantities: Mapping[str, Quantity]) -> dict[str, int]:
    """Quantities by resource as numbers, `cpu` in millicores. Raises QuantityError."""
    return _rounded(_exact(quantities))


def qos_class(pod: Pod) -> str:
    """Guaranteed, Burstable or BestEffort, by cpu and memory alone, as the API server computes it.

    Guaranteed: every container limits both, and the requests equal the limits; a pod-level setting decides
    alone where there is one. Extended and batch resources do not count.
    """
    requests: _Exact = {}
    limits: _Exact = {}
    all_limited = True
    for asked, limited in _qos_bounds(pod):
        limit = _compute_only(limited)
        _add(requests, _compute_only(asked))
        _add(limits, limit)
        all_limited = all_limited and limit.keys() == {CPU, MEMORY}
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if all_limited and requests == limits else "Burstable"


def validate_request(
    name: str, source: Quantity, where: str = "", batch: frozenset[str] = BATCH_RESOURCES
) -> quantity.Quantity:
    """Check one request or limit of a manifest and return it; for whatever admits pods, such as the embedded API.

    `where` is the field, such as `spec.containers[0].resources.requests`, and stands in the error. Raises
    QuantityError for text that is no quantity (`1.5.2`, `1e`), a negative amount (`-1`), and a fraction of a
    resource that is counted in whole numbers: batch resources, extended resources and huge pages.
    """
    place = f"{where}[{name}]: " if where else f"{name}: "
    try:
        amount = quantity.parse(source)
    except QuantityError as error:
        raise QuantityError(f"{place}{error}") from error
    if amount.nanos < 0:
        raise QuantityError(f"{place}{source!r} is negative: a request or limit is 0 or more")
    if not amount.is_whole and (name in batch or is_extended(name) or name.startswith("hugepages-")):
        unit = "millicores" if name in batch and "cpu" in name else "units"
        raise QuantityError(f"{place}{source!r} is a fraction: this resource is a whole count of {unit}, such as 200")
    return amount


def is_extended(name: str) -> bool:
    """Whether Kubernetes treats `name` as an extended resource: with a domain, and none of kubernetes.io's.

    Such a resource is an integer and its request equals its limit. `kubernetes.io/batch-cpu` is *not* one.
    """
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


def _aggregate(pod: Pod, read: Callable[[Container], _Exact]) -> _Exact:
    """Sum of apps and sidecars, or the largest step of start-up where that needs more."""
    total: _Exact = {}
    for container in pod.spec.containers:
        _add(total, read(container))
    sidecars: _Exact = {}
    peak: _Exact = {}
    for container in pod.spec.init_containers:
        step = dict(read(container))
        if container.restart_policy == "Always":
            _add(total, step)
            _add(sidecars, step)
            step = {}
        _add(step, sidecars)
        _raise_to(peak, step)
    _raise_to(total, peak)
    return total


def _request_reader(pod: Pod) -> Callable[[Container], _Exact]:
    """Reads the request of one container of `pod`, with the status of an in-place resize in view."""
    statuses = {
        status.name: status
        for status in (*pod.status.container_statuses, *pod.status.init_container_statuses)
        if status.resources is not None
    }
    infeasible = any(
        condition.type == "PodResizePending" and condition.reason == "Infeasible" for condition in pod.status.conditions
    )

    def read(container: Container) -> _Exact:
        status = statuses.get(container.name)
        asked = _asked(container.resources)
        return asked if status is None else _resized(asked, status, infeasible)

    return read


def _resized(asked: _Exact, status: ContainerStatus, infeasible: bool) -> _Exact:
    held: _Exact = {} if infeasible else dict(asked)
    if status.resources is not None:
        _raise_to(held, _exact(status.resources.requests))
    _raise_to(held, _exact(status.allocated_resources))
    return held


def _asked(resources: ResourceRequirements) -> _Exact:
    return {**_exact(resources.limits), **_exact(resources.requests)}


def _with_pod_level(pod: Pod, aggregate: _Exact) -> _Exact:
    """`aggregate` of the containers with the pod's own settings over it; a pod limit only fills a gap."""
    if pod.spec.resources is None:
        return dict(aggregate)
    own = pod.spec.resources
    return {**_pod_level(_exact(own.limits)), **aggregate, **_pod_level(_exact(own.requests))}


def _qos_bounds(pod: Pod) -> Iterable[tuple[_Exact, _Exact]]:
    """Request and limit of each thing that the QoS rule looks at: the pod as a whole, or every container."""
    own = pod.spec.resources
    if own is not None and (_pod_level(_exact(own.requests)) or _pod_level(_exact(own.limits))):
        asked = _with_pod_level(pod, _aggregate(pod, lambda container: _asked(container.resources)))
        return [(asked, _exact(own.limits))]
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return [(_asked(container.resources), _exact(container.resources.limits)) for container in containers]


def _pod_level(amounts: _Exact) -> _Exact:
    """The resources that may be set for a pod as a whole."""
    return {name: amount for name, amount in amounts.items() if name in {CPU, MEMORY} or name.startswith("hugepages-")}


def _compute_only(amounts: _Exact) -> _Exact:
    return {name: amount for name, amount in amounts.items() if name in {CPU, MEMORY} and amount > 0}


def _exact(quantities: Mapping[str, Quantity]) -> _Exact:
    amounts: _Exact = {}
    for name, source in quantities.items():
        try:
            amounts[name] = quantity.parse(source).nanos
        except QuantityError as error:
            raise QuantityError(f"{name}: {error}") from error
    return amounts


def _add(total: _Exact, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: _Exact, amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = max(total.get(name, amount), amount)


def _rounded(amounts: Mapping[str, int]) -> dict[str, int]:
    exact: Iterable[tuple[str, quantity.Quantity]] = (
        (name, quantity.Quantity(nanos)) for name, nanos in amounts.items()
    )
    return {name: amount.milli_value() if name == CPU else amount.value() for name, amount in exact}
