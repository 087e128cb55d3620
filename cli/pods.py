"""Find and end pods by the names that people type."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from cli.exits import FAILED, TIMED_OUT, CommandError
from cli.near import like
from slacktide.cluster import PODS
from slacktide.cluster.errors import ClusterError, NotFound, ServerError, TooManyRequests, Unreachable
from slacktide.objects import Pod

if TYPE_CHECKING:
    from slacktide.cluster import Client

POLL_SECONDS = 0.2


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A pod by its name."""

    namespace: str
    name: str


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What `rm` prints for programs."""

    removed: list[Named]


def split(name: str, namespace: str) -> tuple[str, str]:
    """Namespace and name of `NAME` or `NAMESPACE/NAME`, as `ps` prints them."""
    first, slash, second = name.partition("/")
    return (first, second) if slash else (namespace, first)


def find(client: Client, name: str, namespace: str) -> Pod:
    """The pod of that name. Raises CommandError that says which may be meant, and how to see which there are."""
    space, plain = split(name, namespace)
    try:
        pod = client.get(PODS, plain, space)
    except NotFound:
        said = f"there is no pod {space}/{plain}: {_meant(client, plain, space)}`slacktide ps` lists them"
        raise CommandError(said, FAILED) from None
    assert isinstance(pod, Pod)
    return pod


def _meant(client: Client, name: str, namespace: str) -> str:
    """Pods that may be meant: of that name elsewhere, or with a name like it here. Empty where that is not known."""
    try:
        elsewhere = client.list(PODS, field_selector=f"metadata.name={name}").items
        found = [f"{pod.metadata.namespace}/{name}" for pod in elsewhere]
    except ClusterError:
        # Who may look into one namespace only is helped with that one.
        found = []
    try:
        found = found or like(name, (pod.metadata.name for pod in client.list(PODS, namespace).items))
    except ClusterError:
        return ""
    return f"do you mean {' or '.join(found[:3])}? " if found else ""


def delete(client: Client, pod: Pod, grace: int | None) -> bool:
    """Ask for the end of this very pod. False when it is gone already. Raises ClusterError."""
    meta = pod.metadata
    try:
        client.delete(PODS, meta.name, meta.namespace, uid=meta.uid, grace_period_seconds=grace)
    except NotFound:
        return False
    return True


def exists(client: Client, pod: Pod) -> bool:
    """Whether this very pod is still there; a lost connection is no answer and counts as yes."""
    try:
        found = client.get(PODS, pod.metadata.name, pod.metadata.namespace)
    except NotFound:
        return False
    except (Unreachable, ServerError, TooManyRequests):
        return True
    return bool(found.metadata.uid == pod.metadata.uid)


def wait_gone(client: Client, pods: list[Pod], timeout: float) -> None:
    """Wait until all are gone. Raises CommandError (4) that names those which are not."""
    deadline = time.monotonic() + timeout
    left = pods
    while left := [pod for pod in left if exists(client, pod)]:
        if time.monotonic() >= deadline:
            names = ", ".join(pod.metadata.name for pod in left)
            raise CommandError(f"still there after {timeout:g} s: {names}; try `slacktide rm --force`", TIMED_OUT)
        time.sleep(POLL_SECONDS)
