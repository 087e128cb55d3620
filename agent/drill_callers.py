"""Who may drill this node: the owner of its socket, callers with a listed certificate, or with a token and the right.

The token is for drills alone (`drill.audience`), so that whoever gets hold of it here can do nothing else with it. The
right is `create` (to watch: `get`) on `drills.slacktide.io` with the name of the node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import grpc

from slacktide.cluster import Client
from slacktide.cluster.errors import ClusterError
from slacktide.transport import NotNow, Rejected, Tokens, User, bearer, certificate_names, may, over_tls, review_token

if TYPE_CHECKING:
    from agent.drill_settings import DrillSettings

_REVIEW_SECONDS: Final = 30.0
_TIMEOUT_SECONDS: Final = 5.0


class Refused(Exception):
    """A caller that may not do this; `words` are for it."""

    def __init__(self, code: grpc.StatusCode, words: str) -> None:
        self.code = code
        self.words = words
        super().__init__(words)


@dataclass(frozen=True, slots=True)
class Reviews:
    """What the API server says: whose token it is, and why a user may not `verb` drills of this node (empty: may)."""

    tokens: Tokens
    why_not: Callable[[User, str], str]


def reviews_by(client: Client, audience: str, node: str) -> Reviews:
    """The reviews of a real API server."""
    tokens = Tokens(lambda token: review_token(client, token, audience, _TIMEOUT_SECONDS), lambda: _REVIEW_SECONDS)
    return Reviews(tokens, lambda user, verb: may(client, user, verb, "drills", node, _TIMEOUT_SECONDS))


class Callers:
    """Judges callers; `reviews` is None where nobody can be asked about tokens."""

    def __init__(self, settings: Callable[[], DrillSettings], reviews: Reviews | None = None) -> None:
        self._settings = settings
        self._reviews = reviews

    @property
    def takes_tokens(self) -> bool:
        """Whether callers can be told apart by their tokens."""
        return self._reviews is not None

    def name(self, context: grpc.ServicerContext, verb: str) -> str:
        """Name of the caller. Blocks while the API server is asked. Raises Refused."""
        if not over_tls(context):
            return "the owner of the socket"
        settings = self._settings()
        if settings.tls_client_ca_file:
            return _listed(certificate_names(context), settings.allowed_callers)
        if self._reviews is None:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "tokens cannot be reviewed here")
        return self._entitled(self._reviews, context, verb)

    @staticmethod
    def _entitled(reviews: Reviews, context: grpc.ServicerContext, verb: str) -> str:
        try:
            user = reviews.tokens.identify(bearer(context.invocation_metadata() or ())).user
            why_not = reviews.why_not(user, verb)
        except Rejected as error:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None
        except (NotNow, ClusterError) as error:
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"callers cannot be reviewed now: {error}") from None
        if why_not:
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, why_not)
        return user.username


def _listed(names: list[str], allowed: tuple[str, ...]) -> str:
    for name in names:
        if name in allowed:
            return name
    raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"{', '.join(names) or 'a nameless caller'} may not drill")
