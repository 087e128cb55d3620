"""The forecast pass: memory and pods in, forecasts on the board and on the nodes out, every few seconds.

A thread of its own. It never waits for a stream or for the disk; a slow API server delays publishing only.

A node of which nothing changed costs a pass next to nothing: what was found stands until something that it rests on is
another, or until time alone may change it (silence, a newcomer's age, a rise that waits, a refresh that falls due).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import numpy as np

from predictor.assess import AssessRules, Knowledge, Peak, assess
from predictor.board import Board, Entry
from predictor.bound import UNKNOWN, Bound, BoundPods, pinned
from predictor.clock import Clock, Instant
from predictor.crowds import Crowds, Moment
from predictor.fleet import Fleet, FleetView
from predictor.metrics import Metrics
from predictor.models.base import Floats, History
from predictor.newcomers import NOBODY
from predictor.node_metrics import NodeFigures
from predictor.peaks import Ask, Look, PeakRules, Peaks, Resource
from predictor.pools import NodeBounds, PoolBounds
from predictor.publisher import Publisher
from predictor.samples import Sample
from predictor.settings import PredictorSettings
from predictor.silence import HEARD, Silence, SilenceRules, silence, unchanged_seconds
from slacktide.errors import QuantityError
from slacktide.forecast import Amount, Forecast
from slacktide.objects import Node, Pod
from slacktide.observe import get_logger, traces
from slacktide.resources import node_allocatable, node_capacity

log = get_logger("predictor.forecasting")

_STOP_SECONDS: Final = 5.0
_REST_SHARE: Final = 7.0
"""Rest after a pass, as a multiple of what it took of a core."""

_MARGIN_SECONDS: Final = 0.001
"""Looked at again so much before time may change anything: sums of times are rounded."""

_NO_PODS: Final = Bound()
_NO_AMOUNT: Final = Amount()


class Objects(Protocol):
    """Cluster objects as the informers have them."""

    @property
    def synced(self) -> bool:
        """Whether nodes and pods were both listed."""
        ...

    def nodes(self) -> Iterable[Node]:
        """All nodes."""
        ...

    def pods(self) -> Iterable[Pod]:
        """All pods that are bound to a node."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass goes by. `bound` is None while pods are not known."""

    view: FleetView
    place: Mapping[str, int]
    peaks: Mapping[Resource, list[Peak]]
    nodes: Mapping[str, Node]
    bound: Mapping[str, Bound] | None
    now: Instant
    moment: Moment
    settings: PredictorSettings


Grounds = tuple[Sample | None, float | None, Sequence[str] | None, Peak | None, Peak | None, Node | None, Bound | None]
"""All that is known of a node, but for the time: newest sample, when it was heard of, the pods that it names, peaks of
CPU and memory, the node object, and its pods. What an agent says of zones and of closing changes with the second."""


@dataclasses.dataclass(slots=True)
class _Judged:
    """A node as a pass judged it; `until` is the monotonic time before which the same grounds lead to the same."""

    grounds: Grounds
    until: float
    known: Knowledge
    bounds: NodeBounds
    settings: PredictorSettings
    forecast: Forecast
    published: Amount | None = None


