"""Whether the API server lets us do what we are there for, and if not, which verb on what is missing.

Each component lists what it needs as `Permission`s, which is also what the chart grants. `Rights` asks the server at
start (SelfSubjectAccessReview, which every account may ask), again when an answer says that a right is missing, and,
as long as one is, every half minute. An account that has all rights costs nothing after the start.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from slacktide.cluster.codec import encode
from slacktide.cluster.errors import ClusterError, Forbidden, NotFound
from slacktide.cluster.retry import Backoff
from slacktide.observe import get_logger

_LOG: Final = get_logger("cluster.permissions")
_REVIEWS: Final = "selfsubjectaccessreviews"
_PATH: Final = f"/apis/authorization.k8s.io/v1/{_REVIEWS}"
_AGAIN_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 2.0
# Source: kubernetes apiserver pkg/endpoints/handlers/responsewriters/errors.go (forbiddenMessage).
_DENIAL: Final = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>[a-z]+) resource "(?P<resource>[^"/]+)(?:/(?P<subresource>[^"]+))?"'
    r' in API group "(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]+)")?'
)


@dataclass(frozen=True, kw_only=True)
class Permission:
    """One verb on one resource. `why` says what does not work without it.

    group: "" is the core group. namespace: "" is all of them (and kinds without namespaces). name: "" is every object.
    """

    verb: str
    resource: str
    subresource: str = ""
    group: str = ""
    namespace: str = ""
    name: str = ""
    why: str = field(default="", compare=False)

    def __str__(self) -> str:
        what = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        what = f"{what}.{self.group}" if self.group else what
        where = f" in namespace {self.namespace}" if self.namespace else ""
        why = f" ({self.why})" if self.why else ""
        return f"{self.verb} {what}{where}{why}"

    def covers(self, other: Permission) -> bool:
        """Whether a lack of this one explains a denial of the other."""
        same = ("verb", "resource", "subresource", "group")
        return all(getattr(self, name) == getattr(other, name) for name in same) and self.namespace in (
            "",
            other.namespace,
        )


def permissions(
    verbs: str, resource: str, why: str, *, group: str = "", namespace: str = "", name: str = ""
) -> tuple[Permission, ...]:
    """One permission for each of `verbs` (divided by blanks) on `resource`, such as `pods` or `pods/eviction`."""
    what, _, part = resource.partition("/")
    return tuple(
        Permission(verb=verb, resource=what, subresource=part, group=group, namespace=namespace, name=name, why=why)
        for verb in verbs.split()
    )


def lease_permissions(name: str, namespace: str, why: str) -> tuple[Permission, ...]:
    """What an election on that lease needs. What does not exist yet cannot be named, so that `create` is for any."""
    group = "coordination.k8s.io"
    return (
        *permissions("get update", "leases", why, group=group, namespace=namespace, name=name),
        *permissions("create", "leases", why, group=group, namespace=namespace),
    )


def denial_of(error: Forbidden) -> tuple[str, Permission] | None:
    """The account and the right that it lacks; None for a 403 that is not about rights (quota, admission)."""
    found = _DENIAL.search(error.message)
    if found is None:
        return None
    parts = {name: text or "" for name, text in found.groupdict().items()}
    return parts.pop("user"), Permission(**parts)


class Asker(Protocol):
    """The part of the client that is used."""

    def request(
        self,
        method: str,
        path: str,
        query: Any = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """One raw request. Raises ClusterError."""
        ...  # a protocol member has no body

    def on_denied(self, told: Callable[[Forbidden], object]) -> None:
        """Call `told` for each answer that a right is missing."""
        ...  # a protocol member has no body


class _Review(msgspec.Struct, frozen=True):
    class Status(msgspec.Struct, frozen=True):
        allowed: bool = False

    status: Status = Status()


class Rights:
    """Keeps an eye on the rights of this process, in a thread of its own. `problem` is a readiness check."""

    def __init__(
        self,
        client: Asker,
        wanted: Sequence[Permission],
        *,
        again_seconds: float = _AGAIN_SECONDS,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._wanted = tuple(wanted)
        self._again_seconds = again_seconds
        self._uniform = uniform
        self._backoff = Backoff(1.0, again_seconds, uniform)
        self._lock = threading.Lock()
        self._denied: set[Permission] = set()
        self._missing: tuple[Permission, ...] = ()
        self._user = ""
        self._news = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rights", daemon=True)
        client.on_denied(self._told)

    def start(self) -> None:
        """Begin to ask; goes on trying while the server is away."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopping = True
        self._news.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)

    def missing(self) -> tuple[Permission, ...]:
        """The rights that we lack, as last known."""
        with self._lock:
            return self._missing

    def problem(self) -> str | None:
        """Which rights are missing, None when none is, or none is known to be."""
        missing = self.missing()
        if not missing:
            return None
        return (
            f"the API server forbids: {', '.join(map(str, missing))}; grant it to {self._user or 'our account'}: "
            "docs/security.md has the whole table"
        )

    def _told(self, error: Forbidden) -> None:
        denial = denial_of(error)
        if denial is None:
            return
        user, lacks = denial
        if lacks.resource == _REVIEWS:
            # That we may not ask what we may do takes nothing from anybody.
            return
        with self._lock:
            self._user = user
            known = any(one.covers(lacks) for one in (*self._missing, *self._denied))
            self._denied.add(next((wanted for wanted in self._wanted if wanted.covers(lacks)), lacks))
        if not known:
            self._news.set()

    def _run(self) -> None:
        while not self._stopping:
            self._news.clear()
            try:
                delay = self._look()
            except ClusterError:
                # Whether the server is there is the business of those who need it.
                delay = self._backoff.next()
            except Exception:  # noqa: BLE001 - the one guard of a thread that must outlive a mistake
                _LOG.exception("rights not looked at")
                delay = self._again_seconds
            self._news.wait(delay)

    def _look(self) -> float | None:
        """Ask for everything; the seconds until the next time, None when only a denial can change something."""
        with self._lock:
            before, denied = self._missing, self._denied
            self._denied = set()
        try:
            asked = dict.fromkeys((*self._wanted, *before, *sorted(denied, key=str)))
            missing = tuple(one for one in asked if not self._allowed(one, was_denied=one in denied))
        except ClusterError:
            with self._lock:
                self._denied |= denied
            raise
        self._backoff.reset()
        with self._lock:
            self._missing = missing
        for one in missing:
            if one not in before:
                _LOG.warning("a permission is missing", permission=str(one), user=self._user)
        if before and not missing:
            _LOG.info("all permissions are there now")
        return self._again_seconds * (0.75 + 0.5 * self._uniform()) if missing else None

    def _allowed(self, one: Permission, *, was_denied: bool) -> bool:
        attributes = {
            "verb": one.verb,
            "group": one.group,
            "resource": one.resource,
            "subresource": one.subresource,
            "namespace": one.namespace,
            "name": one.name,
        }
        spec = {"resourceAttributes": {name: text for name, text in attributes.items() if text}}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec}
        try:
            answer = self._client.request("POST", _PATH, body=encode(body))
        except (NotFound, Forbidden):
            # Nobody can be asked here: only what is denied in earnest is known.
            return not was_denied
        return msgspec.json.decode(answer, type=_Review).status.allowed
