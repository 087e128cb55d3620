"""The forecast pass: memory and pods in, forecasts on the board and on the nodes out, every few seconds.

A thread of its own. It never waits for a stream or for the disk; a slow API server delays publishing only.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import numpy as np

from predictor.assess import AssessRules, Knowledge, assess
from predictor.board import Board, Entry
from predictor.bound import Bound, bound_by_node
from predictor.clock import Clock, Instant
from predictor.fleet import Fleet, FleetView
from predictor.metrics import Metrics
from predictor.models.base import Floats, History, Model
from predictor.publisher import Publisher
from predictor.samples import Sample
from predictor.settings import PredictorSettings
from predictor.slots import SLOT_SECONDS
from slacktide.cluster.errors import ClusterError
from slacktide.errors import QuantityError
from slacktide.forecast import Amount
from slacktide.objects import Node, Pod
from slacktide.observe import get_logger
from slacktide.resources import node_allocatable

log = get_logger("predictor.forecasting")

_STOP_SECONDS: Final = 5.0


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
class _Peaks:
    cpu: Floats
    memory: Floats


class Forecaster:
    """Runs the pass. `wake` asks for one now."""

    def __init__(
        self,
        fleet: Fleet,
        model: Model,
        board: Board,
        objects: Objects,
        publisher: Publisher,
        is_leader: Callable[[], bool],
        settings: PredictorSettings,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._fleet = fleet
        self._model = model
        self._board = board
        self._objects = objects
        self._publisher = publisher
        self._is_leader = is_leader
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._started = clock.now().monotonic
        self._led = False
        self._problem: str | None = "no forecast pass has run yet"
        self._uids: dict[str, str] = {}
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
        """What was wrong with the last pass; None when nothing was."""
        return self._problem

    def ended(self) -> str | None:
        """Why only a restart helps; None while the thread lives."""
        return None if self._thread.is_alive() or self._thread.ident is None else "the forecast thread has ended"

    def _run(self) -> None:
        while not self._stopping.is_set():
            # The one broad handler: the thread must outlive whatever went wrong in a turn.
            try:
                self.turn()
            except Exception as error:
                log.exception("forecast pass failed")
                self._problem = f"forecast pass failed: {type(error).__name__}: {error}"
            self._wake.wait(self._settings.publish_seconds)
            self._wake.clear()

    def turn(self) -> None:
        """One pass over all nodes."""
        with self._metrics.pass_seconds.time():
            now = self._clock.now()
            settings = self._settings
            synced = self._objects.synced
            nodes = {node.metadata.name: node for node in self._objects.nodes()} if synced else {}
            bound, unreadable = bound_by_node(self._objects.pods(), settings.resources) if synced else ({}, 0)
            self._metrics.skipped_pods.inc(unreadable)
            if synced:
                self._drop_gone(nodes)
            publishing = self._lead() and synced
            self._forecast_all(nodes, bound if synced else None, publishing, now, settings)

    def _lead(self) -> bool:
        leads = self._is_leader()
        if leads and not self._led:
            self._publisher.begin()
        self._led = leads
        self._metrics.leader.set(1 if leads else 0)
        return leads

    def _drop_gone(self, nodes: Mapping[str, Node]) -> None:
        uids = {name: node.metadata.uid for name, node in nodes.items()}
        for name in self._uids.keys() - uids.keys():
            self._fleet.forget(name)
            self._publisher.forget(name)
            self._board.remove(name)
            self._metrics.forget_node(name)
        self._uids = uids

    def _forecast_all(
        self,
        nodes: Mapping[str, Node],
        bound: Mapping[str, Bound] | None,
        publishing: bool,
        now: Instant,
        settings: PredictorSettings,
    ) -> None:
        view = self._fleet.view(now.wall)
        peaks = self._predict(view, bound, settings)
        covered = view.covered_seconds()
        place = {name: index for index, name in enumerate(view.names)}
        self._problem = None
        for name in {**place, **nodes}:
            index = place.get(name)
            asked = Bound(Amount(), Amount()) if bound is None else bound.get(name, Bound())
            known = Knowledge(
                latest=None if index is None else view.latest[index],
                silent=self._silent(view, index, now, settings),
                covered_seconds=0.0 if index is None else float(covered[index]),
                peak_cpu=None if index is None else float(peaks.cpu[index]),
                peak_memory=None if index is None else float(peaks.memory[index]),
                requested=asked.requested,
                allocatable=_allocatable(nodes.get(name)),
                sold=asked.sold,
                closed="" if index is None else view.closed[index],
            )
            self._settle(name, known, nodes.get(name), publishing, now, settings)

    def _settle(
        self,
        name: str,
        known: Knowledge,
        node: Node | None,
        publishing: bool,
        now: Instant,
        settings: PredictorSettings,
    ) -> None:
        forecast = assess(known, now.wall, self._rules(settings))
        published = None
        # Right after a start an agent may not have had the time to speak: what stands is left as it is, and readers
        # age it by its ttl.
        early = known.latest is None and now.monotonic - self._started < settings.stale_seconds
        if publishing and node is not None and not early and self._problem is None:
            try:
                published = self._publisher.publish(node, forecast, known.sold, settings)
            except ClusterError as error:
                # The API server is away: the other nodes would wait for the same timeout, the next pass tries again.
                self._problem = f"publishing failed: {error}"
                log.warning("publishing failed", node=name, error=str(error))
        self._board.put(Entry(name, forecast, published, settings.horizon_seconds))
        self._measure(name, known.latest, forecast.reclaimable, published, forecast.closed)

    def _predict(self, view: FleetView, bound: Mapping[str, Bound] | None, settings: PredictorSettings) -> _Peaks:
        risks = np.array([settings.risk])

        def peak(usage: Floats, field: str) -> Floats:
            asked = [
                getattr(bound.get(name, Bound()).requested, field) if bound is not None else None for name in view.names
            ]
            requested = np.array([np.nan if value is None else value for value in asked], dtype=np.float64)
            history = History(usage=usage, requested=requested, slot_seconds=float(SLOT_SECONDS))
            peaks: Floats = self._model.predict(history, settings.horizon_seconds, risks)[0]
            return peaks

        return _Peaks(peak(view.cpu, "cpu_millis"), peak(view.memory, "memory_bytes"))

    def _silent(self, view: FleetView, index: int | None, now: Instant, settings: PredictorSettings) -> str:
        if index is None:
            return ""
        sample, measured, heard = view.latest[index], view.measured[index], view.heard[index]
        if sample is None or measured is None or heard is None:
            return ""
        limit = max(settings.stale_seconds, settings.stale_windows * sample.window_millis / 1000)
        if now.monotonic - heard > limit:
            return f"no sample from the agent for over {limit:g} s"
        return f"LS and SYSTEM use not measured for over {limit:g} s" if now.monotonic - measured > limit else ""

    def _rules(self, settings: PredictorSettings) -> AssessRules:
        return AssessRules(
            cold_seconds=settings.cold_seconds,
            reserve_cpu_percent=settings.reserve_cpu_percent,
            reserve_memory_percent=settings.reserve_memory_percent,
            ttl_seconds=settings.ttl_seconds,
            model=self._model.name,
            risk=settings.risk if self._model.states_risk else None,
        )

    def _measure(
        self, name: str, latest: Sample | None, reclaimable: Amount, published: Amount | None, closed: str
    ) -> None:
        standing = published or Amount()
        for metric, amount in ((self._metrics.reclaimable, reclaimable), (self._metrics.published, standing)):
            self._metrics.amount(metric, name, "cpu", amount.cpu_millis)
            self._metrics.amount(metric, name, "memory", amount.memory_bytes)
        self._metrics.closed.labels(name).set(1 if closed else 0)
        if latest is not None:
            self._metrics.sample_age.labels(name).set(self._clock.now().wall - latest.end_millis / 1000)


def _allocatable(node: Node | None) -> Amount:
    if node is None:
        return Amount()
    try:
        amounts = node_allocatable(node)
    except QuantityError:
        return Amount()
    return Amount(cpu_millis=amounts.get("cpu"), memory_bytes=amounts.get("memory"))
