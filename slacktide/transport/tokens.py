"""Who callers are by their tokens, remembered so that the API server is asked seldom, and believed no longer than told.

A token that was reviewed is believed until `look_at` without asking; then it is reviewed again. While the API server
does not answer, those who are known go on until their token ends (`ends_at`), and nobody new is let in. Tokens
themselves are not kept, only their digests.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from slacktide.cluster.errors import BadRequest, ClusterError, Invalid
from slacktide.errors import SlacktideError
from slacktide.transport.reviews import Review, User

QUIET_SECONDS: Final = 2.0
"""After a failure the API server is not asked for so long: whoever comes meanwhile would only wait in a queue."""

REFUSED_SECONDS: Final = 10.0
"""A token that was refused is not asked about again for so long."""

SKEWED_SECONDS: Final = 60.0
"""A token that the API server takes and our clock calls expired is believed for so long."""

_MOST: Final = 100_000
_MOST_REFUSED: Final = 10_000
_SCHEME: Final = "bearer "

V = TypeVar("V")
Ask = Callable[[str], Review]


class Rejected(SlacktideError):
    """The caller has no token, or one that is not good: there is no use in trying again with it."""


class NotNow(SlacktideError):
    """Nobody can say now who the caller is: worth another try."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a caller is, when to ask again and until when to believe it (monotonic seconds)."""

    user: User
    look_at: float
    ends_at: float


class _Claims(msgspec.Struct):
    exp: float | None = None


def expiry_of(token: str) -> float | None:
    """When a token says that it ends, in seconds since the epoch; None for one that does not say.

    Nothing is verified here: ask only about a token that the API server has vouched for.
    """
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(payload, type=_Claims).exp
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None


def bearer(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token that a call carries. Raises Rejected when there is none."""
    for key, value in metadata:
        if key.lower() == "authorization" and isinstance(value, str) and value[: len(_SCHEME)].lower() == _SCHEME:
            token = value[len(_SCHEME) :].strip()
            if token:
                return token
    raise Rejected("no token: the call needs `authorization: Bearer ...`")


class Tokens:
    """Identities by token. `ask` reviews one with the API server (it blocks); safe to use from several threads."""

    def __init__(
        self,
        ask: Ask,
        review_seconds: Callable[[], float],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._ask = ask
        self._review_seconds = review_seconds
        self._clock = clock
        self._wall = wall
        self._jitter = jitter
        self._lock = threading.Lock()
        self._known: dict[bytes, Identity] = {}
        self._refused: dict[bytes, tuple[float, str]] = {}
        self._quiet_until = -float("inf")
        self._failure: ClusterError | None = None

    def remembered(self, token: str) -> Identity | None:
        """What can be said without asking anybody; None when the token must be reviewed."""
        now = self._clock()
        with self._lock:
            known = self._known.get(_digest(token))
            return known if known is not None and now < known.look_at else None

    def identify(self, token: str) -> Identity:
        """Whose token this is. Blocks while the API server is asked. Raises Rejected, NotNow."""
        digest = _digest(token)
        now = self._clock()
        with self._lock:
            known = self._known.get(digest)
            if known is not None and now < known.look_at:
                return known
            until, reason = self._refused.get(digest, (-float("inf"), ""))
            failure = self._failure if now < self._quiet_until else None
        if now < until:
            raise Rejected(reason)
        if failure is not None:
            return self._without_answer(digest, known, failure)
        try:
            review = self._ask(token)
        except (BadRequest, Invalid) as error:
            # The question itself was refused, and the question is the caller's token.
            return self._take(digest, token, Review(None, f"the API server cannot review it (HTTP {error.status})"))
        except ClusterError as error:
            return self._without_answer(digest, known, self._failed(error))
        return self._take(digest, token, review)

    def _failed(self, error: ClusterError) -> ClusterError:
        with self._lock:
            self._failure = error
            self._quiet_until = self._clock() + QUIET_SECONDS
        return error

    def _take(self, digest: bytes, token: str, review: Review) -> Identity:
        now = self._clock()
        with self._lock:
            self._quiet_until = -float("inf")
        if review.user is None:
            with self._lock:
                self._known.pop(digest, None)
                _bounded(self._refused, _MOST_REFUSED)[digest] = (now + REFUSED_SECONDS, review.reason)
            raise Rejected(review.reason)
        seconds = self._review_seconds()
        # Spread, so that agents that all came at once after a restart are not all due at once for ever.
        look_at = now + seconds * (0.75 + 0.25 * self._jitter())
        ends_at = now + self._left(token, seconds)
        identity = Identity(review.user, min(look_at, ends_at), ends_at)
        with self._lock:
            self._refused.pop(digest, None)
            self._known.pop(digest, None)
            _bounded(self._known, _MOST)[digest] = identity
        return identity

    def _left(self, token: str, review_seconds: float) -> float:
        """For how long a token that is good now may be believed while nobody can be asked."""
        expiry = expiry_of(token)
        if expiry is None:
            return review_seconds
        left = expiry - self._wall()
        return left if left > 0 else min(SKEWED_SECONDS, review_seconds)

    def _without_answer(self, digest: bytes, known: Identity | None, error: ClusterError) -> Identity:
        now = self._clock()
        if known is None or now >= known.ends_at:
            raise NotNow(f"tokens cannot be reviewed now: {error}")
        longer = Identity(known.user, min(known.ends_at, now + QUIET_SECONDS), known.ends_at)
        with self._lock:
            if digest in self._known:
                self._known[digest] = longer
        return longer


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _bounded(entries: dict[bytes, V], most: int) -> dict[bytes, V]:
    """`entries` with room for one more: the oldest goes first."""
    while len(entries) >= most:
        del entries[next(iter(entries))]
    return entries
