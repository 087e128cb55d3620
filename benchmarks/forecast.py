"""All forecast models, what the product publishes, and what others do, on real traces, out of sample.

The series of each trace fall into three parts by their names (planetlab: the days). The nodes of a part are forecast
with weights and a prior that were fitted on the other two; `--foreign` fits on the other traces instead. Nodes, warm-up
and figures as in overcommit.md, section 4: mean over nodes, in percent. Fits are kept in `--weights` and made when they
are not there, which takes lightgbm, jax for the LSTM, and some minutes each.

`results[HORIZON][TRACE][MODEL]` is for a risk of 1 %; `results["risks"]` is what is published at other risks.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import baselines, report, traces
from predictor import models
from predictor.backtest.forecasts import PUBLISHED, Job, forecasts
from predictor.backtest.replay import Replay, decision_slots, every_for, script
from predictor.backtest.score import FIGURES, Score, by_node, score, truth
from predictor.models.base import Floats
from predictor.training.rows import FOLDS

HORIZONS: Final = {"1h": 3600.0, "24h": 86400.0}
TRACES: Final = ("bitbrains", "azure", "azure_max", "google", "planetlab")
QUICK_TRACES: Final = ("google", "planetlab")
QUICK_MODELS: Final = ("window_max", "quantile_regression", PUBLISHED, "koordinator_batch", "oracle")
ORACLE: Final = "oracle"
LSTM: Final = "lstm"
RISK: Final = 0.01
OTHER_RISKS: Final = (0.005, 0.05)
WEIGHTS: Final = Path(__file__).resolve().parents[1] / "build" / "forecast-weights"
_FITTED_ON: Final = {"azure_max": "azure"}
"""Traces that hold the same machines as another."""
_SHOWN: Final = ("savings", "violation", "severity", "giveback")

Parts = list[dict[str, Floats]]
Key = tuple[bool, str, str, str, float]
"""Whether the weights are foreign, horizon, trace, model, risk."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Work of one process: models on one part of a trace, at some risks, with weights that saw the trace or not."""

    trace: str
    fold: int
    horizon: str
    models: tuple[str, ...]
    risks: tuple[float, ...]
    weights: str
    seed: int
    foreign: bool = False


def slots_scored(replay: Replay, horizon_seconds: float, *, learning: bool) -> range:
    """Decisions to make: models that do not learn need none before the warm-up ends."""
    slots = decision_slots(replay, every_for(horizon_seconds))
    if learning:
        return slots
    first = next((slot for slot in slots if slot >= replay.warmup_slots), slots.stop)
    return range(first, slots.stop, slots.step)


def work(unit: Unit) -> dict[tuple[str, float], Parts]:
    """Figures of each node, by model and risk."""
    found: dict[tuple[str, float], Parts] = {}
    for replay in _load(unit.trace, unit.seed, unit.fold):
        for learning in (False, True):
            names = [name for name in unit.models if (name == PUBLISHED) == learning]
            if names:
                _score(unit, replay, names, slots_scored(replay, HORIZONS[unit.horizon], learning=learning), found)
    return found


@functools.lru_cache(maxsize=1)
def _load(trace: str, seed: int, fold: int) -> list[Replay]:
    return traces.load(trace, seed, fold=fold, folds=FOLDS)


def _score(
    unit: Unit, replay: Replay, names: Sequence[str], slots: range, found: dict[tuple[str, float], Parts]
) -> None:
    seconds = HORIZONS[unit.horizon]
    made = script(replay, slots)
    came = truth(replay, made, seconds)
    for name in names:
        for risk in unit.risks if name == PUBLISHED else (RISK,):
            if name == ORACLE:
                peaks = came.peak
            elif name in baselines.NAMES:
                peaks = _baseline(name, replay, made, seconds)
            else:
                peaks = forecasts(Job(made, name, seconds, risk, weights=unit.weights))
            found.setdefault((name, risk), []).append(by_node(peaks, came, made, seconds))


def _baseline(name: str, replay: Replay, made: Any, seconds: float) -> Floats:
    model = baselines.create(name, replay)
    risks = np.array([RISK])
    return np.array([model.predict(made.history(number), seconds, risks)[0] for number in range(len(made.slots))])


def known() -> tuple[str, ...]:
    """The models that can be fitted here: without the extra `lstm` that one cannot."""
    can = importlib.util.find_spec("jax") is not None
    return tuple(name for name in models.known() if can or name != LSTM)


def fitted(directory: Path, horizon: str, *, fold: int | None = None, without: str | None = None) -> Path:
    """Directory of weights that were fitted without a fold, or without a trace; made when it is not there."""
    from predictor.training import fit

    out = directory / (f"fold-{fold}" if without is None else f"without-{without}")
    hours = round(HORIZONS[horizon] / 3600)
    out.mkdir(parents=True, exist_ok=True)
    done = out / f"{hours}h.done"
    if done.exists():
        return out
    rows = {
        name: part if fold is None else part.where(part.fold != fold)
        for name, part in _rows(hours).items()
        if name != without
    }
    print(f"fitting {out.name}, {horizon}", file=sys.stderr, flush=True)
    fit.write_prior(out, hours, fit.fit(hours, out, rows, {}))
    done.touch()
    return out


def with_lstm(out: Path, horizon: str, *, fold: int | None = None, without: str | None = None) -> None:
    """Fit the LSTM into the directory too, where it is not there."""
    from predictor.training import lstm

    hours = round(HORIZONS[horizon] / 3600)
    if not (out / f"{LSTM}_{hours}h.npz").exists():
        print(f"fitting {out.name}, {horizon}, {LSTM}", file=sys.stderr, flush=True)
        lstm.write(out, hours, fold=fold, without=without)


