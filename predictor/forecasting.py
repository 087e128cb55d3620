"""The forecast pass: memory and pods in, forecasts on the board and on the nodes out, every few seconds.

A thread of its own. It never waits for a stream or for the disk; a slow API server delays publishing only.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Mapping
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
from predictor.node_metrics import NodeFigures
from predictor.peaks import Ask, Look, PeakRules, Peaks, Resource
from predictor.pools import NodeBounds, PoolBounds
from predictor.publisher import Publisher
from predictor.settings import PredictorSettings
from predictor.silence import HEARD, Silence, SilenceRules, silence
from slacktide.errors import QuantityError
from slacktide.forecast import Amount, Forecast
from slacktide.objects import Node, Pod
from slacktide.observe import get_logger
from slacktide.resources import node_allocatable, node_capacity

log = get_logger("predictor.forecasting")

_STOP_SECONDS: Final = 5.0
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Assessed:
    """The forecast of a node and all that it was made of."""

    known: Knowledge
    bounds: NodeBounds
    settings: PredictorSettings
    forecast: Forecast


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
        self._assessed: dict[str, _Assessed] = {}
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
            began = self._clock.now().monotonic
            # The one broad handler: the thread must outlive whatever went wrong in a turn.
            try:
                self.turn()
            except Exception as error:
                log.exception("forecast pass failed")
                self._problem = f"forecast pass failed: {type(error).__name__}: {error}"
            # Thousands of agents that come back wake us thousands of times: no more than half of the time is ours.
            spent = self._clock.now().monotonic - began
            self._stopping.wait(min(spent, self._settings.publish_seconds))
            self._wake.wait(max(0.0, self._settings.publish_seconds - spent))
            self._wake.clear()

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
        for name in self._uids.keys() - uids.keys():
            self._fleet.forget(name)
            self._peaks.forget(name, now.wall)
            self._publisher.forget(name)
            self._board.remove(name)
            self._metrics.nodes.forget(name)
            self._amounts.pop(name, None)
            self._assessed.pop(name, None)
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
                self._board.remove(name)
                self._metrics.nodes.forget(name)
                self._assessed.pop(name, None)

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
        settings = turn.settings
        forecasts: dict[str, Forecast] = {}
        for name in {**turn.place, **turn.nodes}:
            node = turn.nodes.get(name)
            known = self._know(turn, name)
            forecasts[name] = self._assess(
                name, known, self._bounds.of(node.metadata.labels if node else {}, settings), turn
            )
            # Right after a start an agent may not have had the time to speak: what stands is left as it is, and
            # readers age it by its ttl.
            early = known.latest is None and turn.now.monotonic - self._started < settings.stale_seconds
            if publishing and node is not None and not early:
                index = turn.place.get(name)
                heard = None if index is None else turn.view.heard[index]
                self._publisher.plan(node, forecasts[name], known.sold, settings, heard)
        if publishing:
            self._publisher.write(settings, self._is_leader)
        for name, forecast in forecasts.items():
            published = self._publisher.standing(name) if publishing else None
            self._board.put(Entry(name, forecast, published, settings.forecast.horizon_seconds))
            self._measure(turn, name, forecast, published)
        self._metrics.nodes.passed(turn.now.wall)

    def _assess(self, name: str, known: Knowledge, bounds: NodeBounds, turn: _Pass) -> Forecast:
        """`assess`, or what it said last when nothing is known that was not known then."""
        before = self._assessed.get(name)
        if (
            before is not None
            and before.settings is turn.settings
            and before.bounds is bounds
            and before.known == known
        ):
            return msgspec.structs.replace(before.forecast, at=turn.now.wall)
        forecast = assess(known, turn.now.wall, _assess_rules(turn.settings), bounds)
        self._assessed[name] = _Assessed(known, bounds, turn.settings, forecast)
        return forecast

    def _know(self, turn: _Pass, name: str) -> Knowledge:
        index, node, view = turn.place.get(name), turn.nodes.get(name), turn.view
        asked = UNKNOWN if turn.bound is None else turn.bound.get(name, _NO_PODS)
        capacity, allocatable = self._sizes(node)
        if index is None:
            return Knowledge(
                latest=None, requested=asked.requested, capacity=capacity, allocatable=allocatable, sold=asked.sold
            )
        cpu, memory = turn.peaks["cpu"][index], turn.peaks["memory"][index]
        return Knowledge(
            latest=view.latest[index],
            silence=_silence(view, index, turn.now, turn.settings),
            cpu=cpu,
            memory=memory,
            requested=asked.requested,
            newcomers=self._crowds.newcomers(name, asked, view.listed[index], _whole(cpu, memory), turn.moment),
            capacity=capacity,
            allocatable=allocatable,
            sold=asked.sold,
            closed=_closed(view.closed[index], node, allocatable),
            zones=view.zones[index],
            mid_sold=asked.mid,
            pinned=pinned(asked.pods) if view.zones[index] else {},
        )

    def _sizes(self, node: Node | None) -> tuple[Amount, Amount]:
        """`_amounts`, read once for each version of a node."""
        if node is None:
            return _NO_AMOUNT, _NO_AMOUNT
        known = self._amounts.get(node.metadata.name)
        if known is None or known[0] is not node:
            known = self._amounts[node.metadata.name] = (node, *_amounts(node))
        return known[1], known[2]

    def _measure(self, turn: _Pass, name: str, forecast: Forecast, published: Amount | None) -> None:
        index = turn.place.get(name)
        latest = None if index is None else turn.view.latest[index]
        figures = NodeFigures(
            forecast.reclaimable,
            published or _NO_AMOUNT,
            forecast.peak,
            bool(forecast.closed),
            None if latest is None else latest.end_millis / 1000,
        )
        self._metrics.nodes.tell(name, figures)


def _whole(cpu: Peak, memory: Peak) -> Amount:
    """Two peaks in whole units; unknown where they are."""
    amounts = (
        None if peak.amount is None or not math.isfinite(peak.amount) else math.ceil(peak.amount)
        for peak in (cpu, memory)
    )
    return Amount(cpu_millis=next(amounts), memory_bytes=next(amounts))


def _silence(view: FleetView, index: int, now: Instant, settings: PredictorSettings) -> Silence:
    sample, measured, heard = view.latest[index], view.measured[index], view.heard[index]
    if sample is None or measured is None or heard is None:
        return HEARD
    hold = max(settings.stale_seconds, settings.stale_windows * sample.window_millis / 1000)
    return silence(now.monotonic - heard, now.monotonic - measured, SilenceRules(hold, settings.expire_seconds))


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


def _closed(by_agent: str, node: Node | None, allocatable: Amount) -> str:
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
