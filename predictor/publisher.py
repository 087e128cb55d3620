"""Carries publications to the nodes: reads what stands there, decides, patches. The imperative side of publish.py.

The first patch after leadership began carries the resourceVersion too: our cache may not have the last word of the
leader before, and a number must not rise because of that.

A pass has two steps. `plan` judges one node; `write` sends what is due, the most urgent first, as many as the budget
has, and stops when leadership is gone or the API server serves nobody. What is left is judged anew in the next pass.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import msgspec

from predictor.budget import Budget
from predictor.clock import Clock, Instant
from predictor.conflicts import NO_CONFLICT, Conflict, ConflictRules, changed, given_way, watched
from predictor.metrics import Metrics
from predictor.publication_record import PublishedRecord, Trouble
from predictor.publish import (
    REFRESH_SHARE,
    Cause,
    Decision,
    Publication,
    PublishRules,
    Standing,
    decide_publication,
)
from predictor.published import Names, patch_body, standing_of, status_amount
from predictor.writers import Lister, find_writer
from slacktide.cluster import NODES
from slacktide.cluster.errors import (
    ClusterError,
    Forbidden,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from slacktide.cluster.retry import Backoff
from slacktide.explaining import Published
from slacktide.forecast import Amount, Forecast
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node
from slacktide.observe import get_logger, traces
from slacktide.rivals import system_of

log = get_logger("predictor.publisher")

_SETTLE_SECONDS: Final = 5.0
"""Our cache of nodes may lag our own patch by this much; only then is a difference somebody else's doing."""

_RETRY_SECONDS: Final = 1.0
_LONGEST_RETRY_SECONDS: Final = 30.0
_IN_A_ROW: Final = 3
"""So many nodes refused one after the other are the server's trouble, fewer may be those nodes' own."""

_WRITERS: Final = 8
"""Patches under way at a time: one after the other a busy API server takes some 40 a second, too few of 5,000."""

_NO_SERVICE: Final = (Unreachable, ServerError, TooManyRequests, Unauthorized, Forbidden)
"""Errors that are not about what was sent."""


class NodePatcher(Lister, Protocol):
    """The part of the API client that is used."""

    def patch(self, kind: Any, name: str, namespace: str | None, body: Any, subresource: str | None = ...) -> object:
        """Merge-patch one object."""
        ...


class WriteRules(PublishRules, Protocol):
    """The settings that decide what goes out, and how much of it at a time."""

    @property
    def writes_per_second(self) -> float:
        """Most patches a second."""
        ...

    @property
    def writes_burst(self) -> int:
        """Patches at once after a quiet time."""
        ...

    @property
    def conflict_changes(self) -> int:
        """Foreign changes that are too many."""
        ...

    @property
    def conflict_seconds(self) -> float:
        """Time without one after which we publish again."""
        ...


