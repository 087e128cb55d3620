"""Where the demo's best-effort pods went and why; and a pod that asks for too much, with what is said of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from cli.asking import OnThisMachine
from cli.explaining import kept_of
from cli.podexplained import PodExplanation, explain_pod
from cli.pods import delete
from cli.podview import waiting_for
from slacktide.cluster import PODS, Client
from slacktide.cluster.errors import ClusterError
from slacktide.names import BATCH_CPU, HOST_PROCESS_IMAGE, SCHEDULER_NAME, TIER_LABEL
from slacktide.objects import Pod
from slacktide.tier import Tier, tier_of
from standalone.state import StateDir

NAME: Final = "wants-every-cpu"
_WAIT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05


def diagnose(state: StateDir, client: Client, cpus: int) -> list[PodExplanation]:
    """Explain every best-effort pod that is there, and one that asks for all of `cpus`, which is then removed.

    Empty where the API does not answer.
    """
    with contextlib.suppress(ClusterError), _asking_for(client, cpus):
        pods = [pod for pod in client.list(PODS).items if tier_of(pod) is Tier.BE]
        asked = OnThisMachine(state)
        return [explain_pod(pod, kept_of(asked, pod.metadata.uid), time.time()) for pod in pods]
    return []


def lines(said: list[PodExplanation]) -> Iterator[str]:
    """For the terminal: a line a pod, and below it who refused it and what can be done."""
    for one in said:
        name = one.pod.partition("/")[2]
        # What the message says stands below it in parts.
        yield f"{name}: {one.state}, no node fits" if one.blocking else f"{name}: {one.state}; {one.why}"
        for refusal in one.blocking:
            for reason in refusal.reasons:
                nearest = f"; nearest {reason.nearest}: {reason.detail}" if reason.detail else ""
                yield f"  {refusal.plugin} refused {reason.nodes}: {reason.reason}{nearest}"
        yield from (f"  -> {action}" for action in one.actions)


@contextlib.contextmanager
def _asking_for(client: Client, cpus: int) -> Iterator[None]:
    pod = client.create(PODS, _body(cpus), "default")
    try:
        _wait_judged(client)
        yield
    finally:
        delete(client, pod, 0)


def _wait_judged(client: Client) -> None:
    """Until the scheduler has said something of it, or given it a node after all."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        pod: Pod = client.get(PODS, NAME, "default")
        if pod.spec.node_name or waiting_for(pod):
            return
        time.sleep(_POLL_SECONDS)


def _body(cpus: int) -> dict[str, object]:
    container = {
        "name": "main",
        "image": HOST_PROCESS_IMAGE,
        "command": ["sleep", "60"],
        "resources": {"requests": {BATCH_CPU: str(cpus * 1000)}},
    }
    spec = {"schedulerName": SCHEDULER_NAME, "restartPolicy": "Never", "containers": [container]}
    metadata = {"name": NAME, "labels": {TIER_LABEL: "be"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
