"""The peaks of all nodes: forecast once a slot by two engines (CPU, memory), kept in between.

A forecast of the whole fleet takes seconds, a pass comes every two: so it runs beside the passes, and they use the
newest one. Where there is none that is fresh (a start, an engine that fails or is late) a node that has been measured
for long enough counts with the highest use of its last seven days, path `stale model`, any other with its requests.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from predictor.assess import Peak
from predictor.clock import Clock, Instant
from predictor.metrics import Metrics
from predictor.models.base import Floats, History
from predictor.slots import SLOT_SECONDS
from slacktide.forecast import Origin
from slacktide.observe import get_logger, traces

log = get_logger("predictor.peaks")

Resource = Literal["cpu", "memory"]
RESOURCES: Final[tuple[Resource, Resource]] = ("cpu", "memory")

STALE: Final = "stale model"
REQUESTS: Final = "requests"
_COLD_PATHS: Final = frozenset({REQUESTS, "unknown"})
_FALLBACK_SLOTS: Final = 7 * 86400 // SLOT_SECONDS
_STOP_SECONDS: Final = 2.0
_SLOT: Final = float(SLOT_SECONDS)
_BY_REQUESTS: Final = Origin(path=REQUESTS)
_BY_WINDOW: Final = Origin(path=STALE, model="window_max")
_UNSEEN: Final = Peak(None, _BY_REQUESTS, cold=True)


class StepLike(Protocol):
    """One forecast of all nodes; see `predictor.engine.Step`."""

    @property
    def peak(self) -> Floats:
        """(series,) NaN where nothing is known."""
        ...

    @property
    def model(self) -> Sequence[str]:
        """(series,) name of the model."""
        ...

    @property
    def path(self) -> Sequence[str]:
        """(series,) what made the peak."""
        ...

    @property
    def shift(self) -> Floats:
        """(series,) calibration, share of S."""
        ...

    @property
    def widened(self) -> Sequence[str]:
        """(series,) why it is widened."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What an operator should know."""
        ...


class ScoreLike(Protocol):
    """How a candidate did; see `predictor.champion.ModelScore`."""

    @property
    def model(self) -> str:
        """Its name."""
        ...

    @property
    def champion(self) -> bool:
        """Whether its answers count."""
        ...

    @property
    def violation(self) -> float:
        """Share of outcomes above its answer, NaN before the first."""
        ...

    @property
    def reserve(self) -> float:
        """Mean answer over S, NaN likewise."""
        ...

    @property
    def decisions(self) -> float:
        """Outcomes that count."""
        ...

    @property
    def shift(self) -> float:
        """Calibration for nodes with a week of history."""
        ...


class EngineLike(Protocol):
    """What forecasts one resource; see `predictor.engine.Engine`."""

    def step(self, names: Sequence[str], history: History, settled: npt.NDArray[np.bool_] | None = None) -> StepLike:
        """Forecast all nodes at the end of `history`."""
        ...

    def state(self) -> bytes:
        """All that was learned."""
        ...

    def scores(self) -> Sequence[ScoreLike]:
        """How the candidates did."""
        ...

    @property
    def outcomes(self) -> tuple[int, int]:
        """Outcomes of what was published, judged since this process began, and those that rose above it."""
        ...

    @property
    def champion_reason(self) -> str:
        """Why the champion is the champion."""
        ...


class Ask(NamedTuple):
    """What the engines are asked: complete slots of all nodes in the order of `names`, with their LS requests."""

    names: Sequence[str]
    cpu: History
    memory: History
    settled: npt.NDArray[np.bool_] | None = None


class Look(NamedTuple):
    """What a pass sees: complete slots of all nodes, and (nodes,) what the slots that are open show so far."""

    names: list[str]
    usage: Mapping[Resource, History]
    opened: Mapping[Resource, Floats]


