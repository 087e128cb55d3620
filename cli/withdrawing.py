"""Takes off the nodes what Slacktide published there: the last act of an uninstallation.

Amounts and annotation are published in one write, so a node without the annotation was not ours: its batch resources
are somebody else's, and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from slacktide.cluster import NODES, Listing
from slacktide.cluster.errors import ClusterError, NotFound
from slacktide.names import FORECAST_ANNOTATION, GPUS_ANNOTATION
from slacktide.objects import Node

ANNOTATIONS: Final = (FORECAST_ANNOTATION, GPUS_ANNOTATION)
LOOKS: Final = 5
PAUSE_SECONDS: Final = 2.0


class NodeClient(Protocol):
    """The calls of the API client that are used."""

    def list(self, kind: Any) -> Listing[Node]:
        """All nodes."""
        ...

    def patch(self, kind: Any, name: str, namespace: str | None, body: Any, subresource: str | None = ...) -> object:
        """Merge-patch one node."""
        ...


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """What became of the nodes: names that are clean now, that are not ours to clean, and what failed, in words."""

    cleaned: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def held(node: Node, resources: Sequence[str]) -> list[str]:
    """Those of `resources` that the node's status has."""
    return [name for name in resources if name in node.status.capacity or name in node.status.allocatable]


def patch_of(node: Node, resources: Sequence[str]) -> dict[str, Any] | None:
    """The merge patch of the node's status that takes everything of ours away; None where nothing is."""
    notes = [name for name in ANNOTATIONS if name in node.metadata.annotations]
    if not notes:
        return None
    gone = dict.fromkeys(held(node, resources)) if FORECAST_ANNOTATION in notes else {}
    body: dict[str, Any] = {"metadata": {"uid": node.metadata.uid, "annotations": dict.fromkeys(notes)}}
    if gone:
        body["status"] = {"capacity": gone, "allocatable": gone}
    return body


def withdraw(
    client: NodeClient, resources: Sequence[str], wait: Callable[[float], object], *, dry_run: bool = False
) -> Withdrawn:
    """Clean all nodes, and look again until nothing of ours is left: a predictor that ends may still write once.

    With `dry_run` nothing is written. Raises ClusterError where nodes cannot be listed.
    """
    cleaned: dict[str, None] = {}
    problems: list[str] = []
    nodes: Sequence[Node] = ()
    for look in range(LOOKS):
        nodes = client.list(NODES).items
        due = [(node.metadata.name, body) for node in nodes if (body := patch_of(node, resources)) is not None]
        if dry_run:
            cleaned |= dict.fromkeys(name for name, _ in due)
            break
        if not due:
            problems = []
            break
        if look:
            wait(PAUSE_SECONDS)
        problems = [problem for name, body in due if (problem := _clean(client, name, body, cleaned))]
    else:
        problems = problems or ["nodes are published again and again: a predictor still runs; stop it first"]
    ours = cleaned.keys()
    foreign = (node.metadata.name for node in nodes if held(node, resources) and node.metadata.name not in ours)
    return Withdrawn(tuple(cleaned), tuple(foreign), tuple(problems))


def _clean(client: NodeClient, name: str, body: dict[str, Any], cleaned: dict[str, None]) -> str | None:
    try:
        client.patch(NODES, name, None, body, "status")
    except NotFound:
        return None
    except ClusterError as error:
        return f"node {name}: {error}"
    cleaned[name] = None
    return None
