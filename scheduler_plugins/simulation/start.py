"""What a simulation begins with: the nodes and pods of a dump, cleaned, and which of the pods are to be placed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from scheduler_plugins.dump import Dump, distinct
from slacktide import forecast as wire
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node, Pod, PodStatus, is_terminal, is_terminating


@dataclass(frozen=True, slots=True)
class Choice:
    """Which pods take part.

    `pending`: those of the dump that have no node and that a profile is for. `released(pod)`: bound ones that lose
    their node first. `profile` places pods whose own scheduler is not simulated: every released pod, and pending ones
    too with `adopt`.
    """

    profile: str
    pending: bool = True
    adopt: bool = False
    released: Callable[[Pod], bool] = lambda _: False


@dataclass(frozen=True, slots=True)
class Start:
    """`placed` stay where they are, `waiting` are to be placed, oldest first; `others` wait for somebody else."""

    nodes: Sequence[Node]
    placed: Sequence[Pod]
    waiting: Sequence[Pod]
    others: int


def begin(dump: Dump, choice: Choice, profiles: Collection[str]) -> Start:
    """Sort the pods of `dump`; pods that have ended are left out, as the scheduler does not see them either."""
    placed, waiting, others = [], [], 0
    for pod in distinct(dump.pods):
        if is_terminal(pod):
            continue
        if pod.spec.node_name and not (choice.released(pod) and not is_terminating(pod)):
            placed.append(pod)
            continue
        was_bound = bool(pod.spec.node_name)
        if pod.spec.scheduler_name not in profiles:
            if not was_bound and not choice.adopt:
                others += 1
                continue
            pod = _with_spec(pod, scheduler_name=choice.profile)
        if was_bound:
            waiting.append(_unbound(pod))
        elif choice.pending:
            waiting.append(pod)
    waiting.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.namespace, pod.metadata.name))
    nodes = {node.metadata.name: node for node in dump.nodes}
    return Start(tuple(nodes.values()), placed, waiting, others)


def wall_of(nodes: Iterable[Node], now: float) -> float:
    """When the dump was made: the time of its newest forecast, or `now` where it has none; seconds since the epoch."""
    times = [forecast.at for _, forecast in _forecasts(nodes) if forecast.at <= now]
    return max(times, default=now)


def repeated(nodes: Sequence[Node], wall: float) -> list[Node]:
    """Nodes whose forecast is fresh at `wall`, with the same forecast made then and good for as long as one can be.

    The predictor would repeat it as long as nothing changes, and in a simulation nothing but placement does.
    """
    found = []
    for node, forecast in _forecasts(nodes):
        if wire.freshness(forecast, wall) is wire.Freshness.FRESH:
            again = msgspec.structs.replace(forecast, at=wall, ttl_seconds=wire.MAX_TTL_SECONDS)
            annotations = {**node.metadata.annotations, FORECAST_ANNOTATION: wire.encode(again)}
            metadata = msgspec.structs.replace(node.metadata, annotations=annotations)
            found.append(msgspec.structs.replace(node, metadata=metadata))
    return found


def _forecasts(nodes: Iterable[Node]) -> Iterable[tuple[Node, wire.Forecast]]:
    for node in nodes:
        text = node.metadata.annotations.get(FORECAST_ANNOTATION)
        if text is not None:
            try:
                yield node, wire.decode(text)
            except wire.ForecastError:
                continue


def _with_spec(pod: Pod, **changes: object) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **changes))


def _unbound(pod: Pod) -> Pod:
    """As it was before it had a node."""
    status = PodStatus(phase="Pending", qos_class=pod.status.qos_class)
    return msgspec.structs.replace(_with_spec(pod, node_name=""), status=status)
