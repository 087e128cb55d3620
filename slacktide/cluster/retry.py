"""How long to wait before trying again, and which calls may be tried again at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeVar

from slacktide.cluster.errors import ApiError, ServerError, TooManyRequests, Unreachable

R = TypeVar("R")

_ATTEMPTS: Final = 5
_DEFAULT_RETRY_AFTER: Final = 1.0


class Backoff:
    """Growing, jittered delays: base, base*2, ... up to cap, each cut by a random share of up to half.

    The jitter keeps many agents from coming back in step after the API server was away.
    """

    def __init__(self, base_seconds: float, cap_seconds: float, uniform: Callable[[], float] = random.random) -> None:
        self._base = base_seconds
        self._cap = cap_seconds
        self._uniform = uniform
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        # The exponent is bounded because an API server may be away for weeks.
        delay = min(self._cap, self._base * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return delay * (1.0 - 0.5 * self._uniform())

    def reset(self) -> None:
        """Start from base again: a call succeeded."""
        self._failures = 0


def retry_delay(error: ApiError) -> float | None:
    """Seconds after which the server is willing to hear the same call again; None = it did not say so.

    429 is always worth a retry; a 5xx only where the server names a time.
    """
    if isinstance(error, TooManyRequests):
        return _DEFAULT_RETRY_AFTER if error.retry_after is None else error.retry_after
    if isinstance(error, ServerError):
        return error.retry_after
    return None


def repeated(
    call: Callable[[], R],
    *,
    budget_seconds: float,
    wait: Callable[[float], bool],
    uniform: Callable[[], float] = random.random,
) -> R:
    """The result of a call that may be made more than once with the same effect.

    Tries again after 429 and after 5xx with Retry-After, as long as all waits together fit into `budget_seconds`,
    and once at once where a kept connection had been dropped. `wait(seconds)` returns true to give up.
    Raises the last error.
    """
    waited = 0.0
    reconnected = False
    attempts = 1
    while True:
        try:
            return call()
        except ApiError as error:
            asked = retry_delay(error)
            if asked is None or attempts >= _ATTEMPTS:
                raise
            delay = asked + 0.1 * uniform() * max(asked, 1.0)
            waited += delay
            if waited > budget_seconds or wait(delay):
                raise
            attempts += 1
        except Unreachable as error:
            if not error.dropped or reconnected:
                raise
            reconnected = True
