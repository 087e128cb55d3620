"""Asks components for their records, for `explain`. Who is away costs its own part of an answer, and is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from cli.asking import Components, Told, answered, said
from cli.cycles import Scheduling
from cli.evictionexplained import EvictionsExplained, NodeEvictions
from cli.explained import Explanation, Line, explain
from cli.forecasts import Standing
from cli.happenings import EventLine, line
from cli.podexplained import PodExplanation, SchedulersRecord, explain_pod
from slacktide.cluster import EVENTS, PODS
from slacktide.cluster.errors import ClusterError, NotFound
from slacktide.explaining import (
    EVICTIONS_ROUTE,
    LADDER_ROUTE,
    POD_ROUTE,
    PUBLISHED_ROUTE,
    Evictions,
    HeldPod,
    Ladder,
    Published,
)
from slacktide.forecast import Amount, Forecast
from slacktide.objects import Pod, is_terminal, pod_key

if TYPE_CHECKING:
    from cli.app import App
    from slacktide.cluster import Client
    from slacktide.objects import Event

SCHEDULING_ROUTE: Final = "/debug/scheduling"
"""Where the scheduler shows its cycles: scheduler_plugins.host.DEBUG_ROUTE."""

MOST_NODES: Final = 20
"""Agents that one command asks when nobody says which."""

_FILE_LINES: Final = 200
_GOING: Final = ("SlacktideEvict", "SlacktideKill", "SlacktideFrozen", "SlacktideThawed")


class NodeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What programs get of `explain node`: as `Explanation`, and what agent and predictor have on record.

    Where there is no forecast, or it cannot be read now, `reason` says why, and what would be of it is None or empty.
    """

    node: str
    reason: str
    freshness: str | None
    age_seconds: float | None
    closed: str
    lines: list[Line]
    left: Amount | None
    remarks: list[str]
    forecast: Forecast | None
    published: Published | None
    ladder: Ladder | None
    silent: list[str]


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `explain node`. What could not be had is None, and `silent` says why.

    `sums` explains the forecast; where there is none, `reason` says why.
    """

    node: str
    reason: str
    sums: Explanation | None
    published: Published | None
    ladder: Ladder | None
    silent: list[str]

    def document(self) -> NodeDocument:
        """For programs: the sum at the top level, and the rest beside it."""
        sums = self.sums
        return NodeDocument(
            node=self.node,
            reason=self.reason if sums is None else "",
            freshness=sums.freshness if sums else None,
            age_seconds=sums.age_seconds if sums else None,
            closed=sums.closed if sums else "",
            lines=sums.lines if sums else [],
            left=sums.left if sums else None,
            remarks=sums.remarks if sums else [],
            forecast=sums.forecast if sums else None,
            published=self.published,
            ladder=self.ladder,
            silent=self.silent,
        )


def node_answer(asked: Components, found: Standing, now: float) -> NodeAnswer:
    """Explain what stands on a node at `now`, seconds since the epoch."""
    sums = None
    if found.forecast is not None:
        sums = explain(found.node, found.forecast, found.sold, found.published, now)
    published, ladder = published_of(asked, found.node), ladder_of(asked, found.node)
    return NodeAnswer(
        node=found.node,
        reason=f"nothing is sold here: {found.reason}",
        sums=sums,
        published=published.value,
        ladder=ladder.value,
        silent=[one.problem for one in (published, ladder) if one.problem],
    )


def answer_without_api(asked: Components, error: ClusterError) -> NodeAnswer:
    """What this machine's daemons say of its node while the API server does not answer."""
    ladder = ladder_of(asked, "")
    # Only the agent can say now what this node is called.
    published = None if ladder.value is None else published_of(asked, ladder.value.node)
    problems = [one.problem for one in (published, ladder) if one is not None and one.problem]
    return NodeAnswer(
        node="this machine" if ladder.value is None else ladder.value.node,
        reason="its sum is on the node object, which cannot be read now",
        sums=None,
        published=None if published is None else published.value,
        ladder=ladder.value,
        silent=[f"the API server does not answer: {said(error)}", *problems],
    )


def pod_answer(app: App, asked: Components, pod: Pod) -> PodExplanation:
    """Explain a pod by the records of the schedulers, and of the agent of its node."""
    node = pod.spec.node_name
    record = kept_of(asked, pod.metadata.uid)
    silent = [] if record.cycle is not None else list(record.problems)
    if not node:
        return explain_pod(pod, record, app.now(), silent=silent)
    held = None if is_terminal(pod) else held_of(asked, node, pod.metadata.uid)
    told = evictions_of(app, asked, node, pod_key(pod))
    silent += [one.problem for one in (held, told) if one is not None and one.problem]
    decisions = told.evictions.decisions if told.evictions else ()
    return explain_pod(
        pod,
        record,
        app.now(),
        held=None if held is None else held.value,
        decisions=[one for one in decisions if one.uid == pod.metadata.uid],
        silent=list(dict.fromkeys(silent)),
    )


