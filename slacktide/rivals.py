"""Other systems that do what Slacktide does, and the marks they leave: agents on a node, writers of batch resources.

Two agents on one node write the same cgroup files, and two writers of a node's batch resources overwrite each other:
whichever came last is believed. So where another is found nothing is sold, until it is gone. Names alone prove
nothing: any tenant may call a pod `koordlet`. An agent is what a DaemonSet runs with the node's files mounted, which
no tenant below the pod-security level `privileged` can have, or a process of the node outside all pods.
Source: the deployments that each project publishes, see docs/migration-from-koordinator.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from slacktide.objects import Pod, is_terminal


class Rival(NamedTuple):
    """One such system.

    agents    last part of its agent's image name, which is its process name on a node without pods too
    writers   last part of the image of, or field manager of, what writes batch resources into the node status
    labels    labels of its agent's pods
    """

    name: str
    agents: frozenset[str]
    writers: frozenset[str] = frozenset()
    labels: frozenset[tuple[str, str]] = frozenset()


RIVALS: Final = (
    Rival(
        "Koordinator",
        frozenset({"koordlet"}),
        frozenset({"koord-manager"}),
        frozenset({("koord-app", "koordlet")}),
    ),
    Rival(
        "Katalyst",
        frozenset({"katalyst-agent"}),
        labels=frozenset({("app.kubernetes.io/name", "katalyst-agent")}),
    ),
    Rival(
        "Volcano",
        frozenset({"vc-agent"}),
        frozenset({"vc-agent", "volcano-agent"}),
        frozenset({("app", "volcano-agent")}),
    ),
    Rival("Crane", frozenset({"crane-agent"})),
    Rival("rubik", frozenset({"rubik"})),
)

AGENT_OF: Final[Mapping[str, str]] = {agent: rival.name for rival in RIVALS for agent in rival.agents}
"""Name of an agent's program -> the system that it belongs to."""

_WRITER_OF: Final[Mapping[str, str]] = {writer: rival.name for rival in RIVALS for writer in rival.writers}


def agent_in(pod: Pod) -> str:
    """Name of the system whose agent this pod is; empty when it is none, or has ended."""
    if is_terminal(pod) or not _node_level(pod):
        return ""
    programs = _programs(pod)
    for rival in RIVALS:
        if programs & rival.agents or any(pod.metadata.labels.get(key) == value for key, value in rival.labels):
            return rival.name
    return ""


def writer_in(pod: Pod) -> str:
    """Name of the system that writes batch resources from this pod; empty when none does, or it has ended."""
    if is_terminal(pod):
        return ""
    found = sorted(_WRITER_OF[program] for program in _programs(pod) if program in _WRITER_OF)
    return found[0] if found else ""


def system_of(manager: str) -> str:
    """Name of the system that a field manager belongs to; empty for one that is not known."""
    return _WRITER_OF.get(manager, "")


def advice(system: str, where: str) -> str:
    """What is wrong on a node with another agent, and what to do. `where` is how it was seen."""
    return (
        f"another agent looks after this node: {system} ({where}); nothing is sold here until it is gone: uninstall "
        "it, or keep the Slacktide agent off this node"
    )


def _node_level(pod: Pod) -> bool:
    owners = pod.metadata.owner_references
    of_daemon_set = any(owner.controller and owner.kind == "DaemonSet" for owner in owners)
    return of_daemon_set and any("hostPath" in volume for volume in pod.spec.volumes)


def _programs(pod: Pod) -> frozenset[str]:
    return frozenset(program_of(container.image) for container in pod.spec.containers)


def program_of(image: str) -> str:
    """Last part of an image's name, without tag and digest."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]
