"""Makers for the extender's tests: a service over a small cluster, and a client that speaks plain HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from scheduler_plugins.extender.metrics import ExtenderMetrics
from scheduler_plugins.extender.server import ExtenderServer, Limits
from scheduler_plugins.extender.service import ExtenderService, Terms
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.interfaces import NodeFilterPlugin, NodeScorePlugin
from scheduler_plugins.framework.status import SUCCESS, failed, unresolvable, unschedulable
from slacktide.objects import Node, Pod
from slacktide.tier import Tier
from tests.patience import PATIENCE
from tests.scheduler_plugins.build import READER, framework

BE = frozenset({Tier.BE})


class Picky(NodeFilterPlugin, NodeScorePlugin):
    """Judges a node by its label `say`: no, never, broken, or anything else for yes; scores by label `score`."""

    name = "Picky"

    def filter(self, state: Any, pod: Any, node: Any) -> Any:
        say = node.labels.get("say")
        answers = {"no": unschedulable("said no"), "never": unresolvable("said never"), "broken": failed("said broken")}
        return answers.get(say, SUCCESS)

    def score(self, state: Any, pod: Any, node: Any) -> float:
        return float(node.labels.get("score", "0"))


class Gate(NodeFilterPlugin):
    """A plugin that hangs until it is let go."""

    name = "Gate"

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()

    def filter(self, state: Any, pod: Any, node: Any) -> Any:
        self.entered.set()
        assert self.release.wait(60)
        return SUCCESS


class Bench:
    """A service and what it stands on."""

    def __init__(
        self,
        *plugins: Any,
        nodes: list[Node] = (),
        placed: dict[str, list[Pod]] | None = None,
        tiers: frozenset[Tier] = BE,
        weights: dict[str, int] | None = None,
        highest: int = 10,
        wait_seconds: float = 20.0,
        ready: Callable[[], str | None] = lambda: None,
        binding: Any = None,
    ) -> None:
        self.framework = framework(*plugins, weights=weights)
        self.cache = Cache()
        for one in nodes:
            self.cache.set_node(one)
        for name, pods in (placed or {}).items():
            for one in pods:
                self.cache.add_pod(READER.read(one).on(name))
        self.registry = CollectorRegistry()
        self.metrics = ExtenderMetrics(self.registry)
        self.metrics.watch(self.cache)
        terms = Terms(tiers, highest, wait_seconds)
        self.service = ExtenderService(self.framework, self.cache, READER, terms, self.metrics, ready, binding)

    def ask(self, verb: str, **question: Any) -> Any:
        """The decoded answer of a question that must be answered with 200."""
        reply = self.service.answer(verb, body(**question))
        assert reply.status == 200, reply
        return json.loads(reply.body)

    def refused(self, verb: str, content: bytes) -> tuple[int, str]:
        """Status and Error text."""
        reply = self.service.answer(verb, content)
        return int(reply.status), json.loads(reply.body)["Error"]

    def count(self, outcome: str, verb: str = "filter") -> float:
        labels = {"verb": verb, "outcome": outcome}
        return self.registry.get_sample_value("slacktide_extender_requests_total", labels) or 0.0


def plain(value: Any) -> Any:
    """JSON-ready form of a view."""
    return json.loads(msgspec.json.encode(value))


def body(**question: Any) -> bytes:
    """A request as a Go client writes it; views are encoded."""
    return msgspec.json.encode(question)


LIMITS = Limits(connections=128, body_bytes=1 << 20, request_seconds=10.0, idle_seconds=30.0)


@contextlib.contextmanager
def served(service: Any, limits: Limits = LIMITS, tls: Any = None, metrics: Any = None) -> Iterator[ExtenderServer]:
    """A server on a free port of loopback."""
    server = ExtenderServer("127.0.0.1:0", service, limits, metrics or ExtenderMetrics(CollectorRegistry()), tls)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def post(
    address: str, path: str, content: bytes, kind: str | None = "application/json", method: str = "POST"
) -> tuple[int, Any, dict[str, str]]:
    """(status, decoded body, headers) of one request on a connection of its own."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        connection.request(method, path, content, {} if kind is None else {"Content-Type": kind})
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None, dict(response.getheaders())


def raw(address: str, sent: bytes, close: bool = False) -> bytes:
    """All that comes back until the server closes, after sending `sent` and nothing more."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(sent)
            if close:
                connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(OSError):
            while chunk := connection.recv(1 << 16):
                received += chunk
        return received


def until(what: str, check: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Wait for a condition; the test fails with its name when it does not come."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)
