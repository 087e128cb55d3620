"""How many drills may run at once in a cluster: a Lease a place, held by the caller while its drill runs.

`at-once` of the ConfigMap `slacktide-drill-policy` says how many; without it one. A caller that is killed stops to
renew: its place is taken over after `lease_seconds` of silence by the next caller's own clock, which is longer than the
agent needs to notice that nobody watches and to end the drill.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from cli.drillfacts import needed
from cli.exits import REFUSED, CommandError
from slacktide.cluster import LEASES
from slacktide.cluster.election import ElectionSettings, Observed, lease_spec, next_step
from slacktide.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound
from slacktide.objects import Lease

if TYPE_CHECKING:
    from slacktide.cluster import Client

POLICY: Final = "slacktide-drill-policy"
AT_ONCE: Final = "at-once"
AT_ONCE_MAX: Final = 100
SETTINGS: Final = ElectionSettings(lease_seconds=30.0, renew_seconds=20.0, retry_seconds=2.0)
"""30 s: a vanished connection is noticed within 15 s, and the dead-man timer of 10 s begins only then."""

_LOOK_SECONDS: Final = 1.0
_WHY: Final = "to hold the number of drills at once"


def at_once(client: Client, namespace: str) -> int:
    """How many drills may run at a time. Raises CommandError for a policy that cannot be read."""
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{POLICY}"
    with needed(_WHY):
        try:
            text = json.loads(client.request("GET", path)).get("data", {}).get(AT_ONCE, "1")
        except NotFound:
            return 1
    if not (text.isdecimal() and 0 <= int(text) <= AT_ONCE_MAX):
        where = f"ConfigMap {namespace}/{POLICY}"
        raise CommandError(f"{where}: {AT_ONCE} is {text!r}; it must be a number from 0 to {AT_ONCE_MAX}", REFUSED)
    return int(text)


@dataclass(frozen=True, slots=True)
class _Place:
    """A lease as it was read: raw, and since when it has been like this."""

    raw: dict[str, Any] | None
    observed: Observed | None


class Budget:
    """The places of a namespace. `holder` names the caller and its drill, for others to read."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        places: int,
        holder: str,
        *,
        settings: ElectionSettings = SETTINGS,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._places = places
        self._holder = holder
        self._settings = settings
        self._clock = clock
        self._wait = wait

    def take(self, say: Callable[[str], None] = lambda _: None) -> Held:
        """A place. Raises CommandError (refused) where all are held by callers that live.

        Whether a holder lives shows in that it renews: a place that stays as it was is waited for, and taken.
        """
        if not self._places:
            raise CommandError(f"no drill is allowed now: {AT_ONCE} is 0 in ConfigMap {POLICY}", REFUSED)
        seen: dict[str, _Place] = {}
        alive: dict[str, str] = {}
        while True:
            for name in (f"slacktide-drill-{number}" for number in range(self._places)):
                held = self._try(name, seen, alive)
                if held is not None:
                    return held
            if len(alive) == self._places:
                holders = "; ".join(f"{name} by {holder}" for name, holder in sorted(alive.items()))
                raise CommandError(
                    f"{self._places} {'drill runs' if self._places == 1 else 'drills run'} already, and no more may "
                    f"at once ({AT_ONCE} in ConfigMap {self._namespace}/{POLICY}): {holders}",
                    REFUSED,
                )
            say("waiting to see whether the caller of another drill still lives")
            self._wait(_LOOK_SECONDS)

    def _try(self, name: str, seen: dict[str, _Place], alive: dict[str, str]) -> Held | None:
        """Look at a place, and take it if it is free."""
        with needed(_WHY):
            raw = self._read(name)
            lease = None if raw is None else msgspec.convert(raw, Lease)
            before = seen.get(name)
            known = None if before is None else before.observed
            step = next_step(lease, known, self._clock(), self._holder, self._settings)
            seen[name] = _Place(raw, step.observed)
            if step.action == "wait":
                assert lease is not None
                if known is not None and known.spec != lease.spec:
                    alive[name] = lease.spec.holder_identity or ""
                return None
            alive.pop(name, None)
            try:
                return self._write(name, raw, lease_spec(_spec(raw), step, self._holder, self._settings, _stamp()))
            except (Conflict, AlreadyExists):
                # Somebody else was faster; the next look tells who.
                return None

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            return self._client.get_dict(LEASES, name, self._namespace)
        except NotFound:
            return None

    def _write(self, name: str, raw: dict[str, Any] | None, spec: dict[str, Any]) -> Held:
        body = raw or {"metadata": {"name": name, "namespace": self._namespace}}
        body = {**body, "spec": spec}
        if raw is None:
            stored = self._client.create(LEASES, body, self._namespace)
        else:
            stored = self._client.replace(LEASES, body)
        body["metadata"] = {**body["metadata"], "resourceVersion": stored.metadata.resource_version}
        return Held(self._client, body, self._settings, self._clock)


class Held:
    """A place that is held: renewed by a thread of its own until `release`. Use as a context manager."""

    def __init__(
        self, client: Client, body: dict[str, Any], settings: ElectionSettings, clock: Callable[[], float]
    ) -> None:
        self._client = client
        self._body = body
        self._settings = settings
        self._clock = clock
        self._renewed_at = clock()
        self._lost = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="drill-place", daemon=True)

    def __enter__(self) -> Held:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def name(self) -> str:
        """Name of the lease."""
        return str(self._body["metadata"]["name"])

    def broken(self) -> str:
        """Why the drill must not go on: the place could not be kept. Empty while it is held."""
        if self._lost:
            return self._lost
        silent = self._clock() - self._renewed_at
        if silent > self._settings.renew_seconds:
            return f"the lease {self.name} could not be renewed for {silent:.0f} s"
        return ""

    def release(self) -> None:
        """Give the place back; one that cannot be given back ends by itself."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._lost:
            return
        spec = {**self._body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _stamp()}
        try:
            self._client.replace(LEASES, {**self._body, "spec": spec}, timeout_seconds=self._settings.retry_seconds)
        except ClusterError:
            return

    def _keep(self) -> None:
        while not self._stop.wait(self._settings.retry_seconds) and not self._lost:
            self._renew()

    def _renew(self) -> None:
        self._body["spec"] = {**self._body["spec"], "renewTime": _stamp()}
        try:
            stored = self._client.replace(LEASES, self._body, timeout_seconds=self._settings.retry_seconds)
        except Conflict:
            self._lost = f"somebody else has taken or changed the lease {self.name}"
            return
        except ClusterError:
            # Tried again; `broken` says when it has been too long.
            return
        self._body["metadata"] = {**self._body["metadata"], "resourceVersion": stored.metadata.resource_version}
        self._renewed_at = self._clock()


def _spec(raw: dict[str, Any] | None) -> dict[str, Any]:
    return (raw or {}).get("spec") or {}


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