class Forecaster:
    """Runs the pass. `wake` asks for one now."""

    def __init__(
        self,
        fleet: Fleet,
        peaks: Peaks,
        board: Board,
        objects: Objects,
        publisher: Publisher,
        is_leader: Callable[[], bool],
        retire: Callable[[str], None],
        settings: PredictorSettings,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """`retire` is told the name of a node that was created anew: what was measured before was another machine."""
        self._fleet = fleet
        self._peaks = peaks
        self._board = board
        self._objects = objects
        self._publisher = publisher
        self._is_leader = is_leader
        self._retire = retire
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._bound = BoundPods(settings.resources)
        self._crowds = Crowds(fleet)
        self._bounds = PoolBounds()
        self._started = clock.now().monotonic
        self._led = False
        self._problem: str | None = "no forecast pass has run yet"
        self._uids: dict[str, str] = {}
        self._amounts: dict[str, tuple[Node, Amount, Amount]] = {}
        self._judged: dict[str, _Judged] = {}
        self._basis: tuple[PredictorSettings, bool] | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forecaster", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the pass that runs."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)
        self._publisher.close()

    def wake(self) -> None:
        """Run a pass now instead of at its time."""
        self._wake.set()

    def reload(self, settings: PredictorSettings) -> None:
        """Use other settings from the next pass on."""
        self._settings = settings

    def problem(self) -> str | None:
        """What was wrong with the last pass, or is not published; None when nothing is wrong."""
        return self._problem or self._publisher.problem()

    def ended(self) -> str | None:
        """Why only a restart helps; None while the thread lives."""
        return None if self._thread.is_alive() or self._thread.ident is None else "the forecast thread has ended"

    def _run(self) -> None:
        while not self._stopping.is_set():
            began, worked = self._clock.now().monotonic, time.thread_time()
            # The one broad handler: the thread must outlive whatever went wrong in a turn.
            try:
                self.turn()
            except Exception as error:
                log.exception("forecast pass failed")
                self._problem = f"forecast pass failed: {type(error).__name__}: {error}"
            period = self._settings.publish_seconds
            # Thousands of agents that come back wake us thousands of times: an eighth of a core is ours, no more.
            self._stopping.wait(min(_REST_SHARE * (time.thread_time() - worked), period))
            self._wake.wait(max(0.0, period - (self._clock.now().monotonic - began)))
            self._wake.clear()

    @traces.traced("predictor.pass")
    def turn(self) -> None:
        """One pass over all nodes."""
        with self._metrics.pass_seconds.time():
            now = self._clock.now()
            settings = self._settings
            synced = self._objects.synced
            nodes = {node.metadata.name: node for node in self._objects.nodes()} if synced else {}
            bound = self._bind(now) if synced else None
            if synced:
                self._drop_gone(nodes, now)
            view = self._fleet.view(now.wall)
            if synced:
                self._drop_strangers(view, nodes, now, settings)
            peaks = self._forecast(view, bound, now, settings)
            place = {name: index for index, name in enumerate(view.names)}
            self._problem = None
            turn = _Pass(view, place, peaks, nodes, bound, now, self._moment(now), settings)
            self._settle(turn, self._lead() and synced)

    def _bind(self, now: Instant) -> Mapping[str, Bound]:
        bound, unreadable = self._bound.by_node(self._objects.pods())
        self._metrics.skipped_pods.inc(unreadable)
        self._publisher.others = self._bound.writers
        self._crowds.follow(bound, self._moment(now))
        return bound

    def _moment(self, now: Instant) -> Moment:
        return Moment(now.wall, self._settings.young_seconds, self._peaks.made_at())

    def _lead(self) -> bool:
        leads = self._is_leader()
        if leads and not self._led:
            self._publisher.begin()
        self._led = leads
        self._metrics.leader.set(1 if leads else 0)
        return leads

    def _drop_gone(self, nodes: Mapping[str, Node], now: Instant) -> None:
        uids = {name: node.metadata.uid for name, node in nodes.items()}
        if uids == self._uids:
            return
        for name in self._uids.keys() - uids.keys():
            self._fleet.forget(name)
            self._peaks.forget(name, now.wall)
            self._publisher.forget(name)
            self._drop(name)
        for name, uid in uids.items():
            if self._uids.get(name, uid) != uid:
                self._fleet.forget(name)
                self._peaks.forget(name, now.wall)
                self._retire(name)
        self._uids = uids

    def _drop_strangers(
        self, view: FleetView, nodes: Mapping[str, Node], now: Instant, settings: PredictorSettings
    ) -> None:
        """Nodes that only the history knows, once agents had the time to speak: they were gone before the start."""
        if now.monotonic - self._started < settings.stale_seconds:
            return
        for name, latest in zip(view.names, view.latest, strict=True):
            if latest is None and name not in nodes:
                self._fleet.forget(name)
                self._drop(name)

    def _drop(self, name: str) -> None:
        """Nobody knows of the node any more."""
        self._board.remove(name)
        self._metrics.nodes.forget(name)
        self._amounts.pop(name, None)
        self._judged.pop(name, None)

    def _forecast(
        self, view: FleetView, bound: Mapping[str, Bound] | None, now: Instant, settings: PredictorSettings
    ) -> Mapping[Resource, list[Peak]]:
        rules = _peak_rules(settings)

        def ask() -> Ask:
            if bound is not None:
                self._fleet.set_groups({pod.uid: pod.group for one in bound.values() for pod in one.pods if pod.group})
            cpu, memory = (_requested(view.names, bound, field) for field in ("cpu_millis", "memory_bytes"))
            return Ask(
                view.names,
                dataclasses.replace(view.cpu, requested=cpu),
                dataclasses.replace(view.memory, requested=memory),
                view.settled,
            )

        self._peaks.offer(ask, view.cpu.at, now, rules)
        usage: dict[Resource, History] = {"cpu": view.cpu, "memory": view.memory}
        opened: dict[Resource, Floats] = {"cpu": view.open_cpu, "memory": view.open_memory}
        return self._peaks.of(Look(view.names, usage, opened), now, rules)

    def _settle(self, turn: _Pass, publishing: bool) -> None:
        if self._basis is None or self._basis[0] is not turn.settings or self._basis[1] is not publishing:
            self._basis = turn.settings, publishing
            for judged in self._judged.values():
                judged.until = -math.inf
        anew: list[str] = []
        now, found = turn.now.monotonic, self._judged
        if len(found) > len(turn.place.keys() | turn.nodes.keys()):
            for name in found.keys() - turn.place.keys() - turn.nodes.keys():
                self._drop(name)
        for name, grounds in _grounds(turn):
            before = found.get(name)
            if before is None or now >= before.until or before.grounds != grounds:
                found[name] = self._judge(turn, name, grounds, before, publishing)
                anew.append(name)
        if publishing:
            self._publisher.write(turn.settings, self._is_leader)
        self._show(turn, anew, publishing)

    def _show(self, turn: _Pass, anew: list[str], publishing: bool) -> None:
        """Tell what was judged anew, and that all the rest is of now as well."""
        at, horizon = turn.now.wall, turn.settings.forecast.horizon_seconds
        entries = []
        for name in anew:
            judged = self._judged[name]
            judged.published = self._publisher.standing(name) if publishing else None
            self._metrics.nodes.tell(name, _figures(judged))
            forecast = msgspec.structs.replace(judged.forecast, at=at)
            entries.append(Entry(name, forecast, judged.published, horizon))
        self._board.put(*entries, at=at)
        self._metrics.nodes.passed(at)

    def _judge(self, turn: _Pass, name: str, grounds: Grounds, before: _Judged | None, publishing: bool) -> _Judged:
        settings, node = turn.settings, turn.nodes.get(name)
        known, until = self._know(turn, name)
        bounds = self._bounds.of(node.metadata.labels if node else {}, settings)
        if before is not None and before.settings is settings and before.bounds is bounds and before.known == known:
            forecast = before.forecast
        else:
            forecast = assess(known, turn.now.wall, _assess_rules(settings), bounds)
        judged = _Judged(grounds, until, known, bounds, settings, forecast)
        # Right after a start an agent may not have had the time to speak: what stands is left as it is, and
        # readers age it by its ttl.
        if known.latest is None and turn.now.monotonic - self._started < settings.stale_seconds:
            judged.until = -math.inf
        elif publishing and node is not None:
            index = turn.place.get(name)
            heard = None if index is None else turn.view.heard[index]
            now = msgspec.structs.replace(forecast, at=turn.now.wall)
            asked = UNKNOWN if turn.bound is None else turn.bound.get(name, _NO_PODS)
            quiet = self._publisher.plan(node, now, known.sold, settings, heard, rival=asked.rival)
            judged.until = min(until, quiet - _MARGIN_SECONDS)
        return judged

    def _know(self, turn: _Pass, name: str) -> tuple[Knowledge, float]:
        """What is known of a node, and the monotonic time before which that holds unless something else changes."""
        index, node, view = turn.place.get(name), turn.nodes.get(name), turn.view
        asked = UNKNOWN if turn.bound is None else turn.bound.get(name, _NO_PODS)
        capacity, allocatable = self._sizes(node)
        if index is None:
            known = Knowledge(
                latest=None, requested=asked.requested, capacity=capacity, allocatable=allocatable, sold=asked.sold
            )
            return known, math.inf
        cpu, memory = turn.peaks["cpu"][index], turn.peaks["memory"][index]
        quiet, unchanged_seconds = _silence(view, index, turn.now, turn.settings)
        newcomers = self._crowds.newcomers(name, asked, view.listed[index], _whole(cpu, memory), turn.moment)
        known = Knowledge(
            latest=view.latest[index],
            silence=quiet,
            cpu=cpu,
            memory=memory,
            requested=asked.requested,
            newcomers=newcomers,
            capacity=capacity,
            allocatable=allocatable,
            sold=asked.sold,
            closed=_closed(view.closed[index], node, allocatable, asked.rival),
            zones=view.zones[index],
            mid_sold=asked.mid,
            pinned=pinned(asked.pods) if view.zones[index] else {},
        )
        # Newcomers age, and what their groups are known to need changes behind their backs.
        calm = newcomers is NOBODY
        return known, turn.now.monotonic + unchanged_seconds - _MARGIN_SECONDS if calm else -math.inf

    def _sizes(self, node: Node | None) -> tuple[Amount, Amount]:
        """`_amounts`, read once for each version of a node."""
        if node is None:
            return _NO_AMOUNT, _NO_AMOUNT
        known = self._amounts.get(node.metadata.name)
        if known is None or known[0] is not node:
            known = self._amounts[node.metadata.name] = (node, *_amounts(node))
        return known[1], known[2]


