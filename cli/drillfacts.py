"""What the API server knows of the nodes that may be drilled: their state, where else BE could go, budgets of pods.

Reads only. A missing right is said with the rule that would give it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from cli.drillreport import Victim
from cli.exits import REFUSED, USAGE, CommandError
from slacktide import forecast
from slacktide.cluster import NODES, PDBS, PODS, PodDisruptionBudget
from slacktide.cluster.errors import ClusterError, Forbidden, NotFound
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node
from slacktide.settings.values import nearest

if TYPE_CHECKING:
    from slacktide.cluster import Client

_PRESSURES: Final = ("MemoryPressure", "DiskPressure", "PIDPressure")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node as the API has it. `troubles` keep it from being drilled; `open_for_be`: BE may be placed there."""

    name: str
    troubles: tuple[str, ...] = ()
    open_for_be: bool = False
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFacts:
    """A disruption budget that a victim falls under. `allowed` is None while its controller has not counted."""

    name: str
    victims: tuple[str, ...]
    allowed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known beside what the agent says."""

    node: NodeFacts
    others_open: int = 0
    budgets: tuple[BudgetFacts, ...] = ()
    unknown: tuple[str, ...] = field(default=())
    """What could not be had, in words."""


@contextlib.contextmanager
def needed(why: str) -> Iterator[None]:
    """Turns a missing right into words: which rule is missing, and what for. Raises CommandError."""
    from cli.asking import said

    try:
        yield
    except Forbidden as error:
        raise CommandError(f"{said(error)}; it is needed {why} (docs/security.md)", REFUSED) from None
    except ClusterError as error:
        raise CommandError(f"{error}: it is asked {why}", REFUSED) from None


def nodes_of(client: Client, selector: str = "") -> Sequence[Node]:
    """All nodes, or those of a label selector. Raises CommandError."""
    with needed("to know the nodes and where else best-effort work can go"):
        return client.list(NODES, label_selector=selector).items


def find(nodes: Sequence[Node], name: str) -> Node:
    """The node of that name. Raises CommandError with the nearest name."""
    for node in nodes:
        if node.metadata.name == name:
            return node
    hint = nearest(name, [node.metadata.name for node in nodes])
    raise CommandError(f"there is no node {name!r}{hint}", USAGE)


def node_facts(node: Node, now: float) -> NodeFacts:
    """What speaks against a drill of this node, and whether BE may go there; `now` in seconds since the epoch."""
    conditions = {one.type: one for one in node.status.conditions}
    ready = conditions.get("Ready")
    troubles = []
    if ready is None or ready.status != "True":
        troubles.append(f"it is not ready{f': {ready.message}' if ready is not None and ready.message else ''}")
    if node.spec.unschedulable:
        troubles.append("it is cordoned: somebody is at work on it")
    if node.metadata.deletion_timestamp is not None:
        troubles.append("it is being deleted")
    troubles += [f"it has {name}" for name in _PRESSURES if name in conditions and conditions[name].status == "True"]
    sells, words = _sells(node, now)
    return NodeFacts(
        name=node.metadata.name,
        troubles=tuple(troubles),
        open_for_be=sells and not troubles,
        state=f"{'in trouble' if troubles else 'ready'}, {words}",
    )


def _sells(node: Node, now: float) -> tuple[bool, str]:
    """Whether the forecast lets anything be sold, and that in words."""
    text = node.metadata.annotations.get(FORECAST_ANNOTATION)
    if not text:
        return False, "no forecast: nothing is sold there"
    try:
        found = forecast.decode(text)
    except forecast.ForecastError as error:
        return False, f"its forecast cannot be read ({error}): nothing is sold there"
    if found.closed:
        return False, f"nothing is sold there ({forecast.closed_words(found.closed)})"
    fresh = forecast.freshness(found, now)
    if fresh is forecast.Freshness.EXPIRED:
        return False, "its forecast has expired: nothing is sold there"
    cpu = found.reclaimable.cpu_millis
    return True, f"{'an unknown amount of' if cpu is None else f'{cpu / 1000:.2f}'} CPU reclaimable, forecast {fresh}"


def budgets_of(client: Client, victims: Sequence[Victim]) -> tuple[BudgetFacts, ...]:
    """The budgets that these pods fall under. Raises CommandError."""
    if not victims:
        return ()
    found = []
    with needed("to know which disruption budgets the expected victims fall under"):
        labels = {_name(one): _labels(client, one) for one in victims}
        for namespace in sorted({one.namespace for one in victims}):
            here = [_name(one) for one in victims if one.namespace == namespace]
            budgets = _budgets(client, namespace)
            found += [one for budget in budgets if (one := _facts(budget, here, labels)).victims]
    return tuple(found)


def _budgets(client: Client, namespace: str) -> Iterable[PodDisruptionBudget]:
    try:
        return client.list(PDBS, namespace).items
    except NotFound:
        # An API server without budgets, such as a small one of this machine.
        return ()


def _labels(client: Client, victim: Victim) -> dict[str, str] | None:
    try:
        pod = client.get(PODS, victim.name, victim.namespace)
    except NotFound:
        return None
    return pod.metadata.labels if victim.uid in ("", pod.metadata.uid) else None


def _facts(budget: PodDisruptionBudget, pods: Sequence[str], labels: dict[str, dict[str, str] | None]) -> BudgetFacts:
    meta, status = budget.metadata, budget.status
    counted = status.observed_generation >= max(1, meta.generation)
    return BudgetFacts(
        name=f"{meta.namespace}/{meta.name}",
        victims=tuple(pod for pod in pods if (has := labels[pod]) is not None and _selects(budget, has)),
        allowed=status.disruptions_allowed if counted else None,
    )


def _selects(budget: PodDisruptionBudget, labels: dict[str, str]) -> bool:
    """As the Eviction API has it (policy/v1): no selector is about nobody, an empty one about the whole namespace."""
    from scheduler_plugins.plugins.label_selectors import selector_from

    given = budget.spec.selector
    if given is None:
        return False
    try:
        return selector_from(given.match_labels, given.match_expressions).selects(labels)
    except msgspec.ValidationError:
        # What cannot be read may protect the pod: the careful answer.
        return True


def _name(victim: Victim) -> str:
    return f"{victim.namespace}/{victim.name}"
