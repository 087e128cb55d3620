"""What `top` and the live view of `up` show, gathered from supervisor, agent and API; any of them may be silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from cli import podview
from slacktide import forecast
from slacktide.cluster import EVENTS, NODES, PODS
from slacktide.cluster.errors import ClusterError
from slacktide.errors import QuantityError
from slacktide.forecast import Amount, Forecast
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Event, Node, Pod, is_terminal
from slacktide.resources import batch_request
from slacktide.settings import ResourceNames
from slacktide.status import AgentStatus
from slacktide.tier import Tier, tier_of
from standalone.state import StateDir
from standalone.supervisor import SupervisorReport, read_report

if TYPE_CHECKING:
    from cli.app import App
    from slacktide.cluster import Client


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast of a node as it stands now. `left` is what may still be sold; amounts may be unknown."""

    freshness: str
    age_seconds: float
    closed: str
    peak: Amount
    reclaimable: Amount
    sold: Amount
    left: Amount
    terms: forecast.Terms


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """One event. `at` is RFC 3339 text."""

    at: str
    type: str
    reason: str
    about: str
    message: str
    count: int


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment. What could not be asked is None, and said in `silent`."""

    at: float
    supervisor: SupervisorReport | None
    agent: AgentStatus | None
    node: str | None
    room: Room | None
    pods: list[podview.PodLine] | None
    events: list[Happening]
    silent: list[str]


def picture(app: App, state: StateDir, client: Client, now: float, *, events: int = 0) -> Picture:
    """Ask everybody once."""
    silent: list[str] = []
    agent = app.agent_status(state)
    if agent is None:
        silent.append("the agent does not answer: usage and throttling are not known")
    supervisor = read_report(state)
    pods: list[Pod] | None = None
    node: Node | None = None
    happened: list[Happening] = []
    try:
        pods = list(client.list(PODS).items)
        node = _node(list(client.list(NODES).items), supervisor.node if supervisor else "")
        happened = latest(list(client.list(EVENTS).items), events) if events else []
    except ClusterError as error:
        silent.append(f"the API server does not answer: {error}")
    used = podview.by_uid(agent.pods if agent else [])
    lines = None if pods is None else [podview.line(pod, used.get(pod.metadata.uid), now) for pod in pods]
    room = None if node is None or pods is None else room_of(node, pods, now, silent)
    return Picture(
        at=now,
        supervisor=supervisor,
        agent=agent,
        node=node.metadata.name if node else None,
        room=room,
        pods=None if lines is None else sorted(lines, key=_busiest),
        events=happened,
        silent=silent,
    )


def room_of(node: Node, pods: list[Pod], now: float, silent: list[str]) -> Room | None:
    """Room on a node from its annotation and the pods bound to it; None where nothing was published yet."""
    text = node.metadata.annotations.get(FORECAST_ANNOTATION)
    if text is None:
        silent.append("no forecast was published yet")
        return None
    try:
        published = forecast.decode(text)
        sold = sold_on(node.metadata.name, pods)
    except (forecast.ForecastError, QuantityError) as error:
        silent.append(str(error))
        return None
    return _room(published, sold, now)


def _room(published: Forecast, sold: Amount, now: float) -> Room:
    return Room(
        freshness=forecast.freshness(published, now).value,
        age_seconds=now - published.at,
        closed=published.closed,
        peak=published.peak,
        reclaimable=published.reclaimable,
        sold=sold,
        left=forecast.room(published, sold, now),
        terms=published.terms,
    )


def sold_on(node: str, pods: list[Pod]) -> Amount:
    """Sum of the batch requests of pods that are bound to the node and have not ended. Raises QuantityError."""
    amounts = [
        batch_request(pod, ResourceNames())
        for pod in pods
        if pod.spec.node_name == node and not is_terminal(pod) and tier_of(pod) is Tier.BE
    ]
    return Amount(
        cpu_millis=sum(amount.cpu_millis or 0 for amount in amounts),
        memory_bytes=sum(amount.memory_bytes or 0 for amount in amounts),
    )


def latest(events: list[Event], count: int) -> list[Happening]:
    """The last events, newest first."""
    newest = sorted(events, key=_when, reverse=True)[:count]
    return [
        Happening(
            at=_when(event),
            type=event.type,
            reason=event.reason,
            about=event.involved_object.name,
            message=event.message,
            count=max(1, event.count),
        )
        for event in newest
    ]


class Watcher:
    """Takes a picture about once a second in a thread of its own, so that a slow answer delays nobody."""

    def __init__(self, app: App, state: StateDir, client: Client, *, events: int, seconds: float = 1.0) -> None:
        self._ask: Callable[[], Picture] = lambda: picture(app, state, client, time.time(), events=events)
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self.last: Picture | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End soon."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds if self.last else 0.0):
            self.last = self._ask()


def _node(nodes: list[Node], name: str) -> Node | None:
    named = [node for node in nodes if node.metadata.name == name]
    return next(iter(named or nodes), None)


def _when(event: Event) -> str:
    return event.last_timestamp or event.first_timestamp or event.metadata.creation_timestamp or ""


def _busiest(item: podview.PodLine) -> tuple[bool, int, str]:
    """Running pods first, then by CPU."""
    return (item.status != "Running", -(item.cpu_used_millis or 0), item.name)
