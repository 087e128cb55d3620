"""The node's sign of life: its object and its lease, renewed by a thread of their own."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from slacktide import names
from slacktide.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from slacktide.cluster.kinds import LEASES, NODES
from slacktide.objects import Node
from slacktide.observe import get_logger
from standalone.runner.api import Api
from standalone.runner.machine import Pressure
from standalone.runner.nodeobject import NodeFacts, Thresholds, metadata_patch, status_patch

_RETRY_SECONDS: Final = 1.0

log = get_logger("runner.heartbeat")


class Heartbeat:
    """Creates the node when it is missing, then reports every `seconds`; `poke` reports at once.

    problem: why the node is not ready, None when it is. A report that fails is repeated after a second or so.
    """

    def __init__(
        self,
        api: Api,
        facts: NodeFacts,
        *,
        problem: Callable[[], str | None],
        pressure: Callable[[], Pressure],
        thresholds: Thresholds,
        seconds: float,
        lease_seconds: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._facts = facts
        self._problem = problem
        self._pressure = pressure
        self._thresholds = thresholds
        self._seconds = seconds
        self._lease_seconds = lease_seconds
        self._wall = wall
        self._wake = threading.Event()
        self._stopping = False
        self._failing = False
        self._reported = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin reporting."""
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """End the thread; the lease is left to expire, as a kubelet's is."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def poke(self) -> None:
        """Report now."""
        self._wake.set()

    def trouble(self) -> str | None:
        """Readiness check: None once the node was reported."""
        return None if self._reported.is_set() else "the node has not been reported to the API server yet"

    def report(self) -> None:
        """One report: node object, then lease. Raises ClusterError."""
        facts, now = self._facts, self._wall()
        try:
            node: Node = self._api.get(NODES, facts.name)
        except NotFound:
            node = self._create(facts)
        wanted = metadata_patch(facts)["metadata"]
        if any(node.metadata.labels.get(key) != value for key, value in wanted["labels"].items()) or any(
            node.metadata.annotations.get(key) != value for key, value in wanted["annotations"].items()
        ):
            node = self._api.patch(NODES, facts.name, None, {"metadata": wanted})
        patch = status_patch(facts, self._pressure(), self._problem(), node.status.conditions, self._thresholds, now)
        self._api.patch(NODES, facts.name, None, patch, subresource="status", patch_type="strategic")
        self._renew(now)
        self._reported.set()

    def _create(self, facts: NodeFacts) -> Node:
        body = {"apiVersion": "v1", "kind": "Node", **metadata_patch(facts)}
        body["metadata"]["name"] = facts.name
        try:
            node: Node = self._api.create(NODES, body)
        except AlreadyExists:
            node = self._api.get(NODES, facts.name)
        return node

    def _renew(self, now: float) -> None:
        spec = {
            "holderIdentity": self._facts.name,
            "leaseDurationSeconds": self._lease_seconds,
            "renewTime": dt.datetime.fromtimestamp(now, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        namespace, name = names.NODE_LEASE_NAMESPACE, self._facts.name
        try:
            self._api.patch(LEASES, name, namespace, {"spec": spec})
        except NotFound:
            body: dict[str, Any] = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": namespace},
                "spec": spec,
            }
            try:
                self._api.create(LEASES, body, namespace)
            except Conflict:
                self._api.patch(LEASES, name, namespace, {"spec": spec})

    def _loop(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                self.report()
            except ClusterError as error:
                if not self._failing:
                    log.warning("node not reported", error=str(error))
                self._failing = True
                self._wake.wait(min(_RETRY_SECONDS, self._seconds))
                continue
            if self._failing:
                log.info("node reported again")
            self._failing = False
            self._wake.wait(self._seconds)