def _figures(judged: _Judged) -> NodeFigures:
    forecast, latest = judged.forecast, judged.known.latest
    return NodeFigures(
        forecast.reclaimable,
        judged.published or _NO_AMOUNT,
        forecast.peak,
        forecast.terms.sold,
        forecast.terms.requested,
        forecast.terms.capacity,
        bool(forecast.closed),
        None if latest is None else latest.end_millis / 1000,
    )


def _grounds(turn: _Pass) -> Iterator[tuple[str, Grounds]]:
    """Names and grounds of all nodes. Made in C, as nearly all of it turns out to be what it was."""
    view, nodes, bound = turn.view, turn.nodes, turn.bound
    unknown, nobody = itertools.repeat(UNKNOWN), itertools.repeat(_NO_PODS)
    pods: Iterable[Bound] = unknown if bound is None else map(bound.get, view.names, nobody)
    yield from zip(
        view.names,
        zip(
            view.latest,
            view.heard,
            view.listed,
            turn.peaks["cpu"],
            turn.peaks["memory"],
            map(nodes.get, view.names),
            pods,
            strict=False,
        ),
        strict=True,
    )
    for name, node in nodes.items():
        if name not in turn.place:
            asked = UNKNOWN if bound is None else bound.get(name, _NO_PODS)
            yield name, (None, None, None, None, None, node, asked)


