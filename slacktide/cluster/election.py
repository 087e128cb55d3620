"""Leader election on a Lease: at most one of several replicas leads.

Clocks of different machines are never compared. A contender takes a lease over only after it has itself watched the
same record, unchanged, for the record's duration by its own monotonic clock; a leader gives up by its own clock
before that time can be over elsewhere. Every write is guarded by the resourceVersion.
"""

from __future__ import annotations

import concurrent.futures
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

import msgspec

from slacktide.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from slacktide.cluster.kinds import LEASES, Kind
from slacktide.cluster.metrics import ClusterMetrics
from slacktide.objects import Lease, LeaseSpec, View
from slacktide.observe import get_logger

_LOG: Final = get_logger("cluster.election")
_JITTER: Final = 1.2
_MINIMAL_TIMEOUT_SECONDS: Final = 0.25


@dataclass(frozen=True)
class ElectionSettings:
    """How long a lease holds, by when a leader must have renewed it, and how often is tried; seconds."""

    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease_seconds > self.renew_seconds > self.retry_seconds * _JITTER > 0:
            raise ValueError(
                f"leader election needs lease_seconds > renew_seconds > {_JITTER} * retry_seconds > 0, got"
                f" {self.lease_seconds:g}, {self.renew_seconds:g}, {self.retry_seconds:g}"
            )


@dataclass(frozen=True)
class Observed:
    """A lease record, and since when (own monotonic clock) it has been like this."""

    spec: LeaseSpec
    at: float


@dataclass(frozen=True)
class Step:
    """What to do next, and what has been observed so far.

    create: there is no lease. take: nobody holds it, or its time is over. renew: it is ours. wait: another leads.
    """

    action: Literal["create", "take", "renew", "wait"]
    observed: Observed | None


def next_step(
    lease: Lease | None, observed: Observed | None, now: float, identity: str, settings: ElectionSettings
) -> Step:
    """The decision, from the lease as read (None = there is none) and the last observation. Pure."""
    if lease is None:
        return Step("create", None)
    if observed is None or observed.spec != lease.spec:
        observed = Observed(lease.spec, now)
    holder = lease.spec.holder_identity
    if holder == identity:
        return Step("renew", observed)
    if not holder:
        return Step("take", observed)
    duration = lease.spec.lease_duration_seconds or settings.lease_seconds
    return Step("wait" if now < observed.at + duration else "take", observed)


def lease_spec(
    current: dict[str, Any], step: Step, identity: str, settings: ElectionSettings, stamp: str
) -> dict[str, Any]:
    """The spec to write for a step; fields that are not ours are kept."""
    spec = {
        **current,
        "holderIdentity": identity,
        "leaseDurationSeconds": max(1, math.ceil(settings.lease_seconds)),
        "renewTime": stamp,
    }
    if step.action != "renew":
        spec["acquireTime"] = stamp
        spec["leaseTransitions"] = current.get("leaseTransitions", -1) + 1 if step.action == "take" else 0
    return spec


