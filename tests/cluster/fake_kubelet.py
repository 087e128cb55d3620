"""What kubelets do to the API and a scheduler sees, for nodes without one: pods bound there run, deleted ones end.

No process is started and nothing is measured. As a real kubelet, it refuses a pod for which the node lacks a batch
resource (phase Failed, reason OutOf...), so that room that was sold twice shows.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from slacktide.cluster import NODES, PODS, Client, Informer
from slacktide.cluster.errors import ClusterError, Conflict, NotFound
from slacktide.names import HOSTNAME_LABEL
from slacktide.objects import Pod, is_terminal, is_terminating
from slacktide.resources import node_allocatable
from standalone.runner.admission import admit
from standalone.runner.attempts import PodUid

_WORKERS: Final = 4
_START_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 0.2


def stamp() -> str:
    """Now, as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node_body(name: str, cores: int = 8, memory_gib: int = 32, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A node that is ready and sells nothing yet."""
    amounts = {"cpu": str(cores), "memory": f"{memory_gib}Gi", "pods": "250"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": stamp()}
    return {
        "metadata": {"name": name, "labels": {HOSTNAME_LABEL: name, **(labels or {})}},
        "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
    }


class FakeKubelet:
    """Kubelets of all nodes that `mine` names. Use as a context manager.

    `refused` are the pods for which a node had no room any more, as (namespace/name, reason).
    """

    def __init__(self, client: Client, mine: Callable[[str], bool] = lambda _node: True) -> None:
        self._client = client
        self._mine = mine
        self._work: queue.Queue[Pod | None] = queue.Queue()
        self._taken: dict[str, set[PodUid]] = {}
        self._lock = threading.Lock()
        self.refused: list[tuple[str, str]] = []
        self._informer = Informer(
            client,
            PODS,
            field_selector="spec.nodeName!=",
            on_add=self._look,
            on_update=lambda _old, new: self._look(new),
            on_delete=self._gone,
            name="fake-kubelet",
        )
        self._nodes = Informer(client, NODES, name="fake-kubelet-nodes")
        self._threads = [threading.Thread(target=self._loop, name="fake-kubelet", daemon=True) for _ in range(_WORKERS)]

    def __enter__(self) -> FakeKubelet:
        self._nodes.start()
        assert self._nodes.wait_synced(_START_SECONDS), "the nodes cannot be listed"
        for thread in self._threads:
            thread.start()
        self._informer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._informer.stop()
        self._nodes.stop()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _look(self, pod: Pod) -> None:
        if self._mine(pod.spec.node_name) and (is_terminating(pod) or pod.status.phase == "Pending"):
            self._work.put(pod)

    def _gone(self, pod: Pod) -> None:
        with self._lock:
            self._taken.get(pod.spec.node_name, set()).discard(PodUid(pod.metadata.uid))

    def _loop(self) -> None:
        while (pod := self._work.get()) is not None:
            with contextlib.suppress(NotFound, Conflict):
                try:
                    self._settle(pod)
                except ClusterError:
                    # The API server is away: as a kubelet, it tries again.
                    threading.Timer(_RETRY_SECONDS, self._work.put, (pod,)).start()

    def _settle(self, pod: Pod) -> None:
        if is_terminating(pod):
            metadata = pod.metadata
            self._client.delete(PODS, metadata.name, metadata.namespace, uid=metadata.uid, grace_period_seconds=0)
            return
        refusal = self._refusal(pod)
        if refusal is not None:
            self.refused.append((f"{pod.metadata.namespace}/{pod.metadata.name}", refusal["reason"]))
        self._client.patch(
            PODS,
            pod.metadata.name,
            pod.metadata.namespace,
            {"metadata": {"uid": pod.metadata.uid}, "status": refusal or running_status(pod)},
            "status",
        )

    def _refusal(self, pod: Pod) -> dict[str, Any] | None:
        """The status of a pod that the node cannot take; None for one that it takes."""
        node_name, uid = pod.spec.node_name, PodUid(pod.metadata.uid)
        node = self._nodes.get("", node_name)
        if node is None:
            return None
        with self._lock:
            taken = self._taken.setdefault(node_name, set())
            here = [one for one in self._informer.items() if one.spec.node_name == node_name and not is_terminal(one)]
            verdict = admit([*here, pod] if pod not in here else here, frozenset(taken), {}, node_allocatable(node))
            rejection = verdict.rejected.get(uid)
            if rejection is None:
                taken.add(uid)
                return None
        return {"phase": "Failed", "reason": rejection.reason, "message": rejection.message}


def running_status(pod: Pod, address: str = "10.1.0.1") -> dict[str, Any]:
    """The status of a pod whose containers all run and are ready."""
    now = stamp()
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "startTime": now,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": one, "status": "True", "lastTransitionTime": now} for one in conditions],
        "containerStatuses": [
            {
                "name": one.name,
                "image": one.image,
                "imageID": "",
                "containerID": f"fake://{pod.metadata.uid}-{one.name}",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for one in pod.spec.containers
        ],
    }
