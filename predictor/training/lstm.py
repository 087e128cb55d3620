"""Fits the model `lstm` on the shared traces: python -m predictor.training.lstm --traces DIR [--horizon 1] [--out DIR].

Needs the extra `lstm` (jax). With `--score` it is then fitted on two thirds of the series of each trace and scored on
the rest, three times, beside other models on the same decisions. A fit takes about a minute on a core.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from benchmarks import traces
from predictor import models
from predictor.backtest.replay import HISTORY_DAYS, Replay, decision_slots
from predictor.models.base import DAY_SECONDS, HOUR_SECONDS, Floats, History, Integers
from predictor.models.levels import at_risks
from predictor.models.lstm import CHANNELS, FIXED, NAMES, Single, forward, inputs
from predictor.models.weights import HORIZONS_HOURS
from predictor.training.rows import FOLDS

RISKS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3)
TRACES: Final = {1: ("bitbrains", "azure", "google", "planetlab"), 24: ("bitbrains", "azure", "google")}
_EVERY_HOURS: Final = {
    1: {"bitbrains": 2, "azure": 1, "google": 1, "planetlab": 1},
    24: {"bitbrains": 6, "azure": 3, "google": 3},
}
WEIGHTS: Final = Path(__file__).resolve().parents[1] / "models" / "weights"
RIVALS: Final = ("window_max", "histogram", "n_sigma")
RISK: Final = 0.01
"""What all models are asked for when they are scored."""
_SHORT_SLOTS: Final = 288
_FIRST_SLOT: Final = 36
_HIDDEN: Final = 24
_BATCH: Final = 256
_UPDATES: Final = 2000
_WARM_UP: Final = 15
_RATE: Final = 3e-3
_DECAY: Final = 1e-4
_AVERAGED: Final = 0.2
"""Part of the updates at the end whose mean is kept."""

Weights = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Decisions on nodes of one trace; what is in units of use is in shares of S.

    sequence  (STEPS, rows, CHANNELS) and fixed (rows, FIXED) as predictor.models.lstm.inputs gives them.
    peak      (rows,) highest use over the horizon.
    limit     (rows,) requests; only for scoring.
    rivals    (rows, rivals) what other models said; only for scoring.
    fold      (rows,) part of the series that the node was packed from.
    cut       (rows,) whether the history was cut short; such rows are not scored.
    """

    sequence: Single
    fixed: Single
    peak: Floats
    limit: Floats
    rivals: Floats
    fold: Integers
    cut: npt.NDArray[np.bool_]

    def where(self, kept: npt.NDArray[np.bool_]) -> Rows:
        """The rows that are kept."""
        rest = (getattr(self, field.name)[kept] for field in dataclasses.fields(self)[1:])
        return Rows(self.sequence[:, kept], *rest)


def joined(parts: Sequence[Rows]) -> Rows:
    """One after the other."""
    names = [field.name for field in dataclasses.fields(Rows)[1:]]
    rest = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    return Rows(np.concatenate([part.sequence for part in parts], axis=1), *rest)


@functools.cache
def _replays(name: str, fold: int) -> list[Replay]:
    return traces.load(name, fold=fold, folds=FOLDS)


@functools.cache
def rows_of(name: str, hours: int) -> Rows:
    """Decisions over all folds of a trace, with whole histories and with shortened ones."""
    parts = [
        rows
        for fold in range(FOLDS)
        for random in (None, np.random.default_rng(fold))
        for replay in _replays(name, fold)
        for rows in _replay_rows(replay, hours, fold, random)
    ]
    _say(f"{name}: {sum(len(part.peak) for part in parts)} rows, {hours} h")
    return joined(parts)


def _replay_rows(replay: Replay, hours: int, fold: int, random: np.random.Generator | None) -> Iterator[Rows]:
    every = next(every for trace, every in _EVERY_HOURS[hours].items() if replay.name.startswith(trace))
    horizon = replay.slots_of(hours * HOUR_SECONDS)
    first = replay.warmup_slots if random is None or len(replay.usage) <= _SHORT_SLOTS else _FIRST_SLOT
    rivals = [models.create(name) for name in RIVALS]
    for slot in decision_slots(replay, every * HOUR_SECONDS):
        if slot < first or slot + horizon >= len(replay.usage):
            continue
        seen = _shortened(_history(replay, slot), random)
        given = inputs(seen, hours)
        size = np.where(given.scale > 0, given.scale, 1.0)
        said = [rival.predict(seen, hours * HOUR_SECONDS, np.array([RISK]))[0] / size for rival in rivals]
        peak = np.fmax.reduce(replay.usage[slot + 1 : slot + 1 + horizon], axis=0) / size
        folds, cut = np.full(len(peak), fold), np.full(len(peak), random is not None)
        limit = seen.requested / size
        yield Rows(given.sequence, given.fixed, peak, limit, np.stack(said, axis=1), folds, cut).where(given.scale > 0)