class LeaseStore(Protocol):
    """The calls of the client that an election needs."""

    def get_dict(
        self, kind: Kind[Any], name: str, namespace: str | None = None, *, timeout_seconds: float | None = None
    ) -> dict[str, Any]:
        """The lease with all its fields. Raises NotFound."""
        ...  # a protocol member has no body

    def create(
        self,
        kind: Kind[Lease],
        body: dict[str, Any] | View,
        namespace: str | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> Lease:
        """Create the lease. Raises AlreadyExists."""
        ...  # a protocol member has no body

    def replace(self, kind: Kind[Lease], body: dict[str, Any], *, timeout_seconds: float | None = None) -> Lease:
        """Write the lease if its resourceVersion is still the one in the body. Raises Conflict."""
        ...  # a protocol member has no body


class LeaderElector:
    """Runs for leader in a thread of its own, for as long as it is not stopped; a leader that fell runs again.

    `on_started` and `on_stopped` are called in turn on one other thread, so that slow ones do not cost the lease.
    Work that must not be done twice asks `is_leader`, which turns false by the clock alone.
    identity: unique for each process, for example host name and a random part.
    """

    def __init__(
        self,
        client: LeaseStore,
        name: str,
        namespace: str,
        identity: str,
        on_started: Callable[[], object],
        on_stopped: Callable[[], object],
        *,
        lease_seconds: float = 15.0,
        renew_seconds: float = 10.0,
        retry_seconds: float = 2.0,
        metrics: ClusterMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._settings = ElectionSettings(lease_seconds, renew_seconds, retry_seconds)
        self._metrics = metrics if metrics is not None else ClusterMetrics()
        self._clock = clock
        self._wall = wall
        self._uniform = uniform

        self._observed: Observed | None = None
        self._known: dict[str, Any] | None = None
        self._leading = False
        self._out_of_reach = False
        self._renewed_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"election-{name}", daemon=True)
        self._callbacks = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"leader-{name}")
        self._metrics.leading.labels(name).set_function(lambda: float(self.is_leader))

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now: the lease is ours and was renewed within the deadline."""
        return self._leading and self._clock() < self._deadline

    @property
    def leader(self) -> str:
        """Identity of whoever held the lease when it was last read; "" where nobody did."""
        observed = self._observed
        return (observed.spec.holder_identity or "") if observed is not None else ""

    def start(self) -> None:
        """Begin to run for leader."""
        self._thread.start()

    def stop(self, timeout: float = 10.0) -> None:
        """Stop; a leader first lets `on_stopped` end, then gives the lease back so that another need not wait.

        The lease is kept until it expires where `on_stopped` takes longer than `timeout` seconds.
        """
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        try:
            self.resign(timeout)
        finally:
            self._callbacks.shutdown(wait=False)

    def turn(self) -> float:
        """One attempt to get or keep the lease; returns the seconds until the next is due."""
        held = self._attempt()
        now = self._clock()
        if held and not self._leading and not self._stopping.is_set():
            self._leading = True
            _LOG.info("leading", lease=self._name, identity=self._identity)
            self._call(self._on_started)
        if self._leading and not held and (now >= self._deadline or self.leader not in ("", self._identity)):
            self._fall("the lease could not be renewed in time" if now >= self._deadline else "another leads")
        if self._leading:
            # A leader that fails to renew must notice the deadline when it comes, not a retry later.
            return min(self._settings.retry_seconds, max(0.0, self._deadline - now))
        return self._settings.retry_seconds * (1.0 + _JITTER * self._uniform())

    def resign(self, timeout: float) -> None:
        """Stop leading now and release the lease; nothing where this process does not lead."""
        if not self._leading:
            return
        ended = self._fall("stopped")
        try:
            ended.result(timeout)
        except TimeoutError:
            _LOG.warning("on_stopped still runs, the lease is kept until it expires", lease=self._name)
            return
        try:
            self._release()
        except ClusterError as error:
            _LOG.info("lease not released, it expires by itself", lease=self._name, detail=str(error))

    @property
    def _deadline(self) -> float:
        return self._renewed_at + self._settings.renew_seconds

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                delay = self.turn()
            except Exception:  # noqa: BLE001 - the one broad handler around a turn
                _LOG.exception("election turn failed", lease=self._name)
                delay = self._settings.retry_seconds
            self._stopping.wait(delay)

    def _attempt(self) -> bool:
        """Whether the lease is ours after this attempt.

        Times are taken on the safe side: an observation counts from after the read, a renewal from before the write.
        """
        try:
            current = self._known if self._known is not None else self._read()
            lease = None if current is None else msgspec.convert(current, Lease)
            now = self._clock()
            step = next_step(lease, self._observed, now, self._identity, self._settings)
            self._observed = step.observed
            if step.action == "wait":
                self._out_of_reach = False
                return False
            self._write(current, step)
        except (Conflict, AlreadyExists):
            self._known = None
            return False
        except ClusterError as error:
            self._known = None
            if not self._out_of_reach:
                self._out_of_reach = True
                _LOG.info("lease out of reach", lease=self._name, detail=str(error))
            return False
        self._out_of_reach = False
        self._renewed_at = now
        return True

    def _read(self) -> dict[str, Any] | None:
        try:
            return self._client.get_dict(LEASES, self._name, self._namespace, timeout_seconds=self._call_seconds())
        except NotFound:
            return None

    def _write(self, current: dict[str, Any] | None, step: Step) -> None:
        body = current or {"metadata": {"name": self._name, "namespace": self._namespace}}
        spec = lease_spec(body.get("spec") or {}, step, self._identity, self._settings, self._stamp())
        body = {**body, "spec": spec}
        timeout = self._call_seconds()
        if current is None:
            stored = self._client.create(LEASES, body, self._namespace, timeout_seconds=timeout)
        else:
            stored = self._client.replace(LEASES, body, timeout_seconds=timeout)
        metadata = {**body["metadata"], "resourceVersion": stored.metadata.resource_version}
        # The next renewal is one write without a read; a Conflict says when somebody else was there.
        self._known = {**body, "metadata": metadata}
        self._observed = Observed(stored.spec, self._clock())

    def _release(self) -> None:
        current = self._known if self._known is not None else self._read()
        if current is None or current.get("spec", {}).get("holderIdentity") != self._identity:
            return
        spec = {**current["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()}
        self._client.replace(LEASES, {**current, "spec": spec}, timeout_seconds=self._settings.retry_seconds)
        self._known = None

    def _call_seconds(self) -> float:
        """Time for connecting and again for the answer, so that a hanging server cannot hide the deadline."""
        room = self._settings.renew_seconds / 2
        if self._leading:
            room = min(room, self._deadline - self._clock())
        return max(_MINIMAL_TIMEOUT_SECONDS, room / 2)

    def _fall(self, why: str) -> concurrent.futures.Future[None]:
        self._leading = False
        self._known = None if why != "stopped" else self._known
        _LOG.info("not leading any more", lease=self._name, identity=self._identity, why=why)
        return self._call(self._on_stopped)

    def _call(self, callback: Callable[[], object]) -> concurrent.futures.Future[None]:
        def guarded() -> None:
            try:
                callback()
            except Exception:  # noqa: BLE001 - a callback is foreign code
                _LOG.exception("leader callback failed", lease=self._name)

        return self._callbacks.submit(guarded)

    def _stamp(self) -> str:
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
