"""Who may report and who may read: asked once when a stream begins, and again when its identity is due.

Over a Unix socket it is the owner of the socket. Over TLS an agent shows the bound token of its service account, in
which the API server has put the node that its pod runs on, or a certificate that names the node; it may report for
that node and for no other. Readers need the right to `get` or `watch` `forecasts.slacktide.io`.

A message of a stream costs one comparison here. An identity that is due is reviewed beside the stream, which goes on
meanwhile, for the API server may be slow; only one that has ended is waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final

import grpc
from msgspec import Meta

from slacktide.cluster.errors import ClusterError
from slacktide.observe import get_logger
from slacktide.settings import Settings
from slacktide.transport import Identity, NotNow, Rejected, Tokens, User, bearer, common_name, over_tls
from slacktide.transport.tokens import QUIET_SECONDS

_LOG: Final = get_logger("predictor.auth")
_THREADS: Final = 16
_TOLD_SECONDS: Final = 60.0
_CERTIFICATE_NAMES: Final = ("system:node:", "slacktide-agent:")
_INFINITE: Final = float("inf")

_RELOADABLE: Final = {"reloadable": True}


class AuthSettings(Settings, frozen=True):
    """Whose reports are taken over TLS; nothing of it counts on a Unix socket."""

    audience: Annotated[str, Meta(min_length=1, description="audience that the token of an agent must be for")] = (
        "slacktide-predictor"
    )
    agents: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="accounts of agents, as the API server names them", extra=_RELOADABLE),
    ] = ("system:serviceaccount:slacktide-system:slacktide-agent",)
    review_seconds: Annotated[
        float,
        Meta(
            ge=1,
            le=86_400,
            description="a token is reviewed again after this long: a deleted pod is noticed by then",
            extra=_RELOADABLE,
        ),
    ] = 600.0
    review_timeout_seconds: Annotated[
        float, Meta(ge=0.1, le=60, description="limit of one review by the API server", extra=_RELOADABLE)
    ] = 5.0


class Refusal(Exception):
    """A call that is not let in, or a stream that may not go on. `kind` is for metrics, `words` for the caller."""

    def __init__(self, code: grpc.StatusCode, kind: str, words: str) -> None:
        self.code = code
        self.kind = kind
        self.words = words
        super().__init__(words)


class Pass:
    """What a stream may do. `node` is the one it may report for, empty for any; ask `look` once `look_at` is past."""

    def __init__(self, node: str = "", look_at: float = _INFINITE) -> None:
        self.node = node
        self.look_at = look_at

    async def look(self) -> None:
        """Make sure that the stream may go on. Raises Refusal."""

    def judge(self, node: str) -> None:
        """Raises Refusal when it may not report for `node`."""
        if self.node and node != self.node:
            words = f"this caller may report for node {self.node!r} only, not for {node[:64]!r}"
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, "node", words)


Review = Callable[[str], "asyncio.Future[Identity]"]
Judge = Callable[[Identity], str]


class TokenPass(Pass):
    """A pass that rests on a token. `judge_identity` gives the node, or raises Refusal for one who is no agent."""

    def __init__(self, token: str, identity: Identity, review: Review, judge_identity: Judge) -> None:
        super().__init__(judge_identity(identity), identity.look_at)
        self._token = token
        self._identity = identity
        self._review = review
        self._judge_identity = judge_identity
        self._running: asyncio.Future[Identity] | None = None

    async def look(self) -> None:
        """Ask again: beside the stream while the identity holds, before it goes on when that has ended."""
        if self._running is None:
            self._running = self._review(self._token)
            # Until the answer is there, or the identity has ended, the stream is left alone.
            self._running.add_done_callback(self._answered)
            self.look_at = self._identity.ends_at
            if time.monotonic() < self._identity.ends_at:
                return
        running, self._running = self._running, None
        try:
            self._identity = await running
        except Rejected as error:
            raise refusal_of(error) from None
        except NotNow as error:
            if time.monotonic() >= self._identity.ends_at:
                raise refusal_of(error) from None
            self.look_at = min(self._identity.ends_at, time.monotonic() + QUIET_SECONDS)
            return
        self.look_at = self._identity.look_at
        if self._judge_identity(self._identity) != self.node:
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, "node", "the token is of another node now")

    def _answered(self, running: asyncio.Future[Identity]) -> None:
        """The next message takes the answer; an exception that nobody reads any more is no news."""
        self.look_at = -_INFINITE
        if not running.cancelled():
            running.exception()


def refusal_of(error: Rejected | NotNow) -> Refusal:
    """The refusal for a token that is not good, or cannot be judged now."""
    if isinstance(error, NotNow):
        return Refusal(grpc.StatusCode.UNAVAILABLE, "unavailable", str(error))
    return Refusal(grpc.StatusCode.UNAUTHENTICATED, "token", str(error))


class Gate:
    """Lets callers in. `may` says why a user may not do something to forecasts, and blocks as `tokens` does.

    `by_certificate`: every caller of this server has shown a certificate of its client CA. `count` is told the kind of
    each refusal.
    """

    def __init__(
        self,
        settings: Callable[[], AuthSettings],
        tokens: Tokens,
        may: Callable[[User, str, str], str],
        *,
        by_certificate: bool = False,
        count: Callable[[str], None] = lambda _kind: None,
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._may = may
        self._by_certificate = by_certificate
        self._count = count
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="auth")
        self._told: dict[str, float] = {}

    def stop(self) -> None:
        """Ask nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def reporter(self, context: Any) -> Pass:
        """The pass of a stream of usage. Raises Refusal."""
        if not over_tls(context):
            return Pass()
        if self._by_certificate:
            return Pass(_node_of(common_name(context)))
        token, identity = await self._caller(context)
        return TokenPass(token, identity, self._review, self._agent)

    async def reader(self, context: Any, verb: str, node: str) -> Pass:
        """The pass of somebody who reads forecasts, of all nodes when `node` is empty. Raises Refusal."""
        if not over_tls(context):
            return Pass()
        if self._by_certificate:
            await self._check_right(User(username=common_name(context)), verb, node)
            return Pass()
        token, identity = await self._caller(context)
        await self._check_right(identity.user, verb, node)
        return TokenPass(token, identity, self._review, lambda _identity: "")

    def tell(self, refusal: Refusal, peer: str) -> None:
        """Count a refusal, and say the first of its kind in a minute."""
        self._count(refusal.kind)
        now = time.monotonic()
        if now >= self._told.get(refusal.kind, -_INFINITE):
            self._told[refusal.kind] = now + _TOLD_SECONDS
            _LOG.warning("caller refused", kind=refusal.kind, reason=refusal.words, peer=peer)

    async def _caller(self, context: Any) -> tuple[str, Identity]:
        try:
            token = bearer(context.invocation_metadata() or ())
            return token, self._tokens.remembered(token) or await self._review(token)
        except (Rejected, NotNow) as error:
            raise refusal_of(error) from None

    def _review(self, token: str) -> asyncio.Future[Identity]:
        return asyncio.get_running_loop().run_in_executor(self._pool, self._tokens.identify, token)

    def _agent(self, identity: Identity) -> str:
        """The node that an agent may report for. Raises Refusal for anybody else."""
        user = identity.user
        if user.username not in self._settings().agents:
            words = f"{user.username} is none of auth.agents"
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, "account", words)
        if not user.node:
            words = "the token names no node: it must be bound to a pod that runs on one (Kubernetes 1.30 or later)"
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, "node", words)
        return user.node

    async def _check_right(self, user: User, verb: str, node: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            why_not = await loop.run_in_executor(self._pool, self._may, user, verb, node)
        except ClusterError as error:
            words = f"rights cannot be reviewed now: {error}"
            raise Refusal(grpc.StatusCode.UNAVAILABLE, "unavailable", words) from None
        if why_not:
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, "right", why_not)


def _node_of(name: str) -> str:
    """The node in the common name of a certificate. Raises Refusal when there is none."""
    for prefix in _CERTIFICATE_NAMES:
        if name.startswith(prefix) and len(name) > len(prefix):
            return name.removeprefix(prefix)
    words = f"the certificate of {name or 'nobody'} names no node: its CN must be system:node:NAME"
    raise Refusal(grpc.StatusCode.PERMISSION_DENIED, "certificate", words)