@dataclasses.dataclass(slots=True)
class _Known:
    uid: str
    standing: Standing | None
    conflict: Conflict = NO_CONFLICT
    fresh: bool = True
    """Nothing was written by us yet: what stands was read from the node."""
    refused: str = ""
    """Why the last patch failed; empty when it did not."""
    foreign: bool = False
    """Batch resources stand there without our annotation, and who put them there was not asked yet."""
    rival: str = ""
    """What is wrong where another agent looks after the node."""
    writer: str = ""
    """Field manager that we gave way to, empty where it is not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    node: Node
    known: _Known
    decision: Decision
    publication: Publication
    measured: float | None


class Publisher:
    """Publishes forecasts of nodes. One thread at a time; only the leader may call `plan` and `write`. `close` once.

    `warn(node, reason, message)` tells people about a node, as an event. `others` are systems whose writers of batch
    resources run in the cluster: what they wrote is not taken over, however long it stands still.
    """

    def __init__(
        self,
        client: NodePatcher,
        names: Names,
        clock: Clock,
        metrics: Metrics,
        warn: Callable[[Node, str, str], None],
        backoff: Backoff | None = None,
    ) -> None:
        self._client = client
        self._names = names
        self._clock = clock
        self._metrics = metrics
        self._warn = warn
        self._known: dict[str, _Known] = {}
        self._plans: list[_Plan] = []
        self._budget = Budget()
        self._backoff = backoff or Backoff(_RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        self._retry_at = 0.0
        self._away: str | None = None
        self._in_a_row = 0
        self._pool = ThreadPoolExecutor(_WRITERS, thread_name_prefix="publish")
        self._record = PublishedRecord()
        self.others: frozenset[str] = frozenset()

    def close(self) -> None:
        """End the threads that write; what is under way is waited for."""
        self._pool.shutdown()

    def begin(self) -> None:
        """Leadership begins: what stands is read from the nodes again, since another may have written."""
        self._known.clear()
        self._plans.clear()
        self._record.begin(self._clock.now().wall)

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._known.pop(name, None)
        self._record.forget(name)
        self._metrics.conflicts.set(len(self._stopped()))

    def standing(self, name: str) -> Amount | None:
        """What stands in the status of a node, None when nothing does or it was never looked at."""
        known = self._known.get(name)
        return None if known is None or known.standing is None else known.standing.published

    def told(self, name: str, *, leads: bool) -> Published:
        """The last changes of a node and what waits there, for `explain`; may be called from any thread."""
        known, now = self._known.get(name), self._clock.now().monotonic
        if known is None:
            return self._record.told(name, None, now, Trouble(), leads=leads)
        stopped = known.rival
        if not stopped and known.conflict.stopped is not None:
            stopped = f"{_named(known.writer) or 'somebody else'} writes the batch resources of this node"
        return self._record.told(name, known.standing, now, Trouble(known.refused, stopped), leads=leads)

    def problem(self) -> str | None:
        """Why something is not published that should be; None when all is."""
        stopped = self._stopped()
        if self._away is not None or not stopped:
            return self._away
        who = self._known[stopped[0]].writer
        return (
            f"{_named(who) or 'somebody else'} publishes batch resources on {len(stopped)} nodes (such as "
            f"{stopped[0]}): stopped there; switch it off, or use other names (resources.cpu, resources.memory)"
        )

    def plan(
        self,
        node: Node,
        forecast: Forecast,
        sold: Amount,
        rules: WriteRules,
        measured: float | None = None,
        *,
        rival: str = "",
    ) -> float:
        """Judge one node; what is due goes out with the next `write`.

        `measured` is the monotonic time of the sample that the forecast rests on. `rival` says that another agent looks
        after the node: readers are told once that it is closed, and its status is left to others. Returns the monotonic
        time before which the same node, forecast (but for its time) and sold amounts come to nothing: until then they
        need not be judged again.
        """
        now = self._clock.now()
        known = self._recall(node)
        self._beside(known, node, rival)
        if rival and not _says_open(known.standing, node):
            return math.inf
        if not self._undisputed(known, node, now, rules):
            return -math.inf
        decision = decide_publication(known.standing, forecast, sold, now, rules)
        if decision.publication is None:
            known.standing = decision.standing
            return _quiet_until(decision.standing, forecast, now)
        if rival:
            decision = _without_amounts(decision, known.standing)
        known.standing = decision.held
        if decision.publication is not None:
            self._plans.append(_Plan(node, known, decision, decision.publication, measured))
        return -math.inf

    @traces.traced("predictor.publish")
    def write(self, rules: WriteRules, is_leader: Callable[[], bool]) -> None:
        """Send what is due, the most urgent first."""
        # What failed last time goes last: a node that nobody can write must not keep the others from being written.
        plans = sorted(self._plans, key=lambda plan: (bool(plan.known.refused), plan.publication.urgency))
        self._plans, self._in_a_row = [], 0
        now = self._clock.now().monotonic
        self._budget = self._budget.refilled(now, rules.writes_per_second, rules.writes_burst)
        written = 0
        if now >= self._retry_at:
            for first in range(0, len(plans), _WRITERS):
                group = self._affordable(plans[first : first + _WRITERS])
                if not group or not is_leader():
                    break
                sent = self._send(group)
                written += sent
                if sent < len(group):
                    break
        self._metrics.waiting_writes.set(len(plans) - written)

    def _affordable(self, plans: Sequence[_Plan]) -> Sequence[_Plan]:
        """As many of them as the budget has; what is sent is spent, whatever comes of it."""
        for index in range(len(plans)):
            left = self._budget.spent()
            if left is None:
                return plans[:index]
            self._budget = left
        return plans

    def _send(self, plans: Sequence[_Plan]) -> int:
        """Patch nodes, side by side; how many before the API server was found to serve nobody.

        Only the patches themselves leave this thread: what came of them is noted here, in the order of urgency.
        """
        ours = [plan for plan in plans if not plan.known.foreign or self._taken_over(plan)]
        for index, (plan, error) in enumerate(zip(ours, self._pool.map(self._patch, ours), strict=True)):
            if isinstance(error, NotFound):
                self.forget(plan.node.metadata.name)
            elif error is not None:
                self._metrics.publish_failures.inc()
                if not self._not_written(plan, error):
                    return index
                continue
            else:
                self._done(plan)
            self._away, self._in_a_row = None, 0
            self._backoff.reset()
        return len(plans)

    def _patch(self, plan: _Plan) -> ClusterError | None:
        """Patch one node, in any thread; what went wrong."""
        body = patch_body(plan.node, plan.publication, self._names, with_version=plan.known.fresh)
        try:
            self._client.patch(NODES, plan.node.metadata.name, None, body, subresource="status")
        except ClusterError as error:
            return error
        return None

    def _taken_over(self, plan: _Plan) -> bool:
        """Whether what stands on a node that we never wrote to may be replaced: nobody else looks after it."""
        known, node = plan.known, plan.node
        try:
            writer = find_writer(self._client, node.metadata.name, self._names.batch)
        except ClusterError as error:
            self._metrics.publish_failures.inc()
            log.warning("who wrote batch resources cannot be asked", node=node.metadata.name, error=str(error))
            return False
        known.foreign, known.writer = False, writer
        if writer:
            now = self._clock.now().monotonic
            known.conflict = given_way(known.conflict, status_amount(node, self._names.batch), now)
            self._give_way(known, node, "wrote the batch resources of this node before us")
        return not writer

    def _not_written(self, plan: _Plan, error: ClusterError) -> bool:
        """Whether others are worth trying. Each trouble is said once, however often it is met."""
        name, known = plan.node.metadata.name, plan.known
        said, known.refused = known.refused, str(error)
        if not isinstance(error, _NO_SERVICE):
            if known.fresh:
                # What stands there is newer than what our cache had: it is read again.
                self._known.pop(name, None)
            if said != known.refused:
                log.warning("publication refused", node=name, cause=plan.publication.cause, error=str(error))
            return True
        if self._away is None and said != known.refused:
            log.warning("publishing failed", node=name, error=str(error))
        self._away = f"publishing failed: {error}"
        self._in_a_row += 1
        if self._in_a_row < _IN_A_ROW and not isinstance(error, Unreachable):
            return True
        self._retry_at = self._clock.now().monotonic + self._backoff.next()
        return False

    def _done(self, plan: _Plan) -> None:
        publication, now = plan.publication, self._clock.now()
        plan.known.standing = plan.decision.standing
        plan.known.fresh = False
        plan.known.refused = ""
        self._metrics.publications.labels(publication.cause).inc()
        if publication.cause is Cause.REFRESH:
            return
        self._record.add(plan.node.metadata.name, publication)
        if plan.measured is not None and not publication.forecast.closed:
            self._metrics.publish_lag.labels(publication.cause).observe(max(0.0, now.monotonic - plan.measured))
        log.info(
            "published",
            node=plan.node.metadata.name,
            cause=publication.cause,
            cpu_millis=publication.published.cpu_millis,
            memory_bytes=publication.published.memory_bytes,
            closed=publication.forecast.closed,
        )

    def _recall(self, node: Node) -> _Known:
        known = self._known.get(node.metadata.name)
        if known is None or known.uid != node.metadata.uid:
            known = _Known(node.metadata.uid, standing_of(node, self._names))
            known.foreign = known.standing is not None and FORECAST_ANNOTATION not in node.metadata.annotations
            self._known[node.metadata.name] = known
        return known

    def _undisputed(self, known: _Known, node: Node, now: Instant, rules: WriteRules) -> bool:
        """Whether we publish on the node; a foreign change makes the next publication due at once."""
        limits = ConflictRules(rules.conflict_changes, rules.conflict_seconds)
        found = status_amount(node, self._names.batch)
        if known.conflict.stopped is not None:
            if system_of(known.writer) in self.others and found != Amount():
                # What wrote that still runs, and will write again.
                known.conflict = given_way(known.conflict, found, now.monotonic)
                return False
            known.conflict = watched(known.conflict, found, now.monotonic, limits)
            if known.conflict.stopped is None:
                self._resume(known, node)
            return known.conflict.stopped is None
        standing = known.standing
        if standing is None or standing.written is None or now.monotonic - standing.written < _SETTLE_SECONDS:
            return True
        if found == standing.published and FORECAST_ANNOTATION in node.metadata.annotations:
            return True
        known.writer = self._ask_writer(node)
        known.conflict = changed(known.conflict, found, now.monotonic, limits)
        if system_of(known.writer):
            known.conflict = given_way(known.conflict, found, now.monotonic)
        known.standing = dataclasses.replace(standing, written=None)
        self._metrics.foreign_changes.inc()
        log.warning("node was changed by somebody else", node=node.metadata.name, found=str(found), by=known.writer)
        if known.conflict.stopped is not None:
            times = len(known.conflict.times)
            self._give_way(known, node, f"changed the batch resources of this node {times} times of late")
        return known.conflict.stopped is None

    def _beside(self, known: _Known, node: Node, rival: str) -> None:
        """Tell people, once, that another agent came to the node or went."""
        if rival == known.rival:
            return
        known.rival = rival
        if rival:
            log.error("publishing stopped on a node", node=node.metadata.name, reason=rival)
            self._warn(node, "AnotherAgent", rival)
        else:
            log.info("publishing again on a node where another agent was", node=node.metadata.name)

    def _ask_writer(self, node: Node) -> str:
        try:
            return find_writer(self._client, node.metadata.name, self._names.batch)
        except ClusterError:
            # Who it was would only make the message better.
            return ""

    def _give_way(self, known: _Known, node: Node, what: str) -> None:
        message = (
            f"{_named(known.writer) or 'somebody else'} {what}: nothing is published here until it is switched off "
            "and they stand still; or use other names (resources.cpu, resources.memory)"
        )
        self._metrics.conflicts.set(len(self._stopped()))
        log.error("publishing stopped on a node", node=node.metadata.name, reason=message)
        self._warn(node, "ForecastConflict", message)

    def _resume(self, known: _Known, node: Node) -> None:
        known.standing, known.fresh, known.foreign, known.writer = standing_of(node, self._names), True, False, ""
        self._metrics.conflicts.set(len(self._stopped()))
        log.info("publishing again on a node that stood still", node=node.metadata.name)

    def _stopped(self) -> list[str]:
        return [name for name, known in self._known.items() if known.conflict.stopped is not None]


def _named(manager: str) -> str:
    """A field manager in words; empty for one that is not known."""
    system = system_of(manager)
    return f"{manager} ({system})" if system else manager


def _says_open(standing: Standing | None, node: Node) -> bool:
    """Whether our annotation on `node` tells readers that they may sell there."""
    return standing is not None and not standing.closed and FORECAST_ANNOTATION in node.metadata.annotations


def _without_amounts(decision: Decision, before: Standing | None) -> Decision:
    """The annotation alone: the amounts of the status are left as they are."""
    publication, standing = decision.publication, decision.standing
    if publication is None or standing is None or before is None:
        return decision
    forecast = msgspec.structs.replace(publication.forecast, mid=Amount())
    return dataclasses.replace(
        decision,
        publication=dataclasses.replace(publication, published=Amount(), forecast=forecast),
        standing=dataclasses.replace(standing, published=before.published),
    )


def _quiet_until(standing: Standing | None, forecast: Forecast, now: Instant) -> float:
    """When time alone makes something due on a node where nothing is now."""
    if standing is None:
        return math.inf
    waits = standing.cpu_rise is not None or standing.memory_rise is not None
    if waits or standing.written is None or now.monotonic - standing.written < _SETTLE_SECONDS:
        return -math.inf
    return standing.written + forecast.ttl_seconds / REFRESH_SHARE
