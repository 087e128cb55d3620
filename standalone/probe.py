"""Ask a daemon over its Unix socket whether it is ready: GET /readyz, one request a connection, short timeouts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from slacktide.cluster.exchange import BadAnswer, Exchange, Limits, TooLong
from slacktide.cluster.unix import UnixConnection

_WHOLE_SECONDS: Final = 60.0
_ERROR_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Not `answered` is a daemon that does not listen (yet), or hangs."""

    answered: bool
    ready: bool
    detail: str


def get(path: str, target: str, timeout: float = 1.0) -> tuple[int, bytes]:
    """Status and body of GET `target` over socket `path`; each wait takes at most `timeout` seconds. Raises OSError."""
    limits = Limits(timeout, timeout, _WHOLE_SECONDS + timeout, _ERROR_BYTES)
    with contextlib.closing(Exchange("http://localhost", lambda seconds: UnixConnection(path, seconds), 0)) as exchange:
        try:
            answer = exchange.call("GET", target, {"Connection": "close"}, None, limits)
        except (TooLong, BadAnswer) as error:
            raise ConnectionError(str(error)) from error
    return answer.status, answer.body


def ready(path: str, timeout: float = 1.0) -> Answer:
    """Ask the daemon behind socket `path`; a refusal carries the daemon's own words."""
    try:
        status, body = get(path, "/readyz", timeout)
    except OSError as error:
        return Answer(False, False, f"does not answer on {path}: {error}")
    text = body.decode("utf-8", "replace").strip()
    return Answer(True, status == 200, "" if status == 200 else text or f"/readyz answers {status}")
