"""The API server's word: whose token is this (TokenReview), and may they do that (SubjectAccessReview).

Sources: authentication.k8s.io/v1 TokenReview, authorization.k8s.io/v1 SubjectAccessReview; the claims of a bound token
are in `extra` under the names of `k8s.io/apiserver/pkg/authentication/serviceaccount` (node name: 1.30 and later).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from slacktide.cluster import Client
from slacktide.cluster.kinds import Kind
from slacktide.objects import ObjectMeta, View

NODE_CLAIM: Final = "authentication.kubernetes.io/node-name"
"""Name in `extra` of the node that a bound token's pod runs on."""

GROUP: Final = "slacktide.io"
"""API group of our own rights; it has no objects, only names that roles may list."""


class User(View, frozen=True):
    """Somebody as the API server names them."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def node(self) -> str:
        """The node that the token is bound to; empty when it is bound to none."""
        return next(iter(self.extra.get(NODE_CLAIM, ())), "")


class _TokenStatus(View, frozen=True):
    authenticated: bool = False
    user: User = User()
    audiences: tuple[str, ...] | None = None
    error: str = ""


class TokenReview(View, frozen=True):
    """A review without its spec: the server sends the token back, and there it ends."""

    metadata: ObjectMeta = ObjectMeta()
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(View, frozen=True):
    allowed: bool = False
    reason: str = ""
    evaluation_error: str = ""


class AccessReview(View, frozen=True):
    """The answer to whether somebody may do something."""

    metadata: ObjectMeta = ObjectMeta()
    status: _AccessStatus = _AccessStatus()


TOKEN_REVIEWS: Final = Kind("authentication.k8s.io/v1", "TokenReview", "tokenreviews", False, TokenReview)
ACCESS_REVIEWS: Final = Kind(
    "authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", False, AccessReview
)


@dataclass(frozen=True, slots=True)
class Review:
    """What came of a token: the user, or None and why not."""

    user: User | None
    reason: str = ""


def review_token(client: Client, token: str, audience: str, timeout_seconds: float | None = None) -> Review:
    """Ask whose token this is. Raises ClusterError where there is no answer.

    A server that does not know audiences leaves them out of its answer; then the token could be for anybody.
    """
    body = {"metadata": {}, "spec": {"token": token, "audiences": [audience]}}
    status = client.create(TOKEN_REVIEWS, body, timeout_seconds=timeout_seconds).status
    if not status.authenticated:
        return Review(None, status.error or "the API server does not know this token")
    if audience not in (status.audiences or ()):
        return Review(None, f"the token is not for the audience {audience!r}")
    return Review(status.user)


def may(client: Client, user: User, verb: str, resource: str, name: str, timeout_seconds: float | None = None) -> str:
    """Why `user` may not do this to `resource` of our group; empty when they may. Raises ClusterError.

    An empty name asks about all of them.
    """
    attributes = {"group": GROUP, "resource": resource, "verb": verb, **({"name": name} if name else {})}
    spec: dict[str, Any] = {
        "user": user.username,
        "groups": _texts(user.groups),
        "extra": {key: _texts(values) for key, values in user.extra.items()},
        "resourceAttributes": attributes,
    }
    if user.uid:
        spec["uid"] = user.uid
    status = client.create(ACCESS_REVIEWS, {"metadata": {}, "spec": spec}, timeout_seconds=timeout_seconds).status
    if status.allowed:
        return ""
    said = status.reason or status.evaluation_error
    what = f"{user.username} may not {verb} {resource}.{GROUP}{f' {name}' if name else ''}"
    return f"{what}: {said}" if said else what


def _texts(values: Sequence[str]) -> list[str]:
    return list(values)
