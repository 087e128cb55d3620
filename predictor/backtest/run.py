"""All models over all replays: in this process, in a local pool, or on a Dask cluster, with the same function."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from predictor.backtest.forecasts import Job, forecasts, named
from predictor.backtest.replay import Replay, Script, decision_slots, every_for, script
from predictor.backtest.trace import BadInput, Resource
from predictor.models.base import DAY_SECONDS, Floats
from slacktide.errors import SlacktideError

SHORTEST_HORIZON_SECONDS: Final = 300.0
LONGEST_HORIZON_SECONDS: Final = 7 * DAY_SECONDS
HIGHEST_RISK: Final = 0.5
_POLL_SECONDS: Final = 0.2
_CONNECT_SECONDS: Final = 10
_TELL_EACH: Final = 20

Progress = Callable[[int, int], None]
"""Called with the decisions made and those that there are in all."""


class ClusterError(SlacktideError):
    """A Dask cluster that cannot be used."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of which models.

    every_seconds  time between decisions; None: as `every_for` says.
    jobs           processes of the local pool.
    scheduler      address of a Dask scheduler, in place of the pool.
    """

    models: tuple[str, ...]
    horizons: tuple[float, ...] = (3600.0,)
    risks: tuple[float, ...] = (0.01,)
    every_seconds: float | None = None
    resource: Resource = "cpu"
    jobs: int = 1
    scheduler: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Forecasts of one model over one replay: peaks (decisions, nodes) for the slots of the script."""

    replay: int
    script: Script
    model: str
    horizon_seconds: float
    risk: float
    peaks: Floats


def run(replays: Sequence[Replay], plan: Plan, progress: Progress = lambda _done, _all: None) -> list[Result]:
    """Forecasts for each replay, horizon, model and risk, in that order.

    Raises BadInput for a horizon or risk that makes no sense, UnknownForecaster, ClusterError.
    """
    names = named(plan.models)
    _check(replays, plan)
    jobs: list[tuple[int, Job]] = []
    for number, replay in enumerate(replays):
        for horizon in plan.horizons:
            made = script(replay, decision_slots(replay, plan.every_seconds or every_for(horizon)))
            jobs += [(number, Job(made, m, horizon, r, plan.resource)) for m in names for r in plan.risks]
    total = sum(len(job.script.slots) for _, job in jobs)
    work = [job for _, job in jobs]
    if plan.scheduler is not None:
        answers = _on_cluster(plan.scheduler, work, lambda done: progress(done, total))
    elif min(plan.jobs, len(jobs)) <= 1:
        answers = _here(work, lambda done: progress(done, total))
    else:
        answers = _in_pool(min(plan.jobs, len(jobs)), work, lambda done: progress(done, total))
    return [
        Result(number, job.script, job.model, job.horizon_seconds, job.risk, peaks)
        for (number, job), peaks in zip(jobs, answers, strict=True)
    ]


def check_asked(name: str, slots: int, slot_seconds: float, horizon_seconds: float, risk: float) -> None:
    """Raises BadInput for a horizon or risk that makes no sense for so much data."""
    if not 0 < risk <= HIGHEST_RISK:
        raise BadInput(f"risk {risk:g} makes no sense: give a share above 0 and at most {HIGHEST_RISK:g}, such as 0.01")
    if not slot_seconds > 0:
        raise BadInput(f"{name}: slots of {slot_seconds:g} s make no sense: give their length in seconds")
    least = max(slot_seconds, SHORTEST_HORIZON_SECONDS)
    if horizon_seconds < least:
        raise BadInput(f"{name}: a horizon of {horizon_seconds:g} s is shorter than a slot: give at least {least:g} s")
    if not horizon_seconds <= LONGEST_HORIZON_SECONDS:
        raise BadInput(
            f"{name}: a horizon of {horizon_seconds:g} s is more than {LONGEST_HORIZON_SECONDS / 86400:g} days"
        )
    if slots < 1:
        raise BadInput(f"{name}: no slots; give at least one")


def _check(replays: Sequence[Replay], plan: Plan) -> None:
    for replay in replays:
        for horizon in plan.horizons:
            for risk in plan.risks:
                check_asked(replay.name, len(replay.usage), replay.slot_seconds, horizon, risk)
        every = plan.every_seconds
        if every is not None and every < replay.slot_seconds:
            raise BadInput(
                f"{replay.name}: decisions each {every:g} s are closer than slots: give --every {replay.slot_seconds:g}"
            )


def _here(work: Sequence[Job], tell: Callable[[int], None]) -> list[Floats]:
    done = 0

    def more(count: int) -> None:
        nonlocal done
        done += count
        tell(done)

    return [forecasts(job, more) for job in work]


def _in_pool(processes: int, work: Sequence[Job], tell: Callable[[int], None]) -> list[Floats]:
    context = multiprocessing.get_context("spawn")
    told: Any = context.Queue()
    others = set(multiprocessing.active_children())
    with concurrent.futures.ProcessPoolExecutor(processes, context, _begin, (told,)) as pool:
        futures = [pool.submit(_work, job) for job in work]
        try:
            waiting, done = set(futures), 0
            while waiting:
                _, waiting = concurrent.futures.wait(waiting, _POLL_SECONDS, concurrent.futures.FIRST_EXCEPTION)
                done += sum(_drained(told))
                tell(done)
                if any(future.done() and future.exception() for future in futures):
                    break
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # Whoever asks for an end does not wait until a model has gone through its replay.
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise


_told: Any = None
"""In a process of the pool: where decisions made are told."""


def _begin(told: Any) -> None:
    global _told
    _told = told


def _work(job: Job) -> Floats:
    waiting = 0

    def more(count: int) -> None:
        nonlocal waiting
        waiting += count
        if waiting >= _TELL_EACH:
            _told.put(waiting)
            waiting = 0

    peaks = forecasts(job, more)
    _told.put(waiting)
    return peaks


def _drained(told: Any) -> Iterator[int]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield told.get_nowait()


def _on_cluster(address: str, work: Sequence[Job], tell: Callable[[int], None]) -> list[Floats]:
    try:
        import distributed
    except ImportError as error:
        raise ClusterError("--scheduler needs Dask: install slacktide[dask]") from error
    dask: Any = distributed
    try:
        client = dask.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address}: {error}; start one, or leave --scheduler out"
        ) from error
    with client:
        scripts = {id(job.script): job.script for job in work}
        sent = {key: client.scatter(one, hash=False) for key, one in scripts.items()}
        futures = [client.submit(_remote, job.model, sent[id(job.script)], _spec(job), pure=False) for job in work]
        done = 0
        sizes = {future.key: len(job.script.slots) for future, job in zip(futures, work, strict=True)}
        for future in dask.as_completed(futures, loop=client.loop):
            done += sizes[future.key]
            tell(done)
        answers: list[Floats] = client.gather(futures)
        return answers


def _spec(job: Job) -> tuple[float, float, Resource]:
    return job.horizon_seconds, job.risk, job.resource


def _remote(model: str, made: Script, spec: tuple[float, float, Resource]) -> Floats:
    """What a worker of the cluster runs: the local function, on a script that was sent once."""
    return forecasts(Job(made, model, *spec))