def evictions_answer(app: App, client: Client, asked: Components, key: str, node: str | None) -> EvictionsExplained:
    """Explain who had to go: the pod `key` (NAMESPACE/NAME), or anybody; by the agent of `node`, or whoever may know.

    Where no agent's record can be had, events stand in.
    """
    silent: list[str] = []
    names = [node or ""] if node is not None or not app.in_cluster else _nodes_of(client, key, silent)
    nodes = [evictions_of(app, asked, name, key) for name in names[:MOST_NODES]]
    silent += [one.problem for one in nodes if one.problem]
    events: list[EventLine] = []
    if not any(one.evictions for one in nodes):
        try:
            events = [line(event) for event in _going(client, key)]
        except ClusterError as error:
            silent.append(f"events cannot be read: {said(error)}")
        if not events:
            silent.append("no event tells of it; the API server forgets them after an hour: name the node with --node")
    return EvictionsExplained(pod=key, nodes=nodes, events=events, silent=list(dict.fromkeys(silent)))


def _nodes_of(client: Client, key: str, silent: list[str]) -> list[str]:
    """Nodes of a cluster to ask: where the pod is, and those whose agents told events about it."""
    found: list[str] = []
    try:
        if key:
            namespace, _, name = key.partition("/")
            found.append(client.get(PODS, name, namespace).spec.node_name)
    except NotFound:
        pass
    except ClusterError as error:
        silent.append(f"where the pod is cannot be looked up: {said(error)}")
    try:
        found += [event.source.host for event in _going(client, key)]
    except ClusterError as error:
        silent.append(f"events cannot be read: {said(error)}")
    return [name for name in dict.fromkeys(found) if name]


def ladder_of(asked: Components, node: str) -> Told[Ladder]:
    """Of the agent of a node."""
    return answered(asked.ask("agent", LADDER_ROUTE, Ladder, node=node))


def held_of(asked: Components, node: str, uid: str) -> Told[HeldPod]:
    """What the agent of a node does with a pod."""
    return answered(asked.ask("agent", POD_ROUTE, HeldPod, node=node, query={"uid": uid}))


def published_of(asked: Components, node: str) -> Told[Published]:
    """Of the predictor that leads: replicas that do not have nothing to tell."""
    told = asked.ask("predictor", PUBLISHED_ROUTE, Published, query={"node": node})
    leads = [one for one in told if one.value is not None and one.value.since is not None]
    if leads:
        return leads[0]
    if any(one.value is not None for one in told):
        silent = [one.problem for one in told if one.problem]
        return Told(who=told[0].who, value=None, problem="; ".join(["no predictor that answers leads", *silent]))
    return answered(told)


def kept_of(asked: Components, uid: str) -> SchedulersRecord:
    """What schedulers keep of a pod; of all of them: the one that leads now need not be the one that placed it."""
    told = asked.ask("scheduler", SCHEDULING_ROUTE, Scheduling, query={"uid": uid})
    found = [(cycle, one) for one in told if one.value is not None and (cycle := one.value.of(uid)) is not None]
    problems = tuple(one.problem for one in told if one.problem)
    heard = [one for one in told if one.value is not None]
    if found:
        cycle, who = max(found, key=lambda pair: pair[0].at)
        return SchedulersRecord(cycle=cycle, who=who.who, since=_since(who), heard=True, problems=problems)
    since = min((moment for one in heard if (moment := _since(one)) is not None), default=None)
    return SchedulersRecord(cycle=None, who=told[0].who, since=since, heard=bool(heard), problems=problems)


def _since(told: Told[Scheduling]) -> float | None:
    return None if told.value is None else told.value.since


def evictions_of(app: App, asked: Components, node: str, pod: str) -> NodeEvictions:
    """Decisions of one node about `pod` (NAMESPACE/NAME, or all): from its agent, or on this machine from its file."""
    query = {"pod": pod} if pod else {}
    told = answered(asked.ask("agent", EVICTIONS_ROUTE, Evictions, node=node, query=query))
    if told.value is not None:
        return NodeEvictions(node=told.value.node, source=told.who, evictions=told.value)
    from_file = None if app.in_cluster else _from_file(app, pod)
    if from_file is None:
        return NodeEvictions(node=node, source=told.who, evictions=None, problem=told.problem)
    return NodeEvictions(node=node, source="the agent's file", evictions=from_file, problem=told.problem)


def _from_file(app: App, pod: str) -> Evictions | None:
    from agent.act.audit import decisions, read_tail

    try:
        tail = read_tail(app.state().folder("agent"), _FILE_LINES, pod)
    except OSError:
        return None
    return Evictions(node="", decisions=decisions(tail), since=tail.since, unreadable=tail.skipped)


def _going(client: Client, pod: str) -> Sequence[Event]:
    namespace, _, name = pod.partition("/")
    selector = f"involvedObject.name={name}" if name else ""
    listed = client.list(EVENTS, namespace or None, field_selector=selector).items
    ours = [event for event in listed if event.reason.startswith(_GOING) and name in ("", event.involved_object.name)]
    return sorted(ours, key=lambda event: event.last_timestamp or event.first_timestamp or "", reverse=True)
