"""Which slots of which server are imported, kept in the history itself so that a second run goes on. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec

from predictor.prometheus.plan import Span, merged

KEY: Final = "prometheus-import"
"""Where the history keeps it."""


class Done(msgspec.Struct):
    """Spans whose nodes, and whose pods, are stored in full."""

    nodes: list[tuple[int, int]] = []
    pods: list[tuple[int, int]] = []


class Ledger:
    """What is done, by server and conditions."""

    def __init__(self, blob: bytes | None, server: str, conditions: Iterable[str]) -> None:
        # An address may hold what is nobody's business, and its length is not bounded.
        self._key = hashlib.sha256("\n".join((server, *sorted(conditions))).encode()).hexdigest()[:16]
        try:
            self._all = msgspec.msgpack.decode(blob, type=dict[str, Done]) if blob else {}
        except msgspec.MsgspecError:
            # Importing again what is there changes nothing, so nothing is lost but time.
            self._all = {}

    def spans(self, *, pods: bool) -> list[Span]:
        """What is done of nodes, or of pods."""
        done = self._all.get(self._key, Done())
        return [Span(*pair) for pair in (done.pods if pods else done.nodes)]

    def add(self, span: Span, *, pods: bool) -> None:
        """Note that `span` is done."""
        done = self._all.setdefault(self._key, Done())
        spans: list[tuple[int, int]] = [(one.first, one.end) for one in merged([*self.spans(pods=pods), span])]
        if pods:
            done.pods = spans
        else:
            done.nodes = spans

    def forget(self) -> None:
        """Begin anew with this server."""
        self._all.pop(self._key, None)

    def blob(self) -> bytes:
        """All of it, to be kept under KEY."""
        return msgspec.msgpack.encode(self._all)