@functools.cache
def _rows(hours: int) -> Mapping[str, Any]:
    from predictor.training import fit

    return fit.cpu_rows(hours)


def units(arguments: argparse.Namespace) -> Iterator[Unit]:
    """What is to be done; fits what has not been fitted."""
    quick = arguments.quick
    names = tuple(arguments.models or (QUICK_MODELS if quick else (*known(), PUBLISHED, *baselines.NAMES, ORACLE)))
    risks = (RISK,) if quick else (RISK, *OTHER_RISKS)
    for horizon in arguments.horizons or (("1h",) if quick else tuple(HORIZONS)):
        for trace in arguments.traces or (QUICK_TRACES if quick else TRACES):
            if trace == "planetlab" and horizon == "24h":
                continue
            for fold in range(FOLDS):
                weights = fitted(arguments.weights, horizon, fold=fold)
                if LSTM in names:
                    with_lstm(weights, horizon, fold=fold)
                yield Unit(trace, fold, horizon, names, risks, str(weights), arguments.seed)
                if arguments.foreign:
                    weights = fitted(arguments.weights, horizon, without=_FITTED_ON.get(trace, trace))
                    yield Unit(trace, fold, horizon, (PUBLISHED,), (RISK,), str(weights), arguments.seed, foreign=True)


def measure(listed: Sequence[Unit], jobs: int) -> dict[str, Any]:
    """Results of all units, the parts of a trace put together."""
    context = multiprocessing.get_context("spawn")
    parts: dict[Key, Parts] = {}
    with concurrent.futures.ProcessPoolExecutor(jobs, context) as pool:
        waiting = {pool.submit(work, unit): unit for unit in listed}
        for number, future in enumerate(concurrent.futures.as_completed(waiting), 1):
            unit = waiting[future]
            for (name, risk), found in future.result().items():
                parts.setdefault((unit.foreign, unit.horizon, unit.trace, name, risk), []).extend(found)
            print(f"{number} of {len(listed)}: {unit.trace} {unit.fold} {unit.horizon}", file=sys.stderr, flush=True)
    return results(parts)


def results(parts: Mapping[Key, Parts]) -> dict[str, Any]:
    """The document: by horizon, trace and model, and what was published at other risks and with foreign weights."""
    found: dict[str, Any] = {}
    for (foreign, horizon, trace, name, risk), nodes in sorted(parts.items()):
        figures = _percent(score(nodes))
        place = found.setdefault("foreign", {}) if foreign else found
        if risk != RISK:
            place = place.setdefault("risks", {}).setdefault(f"{100 * risk:g}", {})
        place.setdefault(horizon, {}).setdefault(trace, {})[name] = figures
    return found


def _percent(made: Score) -> dict[str, float | int | None]:
    percent: dict[str, float | int | None] = {}
    for name in FIGURES:
        figure = made.figures[name]
        percent[f"{name}_percent"] = None if figure.mean is None else 100 * figure.mean
        if name in {"savings", "violation"}:
            percent[f"{name}_percent_low"] = None if figure.low is None else 100 * figure.low
            percent[f"{name}_percent_high"] = None if figure.high is None else 100 * figure.high
    percent["violation_p90_percent"] = None if made.violation_p90 is None else 100 * made.violation_p90
    return {**percent, "nodes": made.nodes, "decisions": made.decisions}


def table(found: Mapping[str, Any]) -> list[list[str]]:
    """Rows for people, the first being the heading; a cell is savings / violation / severity / giveback."""
    rows: list[list[str]] = []
    for title, by_trace in _blocks(found):
        if not rows:
            rows.append(["horizon, model", *TRACES])
        for name in sorted({name for by_model in by_trace.values() for name in by_model}):
            cells = [by_trace.get(trace, {}).get(name) for trace in TRACES]
            rows.append([f"{title} {name}", *("-" if cell is None else _cell(cell) for cell in cells)])
    return rows


def _blocks(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from ((horizon, found[horizon]) for horizon in HORIZONS if horizon in found)
    yield from ((f"{horizon} foreign", trace) for horizon, trace in found.get("foreign", {}).items())
    for risk, by_horizon in found.get("risks", {}).items():
        yield from ((f"{horizon} at {risk} %", by_horizon[horizon]) for horizon in HORIZONS if horizon in by_horizon)


def _cell(figures: Mapping[str, float | None]) -> str:
    shown = [figures[f"{name}_percent"] for name in _SHOWN]
    return " / ".join(
        "-" if value is None else f"{value:.{1 if place == 0 else 2}f}" for place, value in enumerate(shown)
    )


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark and print its result."""
    parser = report.parser("forecast", __doc__)
    parser.add_argument("--trace", dest="traces", action="append", choices=TRACES, help="default: all")
    parser.add_argument("--horizon", dest="horizons", action="append", choices=tuple(HORIZONS), help="default: both")
    parser.add_argument(
        "--model", dest="models", action="append", metavar="NAME", help="default: all and all baselines"
    )
    parser.add_argument("--foreign", action="store_true", help="also with weights of the other traces alone")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, metavar="DIR", help="where fits are kept")
    parser.add_argument("--seed", type=int, default=0, help="dice of the packing")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args(argv)
    found = measure(list(units(arguments)), arguments.jobs)
    report.emit(
        "forecast",
        found,
        arguments.output,
        rows=table(found),
        save=arguments.save,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