class PeakRules(NamedTuple):
    """Settings that decide which peak counts; seconds, and the asked risks."""

    grace_seconds: float
    late_slots: int
    cold_seconds: float
    save_seconds: float
    risk: float
    memory_risk: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Book:
    """The peaks of one resource. `at` is the end of the last slot that they rest on; `place` is by node name."""

    at: float
    place: Mapping[str, int]
    peaks: Sequence[Peak]


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """What the window shows without a model: highest use of seven days, and how long it was measured."""

    at: float
    names: list[str]
    highest: Mapping[Resource, Floats]
    covered: Mapping[Resource, Floats]


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """The peaks that a pass found of one resource, and what it found them by: nobody changes them."""

    seen: _Seen
    book: _Book | None
    forgettings: int
    cold_seconds: float
    opened: Floats
    peaks: list[Peak]
    origins: object = None
    """Another object when any peak came about another way."""

    def rests_on(self, other: _Found) -> bool:
        """Whether only what the open slots show may differ."""
        return (
            self.seen is other.seen
            and self.book is other.book
            and self.forgettings == other.forgettings
            and self.cold_seconds == other.cold_seconds
        )


class Peaks:
    """Runs the engines, keeps what they said. `offer` and `of` are for the one thread of the forecast pass.

    build  makes an engine, when the first step needs it: what it learned before is read then
    run    runs a step: at once, or on another thread, one at a time
    save   keeps the state of an engine durably
    """

    def __init__(
        self,
        build: Callable[[Resource], EngineLike],
        run: Callable[[Callable[[], None]], object],
        save: Callable[[str, bytes], object],
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._build = build
        self._engines: dict[Resource, EngineLike] = {}
        self._run = run
        self._save = save
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._busy = False
        self._begun = -np.inf
        self._saved = clock.now().monotonic
        self._books: dict[Resource, _Book] = {}
        self._forgotten: dict[str, float] = {}
        self._forgettings = 0
        self._found: dict[Resource, _Found] = {}
        self._counted: dict[Resource, set[tuple[str, str]]] = {}
        self._champions: dict[Resource, str] = {}
        self._outcomes: dict[Resource, tuple[int, int]] = {}
        self._seen: _Seen | None = None

    def offer(self, ask: Callable[[], Ask], at: float, now: Instant, rules: PeakRules) -> None:
        """Begin a step when a slot has ended since the last one, `grace_seconds` ago. `at` is the end of that slot."""
        if self._busy or at <= self._begun or now.wall - at < rules.grace_seconds:
            return
        self._busy, self._begun = True, at
        asked = ask()
        self._run(lambda: self._step(asked, rules))

    def of(self, look: Look, now: Instant, rules: PeakRules) -> Mapping[Resource, list[Peak]]:
        """Peaks of the nodes of `look`, never below what the open slot of each shows already.

        A node of which nothing changed has the same `Peak` as in the pass before.
        """
        seen = self._look(look)
        made = self.made_at()
        self._metrics.forecast_age.set(np.nan if made is None else now.wall - made)
        for resource in RESOURCES:
            book = self._fresh(resource, now, rules)
            asked = _Found(seen, book, self._forgettings, rules.cold_seconds, look.opened[resource], [])
            before, found = self._found.get(resource), self._find(resource, asked, self._found.get(resource))
            self._found[resource] = found
            if before is None or before.origins is not found.origins:
                self._count(resource, found)
        return {resource: found.peaks for resource, found in self._found.items()}

    def _find(self, resource: Resource, asked: _Found, before: _Found | None) -> _Found:
        """`asked` with its peaks; they are worked out anew only where something changed."""
        count = len(asked.seen.names)
        if before is None or not before.rests_on(asked):
            old: list[Peak | None] = list(before.peaks) if before is not None and len(before.peaks) == count else []
            peaks = self._worked_out(resource, asked, range(count), old)
            return dataclasses.replace(asked, peaks=peaks, origins=object())
        same = (before.opened == asked.opened) | (np.isnan(before.opened) & np.isnan(asked.opened))
        if same.all():
            return before
        places = np.flatnonzero(~same).tolist()
        peaks, origins = list(before.peaks), before.origins
        anew = self._worked_out(resource, asked, places, [peaks[place] for place in places])
        for place, peak in zip(places, anew, strict=True):
            if peak.origin is not peaks[place].origin:
                origins = object()
            peaks[place] = peak
        return dataclasses.replace(asked, peaks=peaks, origins=origins)

    def _worked_out(
        self, resource: Resource, asked: _Found, places: Sequence[int], old: Sequence[Peak | None]
    ) -> list[Peak]:
        """Peaks of the nodes at `places`; `old` are theirs of the pass before, or none at all."""
        picked = np.asarray(places, dtype=np.int64)
        opened = asked.opened[picked]
        columns = (opened, np.fmax(asked.seen.highest[resource][picked], opened), asked.seen.covered[resource][picked])
        names = asked.seen.names
        known = self._known(asked.book)
        found = []
        for index, (place, now, floor, covered) in enumerate(
            zip(places, *(column.tolist() for column in columns), strict=True)
        ):
            kept = known(names[place])
            peak = _fallback(floor, covered, asked.cold_seconds) if kept is None else _raised(kept, now, floor)
            before = old[index] if old else None
            found.append(before if before is not None and before == peak else peak)
        return found

    def made_at(self) -> float | None:
        """End of the last slot that the peaks rest on, seconds since the epoch; None when there are none."""
        return min((book.at for book in self._books.values()), default=None)

    def _fresh(self, resource: Resource, now: Instant, rules: PeakRules) -> _Book | None:
        """The forecast peaks; None where there are none that are fresh."""
        book = self._books.get(resource)
        limit = (rules.late_slots + 1) * SLOT_SECONDS + rules.grace_seconds
        if book is None or now.wall - book.at > limit:
            return None
        # A step that was asked before a node was forgotten knows the old one still.
        self._forgotten = {name: at for name, at in self._forgotten.items() if book.at <= at}
        return book

    def _known(self, book: _Book | None) -> Callable[[str], Peak | None]:
        """What `book` says of a node."""

        def known(name: str) -> Peak | None:
            if book is None or book.at <= self._forgotten.get(name, -np.inf):
                return None
            place = book.place.get(name)
            return None if place is None else book.peaks[place]

        return known

    def forget(self, name: str, wall: float) -> None:
        """The node of that name is gone, or another one has its name: what was expected of it holds no more."""
        self._forgotten[name] = wall
        self._forgettings += 1

    def stop(self) -> None:
        """Keep what was learned; a step that runs is waited for a moment."""
        if self._lock.acquire(timeout=_STOP_SECONDS):
            try:
                self._keep()
            finally:
                self._lock.release()

    def _step(self, ask: Ask, rules: PeakRules) -> None:
        try:
            with self._lock:
                self._forecast("cpu", ask, ask.cpu, rules.risk)
                self._forecast("memory", ask, ask.memory, rules.memory_risk)
                if self._clock.now().monotonic - self._saved >= rules.save_seconds:
                    self._keep()
        finally:
            self._busy = False

    @traces.traced("predictor.forecast")
    def _forecast(self, resource: Resource, ask: Ask, history: History, risk: float) -> None:
        traces.note(resource=resource, nodes=len(ask.names))
        # The one broad handler around a model's mistakes: passes go on with what is there, and say when it is stale.
        try:
            engine = self._engine(resource)
            with self._metrics.step_seconds.time():
                step = engine.step(ask.names, history, ask.settled)
            columns = zip(step.peak, step.model, step.path, step.shift, step.widened, strict=True)
            peaks = [
                _peak(float(peak), model, str(path), float(shift), widened, risk)
                for peak, model, path, shift, widened in columns
            ]
        except Exception:
            self._metrics.step_failures.labels(resource).inc()
            log.exception("forecast of the peaks failed", resource=resource)
            return
        self._books[resource] = _Book(history.at, {name: index for index, name in enumerate(ask.names)}, peaks)
        self._metrics.asked_risk.labels(resource).set(risk)
        self._tell(resource, engine)
        for note in step.notes:
            log.warning("forecast engine", resource=resource, note=note)

    def _engine(self, resource: Resource) -> EngineLike:
        if resource not in self._engines:
            self._engines[resource] = self._build(resource)
        return self._engines[resource]

    def _keep(self) -> None:
        self._saved = self._clock.now().monotonic
        for resource, engine in self._engines.items():
            self._save(state_key(resource), engine.state())

    def _look(self, look: Look) -> _Seen:
        at = look.usage["cpu"].at
        if self._seen is None or self._seen.at != at or self._seen.names != look.names:
            windows = {resource: look.usage[resource].usage[-_FALLBACK_SLOTS:] for resource in RESOURCES}
            self._seen = _Seen(
                at,
                list(look.names),
                {name: np.fmax.reduce(rows, axis=0, initial=np.nan).astype(float) for name, rows in windows.items()},
                {name: np.count_nonzero(~np.isnan(rows), axis=0) * _SLOT for name, rows in windows.items()},
            )
        return self._seen

    def _count(self, resource: Resource, found: _Found) -> None:
        counts = collections.Counter((peak.origin.path, peak.origin.model) for peak in found.peaks)
        for path, model in self._counted.get(resource, set()) - counts.keys():
            self._metrics.paths.remove(resource, path, model)
        for (path, model), count in counts.items():
            self._metrics.paths.labels(resource, path, model).set(count)
        self._counted[resource] = set(counts)
        self._metrics.widened.labels(resource).set(sum(bool(peak.origin.widened) for peak in found.peaks))

    def _tell(self, resource: Resource, engine: EngineLike) -> None:
        before, now = self._outcomes.get(resource, (0, 0)), engine.outcomes
        self._outcomes[resource] = now
        self._metrics.outcomes.labels(resource).inc(now[0] - before[0])
        self._metrics.violations.labels(resource).inc(now[1] - before[1])
        for score in engine.scores():
            if score.champion and self._champions.get(resource) != score.model:
                self._champions[resource] = score.model
                log.info("champion", resource=resource, model=score.model, reason=engine.champion_reason)
            labels = (resource, score.model)
            self._metrics.model_violation.labels(*labels).set(score.violation)
            self._metrics.model_reserve.labels(*labels).set(score.reserve)
            self._metrics.model_decisions.labels(*labels).set(score.decisions)
            self._metrics.model_shift.labels(*labels).set(score.shift)
            self._metrics.champion.labels(*labels).set(1 if score.champion else 0)


def state_key(resource: Resource) -> str:
    """Name under which the state of an engine is kept."""
    return f"engine/{resource}"


def _peak(amount: float, model: str, path: str, shift: float, widened: str, risk: float) -> Peak:
    if path in _COLD_PATHS or np.isnan(amount):
        return _UNSEEN
    origin = Origin(
        path=path, model=model, risk=risk, shift=round(shift, 4) if np.isfinite(shift) else None, widened=widened
    )
    return Peak(amount, origin, cold=False)


def _raised(kept: Peak, opened: float, seen: float) -> Peak:
    """A kept peak and what has been seen since; a cold one has nothing but what was seen."""
    if kept.cold:
        return Peak(seen, kept.origin, kept.cold)
    if kept.amount is None or not opened > kept.amount:
        return kept
    return Peak(opened, kept.origin, kept.cold)


def _fallback(seen: float, covered: float, cold_seconds: float) -> Peak:
    if math.isnan(seen):
        return _UNSEEN
    if covered < cold_seconds:
        return Peak(seen, _BY_REQUESTS, cold=True)
    return Peak(seen, _BY_WINDOW, cold=False)