def _history(replay: Replay, slot: int) -> History:
    """As predictor.backtest.replay.decisions gives it, without the pods, which are not read here."""
    window = replay.slots_of(HISTORY_DAYS * DAY_SECONDS)
    usage = replay.usage[max(0, slot + 1 - window) : slot + 1]
    return History(usage, replay.limits(slot), replay.slot_seconds, replay.label(slot + 1))


def _shortened(history: History, random: np.random.Generator | None) -> History:
    """As if only a random number of hours were known, short ones as often as long ones."""
    if random is None:
        return history
    hours = np.exp(random.uniform(np.log(4.0), np.log(190.0)))
    return dataclasses.replace(history, usage=history.usage[-round(hours * HOUR_SECONDS / history.slot_seconds) :])


def start(seed: int) -> Weights:
    """Weights before the first update."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> jax.Array:
        return jnp.asarray(random.normal(0.0, rows**-0.5, (rows, columns)), dtype=jnp.float32)

    # A forget gate that starts open lets the first hours matter from the beginning.
    bias = np.zeros(4 * _HIDDEN, dtype=np.float32)
    bias[_HIDDEN : 2 * _HIDDEN] = 1.0
    return {
        "input": matrix(len(CHANNELS), 4 * _HIDDEN),
        "recurrent": matrix(_HIDDEN, 4 * _HIDDEN),
        "gate_bias": jnp.asarray(bias),
        "dense": matrix(_HIDDEN + len(FIXED), _HIDDEN),
        "dense_bias": jnp.zeros(_HIDDEN),
        "out": 0.1 * matrix(_HIDDEN, len(RISKS)),
        "out_bias": jnp.full(len(RISKS), -2.0),
    }


def network(weights: Weights, sequence: jax.Array, fixed: jax.Array) -> jax.Array:
    """predictor.models.lstm.forward, in jax."""
    size = _HIDDEN

    def step(carried: tuple[jax.Array, jax.Array], hour: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        state, cell = carried
        gates = hour @ weights["input"] + state @ weights["recurrent"] + weights["gate_bias"]
        taken, kept, shown = jnp.split(jax.nn.sigmoid(gates[:, : 3 * size]), 3, axis=1)
        cell = kept * cell + taken * jnp.tanh(gates[:, 3 * size :])
        return (shown * jnp.tanh(cell), cell), None

    nothing = jnp.zeros((sequence.shape[1], size))
    (state, _), _ = jax.lax.scan(step, (nothing, nothing), sequence)
    hidden = jnp.tanh(jnp.concatenate([state, fixed], axis=1) @ weights["dense"] + weights["dense_bias"])
    out = hidden @ weights["out"] + weights["out_bias"]
    rises = jax.nn.softplus(out[:, :-1])
    highest_risk = fixed[:, :1] + out[:, -1:]
    return jnp.concatenate([highest_risk + jnp.cumsum(rises[:, ::-1], axis=1)[:, ::-1], highest_risk], axis=1)


def loss(weights: Weights, sequence: jax.Array, fixed: jax.Array, peak: jax.Array) -> jax.Array:
    """Pinball loss, mean over rows and risks; each risk weighs by the inverse root of its part, or rare ones drown."""
    risks = jnp.asarray(RISKS)
    missed = peak[:, None] - network(weights, sequence, fixed)
    return jnp.mean(jnp.maximum((1 - risks) * missed, -risks * missed) / jnp.sqrt(risks))


@jax.jit
def update(
    weights: Weights, moments: tuple[Weights, Weights], count: jax.Array, rate: jax.Array, batch: tuple[jax.Array, ...]
) -> tuple[Weights, tuple[Weights, Weights], jax.Array]:
    """One step of Adam with decay of the weights."""
    value, slope = jax.value_and_grad(loss)(weights, *batch)
    norm = jnp.sqrt(sum(jnp.sum(part**2) for part in slope.values()))
    slope = {name: part * jnp.minimum(1.0, 1.0 / norm) for name, part in slope.items()}
    first = {name: 0.9 * moments[0][name] + 0.1 * part for name, part in slope.items()}
    second = {name: 0.999 * moments[1][name] + 0.001 * part**2 for name, part in slope.items()}
    moved = {}
    for name, part in weights.items():
        step = (first[name] / (1 - 0.9**count)) / (jnp.sqrt(second[name] / (1 - 0.999**count)) + 1e-8)
        moved[name] = part - rate * (step + _DECAY * part)
    return moved, (first, second), value


def fit(parts: Sequence[Rows], *, seed: int = 7, updates: int = _UPDATES, batch: int = _BATCH) -> dict[str, Single]:
    """Weights from the rows of several traces, each as often in a batch as any other; a mean over the last updates."""
    random = np.random.default_rng(seed)
    weights = start(seed)
    moments = ({name: jnp.zeros_like(part) for name, part in weights.items()},) * 2
    mean = weights
    share = batch // len(parts)
    began = time.monotonic()
    for count in range(1, updates + 1):
        rate = _RATE * min(1.0, _WARM_UP * count / updates) * 0.5 * (1 + np.cos(np.pi * count / updates))
        picked = [(part, random.integers(0, len(part.peak), share)) for part in parts]
        rows = (
            np.concatenate([part.sequence[:, taken] for part, taken in picked], axis=1),
            np.concatenate([part.fixed[taken] for part, taken in picked]),
            np.concatenate([part.peak[taken] for part, taken in picked]).astype(np.float32),
        )
        weights, moments, value = update(weights, moments, jnp.float32(count), jnp.float32(rate), rows)
        if (last := count - round((1 - _AVERAGED) * updates)) > 0:
            mean = {name: mean[name] + (part - mean[name]) / last for name, part in weights.items()}
        if count % 1000 == 0:
            _say(f"  {count} updates, loss {float(value):.4f}, {time.monotonic() - began:.0f} s")
    return {name: np.asarray(part, dtype=np.float32) for name, part in mean.items()}


def write(out: Path, hours: int, *, fold: int | None = None, without: str | None = None) -> None:
    """Fit for a horizon and write `lstm_HOURSh.npz` into `out`; without a fold of the series, or without a trace."""
    # Only here, as it loads what the other models are fitted with.
    from predictor.training.fit import save

    parts = [rows_of(name, hours) for name in TRACES[hours] if name != without]
    fitted = fit(parts if fold is None else [rows.where(rows.fold != fold) for rows in parts])
    save(out / f"lstm_{hours}h.npz", {**fitted, "names": np.array(NAMES), "risks": np.array(RISKS)})


def score(hours: int) -> None:
    """Fit on the folds but one and score on that one, each in turn; print what it gave beside the rivals."""
    parts = {name: rows_of(name, hours) for name in TRACES[hours]}
    said = {name: np.full(len(rows.peak), np.nan) for name, rows in parts.items()}
    for held_out in range(FOLDS):
        weights = fit([rows.where(rows.fold != held_out) for rows in parts.values()])
        for name, rows in parts.items():
            mine = rows.fold == held_out
            shares = forward(weights, rows.sequence[:, mine], rows.fixed[mine]).astype(np.float64).T
            said[name][mine] = at_risks(np.array(RISKS), shares, np.array([RISK]), hours * HOUR_SECONDS)[0]
    for name, rows in parts.items():
        whole = ~rows.cut
        columns = {"oracle": rows.peak, "lstm": said[name], **dict(zip(RIVALS, rows.rivals.T, strict=True))}
        for model, peak in columns.items():
            _say(f"{hours} h {name:10} {model:20} {_line(peak[whole], rows.peak[whole], rows.limit[whole])}")


def _line(peak: Floats, truth: Floats, limit: Floats) -> str:
    """Savings and violations as they are, and savings when shifted by one constant to the asked risk exactly."""

    def figures(said: Floats) -> tuple[float, float]:
        sold = np.clip(np.where(np.isnan(said), limit, said), 0.0, limit)
        return 100 * float(np.mean(1 - sold / limit)), 100 * float(np.mean(sold < truth * (1 - 1e-9)))

    shift = float(np.nanquantile(truth - peak, 1 - RISK))
    raw, shifted = figures(peak), figures(peak + shift)
    return (
        f"savings {raw[0]:5.1f} violations {raw[1]:5.2f}; shifted by {shift:+.3f}: {shifted[0]:5.1f} {shifted[1]:5.2f}"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - a script says how far it is


def main() -> None:
    """Read the arguments, fit, write; score when asked."""
    parser = argparse.ArgumentParser(prog="python -m predictor.training.lstm", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="directory of the traces")
    parser.add_argument("--horizon", type=int, choices=HORIZONS_HOURS, action="append", help="hours; default: all")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="directory to write to; default: the package's")
    parser.add_argument("--score", action="store_true", help="score out of fold, too")
    given = parser.parse_args()
    os.environ["SLACKTIDE_TRACES"] = str(given.traces)
    for hours in given.horizon or HORIZONS_HOURS:
        write(given.out, hours)
        if given.score:
            score(hours)


if __name__ == "__main__":
    main()