def _whole(cpu: Peak, memory: Peak) -> Amount:
    """Two peaks in whole units; unknown where they are."""
    amounts = (
        None if peak.amount is None or not math.isfinite(peak.amount) else math.ceil(peak.amount)
        for peak in (cpu, memory)
    )
    return Amount(cpu_millis=next(amounts), memory_bytes=next(amounts))


def _silence(view: FleetView, index: int, now: Instant, settings: PredictorSettings) -> tuple[Silence, float]:
    """How silent a node is, and the seconds for which it stays so if nothing is heard."""
    sample, measured, heard = view.latest[index], view.measured[index], view.heard[index]
    if sample is None or measured is None or heard is None:
        return HEARD, math.inf
    hold = max(settings.stale_seconds, settings.stale_windows * sample.window_millis / 1000)
    rules, ages = SilenceRules(hold, settings.expire_seconds), (now.monotonic - heard, now.monotonic - measured)
    return silence(*ages, rules), unchanged_seconds(*ages, rules)


def _requested(names: Iterable[str], bound: Mapping[str, Bound] | None, field: str) -> Floats:
    """(nodes,) plain requests of the LS pods; NaN where they are not known."""
    asked = [None if bound is None else getattr(bound.get(name, _NO_PODS).requested, field) for name in names]
    return np.array([np.nan if value is None else value for value in asked], dtype=np.float64)


def _peak_rules(settings: PredictorSettings) -> PeakRules:
    forecast = settings.forecast
    return PeakRules(
        grace_seconds=forecast.grace_seconds,
        late_slots=forecast.late_slots,
        cold_seconds=forecast.cold_seconds,
        save_seconds=forecast.save_seconds,
        risk=forecast.risk,
        memory_risk=forecast.memory_risk,
    )


def _assess_rules(settings: PredictorSettings) -> AssessRules:
    return AssessRules(
        ttl_seconds=settings.ttl_seconds,
        horizon_seconds=settings.forecast.horizon_seconds,
        mid_cap_percent=settings.mid.cap_percent if settings.mid.enabled else None,
    )


def _closed(by_agent: str, node: Node | None, allocatable: Amount, rival: str) -> str:
    if rival:
        return rival
    if by_agent:
        return f"closed by the agent: {by_agent}"
    known = node is None or None not in {allocatable.cpu_millis, allocatable.memory_bytes}
    return "" if known else "the node object does not say what its pods may use"


def _amounts(node: Node) -> tuple[Amount, Amount]:
    """Capacity and allocatable of a node object; unknown where it does not say, or cannot be read."""
    try:
        capacity, allocatable = node_capacity(node), node_allocatable(node)
    except QuantityError:
        return _NO_AMOUNT, _NO_AMOUNT
    return (
        Amount(cpu_millis=capacity.get("cpu"), memory_bytes=capacity.get("memory")),
        Amount(cpu_millis=allocatable.get("cpu"), memory_bytes=allocatable.get("memory")),
    )
