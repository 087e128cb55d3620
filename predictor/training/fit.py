"""Makes what the package ships: python -m predictor.training.fit --traces DIR [--horizon 1] [--out DIR].

Run it in a checkout, with the traces of `shared/traces` at hand. For each horizon it makes rows of nodes packed in
several ways, fits the models on all of them, writes `MODEL_HORIZONh.npz`, and writes `prior.json`: how far peaks rose
above what models said that had not seen the series. It prints what they gave out of fold. The same traces and the same
versions of the packages make the same files.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from predictor import prior
from predictor.models.base import HOUR_SECONDS
from predictor.models.features import feature_names
from predictor.models.quantile_regression import linear_shares
from predictor.models.weights import HORIZONS_HOURS
from predictor.training import linear, location_scale, residuals
from predictor.training.rows import LONGEST_CUT_HOURS, Nodes, Rows, joined, trace_rows

WEIGHTS: Final = Path(__file__).resolve().parents[1] / "models" / "weights"


class Packing(NamedTuple):
    """One way to make rows.

    seed         of the packing and of what is random in it.
    every_hours  hours between decisions by trace; no divisor of a day where that leaves hours of it out.
    cut          the longest of the shortened histories in hours, 0 for whole ones.
    spread       see Nodes.
    sizes        series of a node by trace, where that is another number than nodes are scored with.
    """

    seed: int
    every_hours: Mapping[str, int]
    cut: int = 0
    spread: float = 0.0
    sizes: Mapping[str, int] = {}

    def nodes(self, trace: str) -> Nodes:
        """How nodes of a trace are made."""
        return Nodes(self.seed, self.sizes.get(trace), self.spread)


_OTHER_SIZES: Final = {"azure": 20, "google": 16, "planetlab": 24}
PACKINGS: Final[Mapping[int, tuple[Packing, ...]]] = {
    1: (
        Packing(0, {"bitbrains": 5, "azure": 1, "google": 1, "planetlab": 1}),
        Packing(1, {"bitbrains": 6, "azure": 3, "google": 1, "planetlab": 1}, cut=320),
        Packing(2, {"bitbrains": 7, "google": 1, "planetlab": 1}),
        Packing(3, {"bitbrains": 7}),
        Packing(4, {"bitbrains": 7, "azure": 5, "google": 1, "planetlab": 1}, spread=0.5, sizes=_OTHER_SIZES),
        Packing(5, {"bitbrains": 7}, spread=0.5, sizes={"bitbrains": 16}),
    ),
    24: (
        Packing(0, {"bitbrains": 6, "azure": 3, "google": 3}),
        Packing(1, {"bitbrains": 18, "azure": 9, "google": 3}, cut=72),
    ),
}
"""By horizon in hours. The first packing of each is the one that is scored; those after the second show the same series
beside other neighbours and in other proportions. At 24 h, shortened histories of several days would teach that nodes of
that age stray far, and the ten days of google would pay for it."""
MEMORY_TRACES: Final = {"bitbrains_memory": 12, "google_memory": 2}
"""Traces of memory and the hours between decisions; no weights are fitted on them."""
BENDS: Final[Mapping[int, tuple[float, float]]] = {1: (0.95, 0.6), 24: location_scale.STRAIGHT}
"""By horizon in hours: what part of the reach counts above what share of S. Peaks of a day rise above a week's too
often for one."""
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def cpu_rows(hours: int) -> dict[str, Rows]:
    """Rows of every trace for a horizon, of all packings."""
    parts: dict[str, list[Rows]] = {}
    horizon = hours * HOUR_SECONDS
    for packing in PACKINGS[hours]:
        for name, step in packing.every_hours.items():
            every = step * HOUR_SECONDS
            made = trace_rows(name, horizon, packing.nodes(name), every_seconds=every, cut=packing.cut)
            scored = np.full(len(made.peak), packing is PACKINGS[hours][0])
            parts.setdefault(name, []).append(dataclasses.replace(made, scored=scored))
    return {name: joined(made) for name, made in parts.items()}


def memory_rows(hours: int) -> dict[str, Rows]:
    """Rows of the traces of memory, with whole and with shortened histories."""
    horizon = hours * HOUR_SECONDS
    return {
        name: joined(
            trace_rows(name, horizon, Nodes(seed), every_seconds=step * HOUR_SECONDS, cut=cut)
            for seed, cut in ((0, 0), (1, LONGEST_CUT_HOURS))
        )
        for name, step in MEMORY_TRACES.items()
    }


def save(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an npz file whose bytes depend on the arrays alone, not on the time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            raw = io.BytesIO()
            np.lib.format.write_array(raw, np.asarray(arrays[name]), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), raw.getvalue(), zipfile.ZIP_DEFLATED)


def fit(hours: int, out: Path, rows: Mapping[str, Rows], memory: Mapping[str, Rows]) -> list[prior.Entry]:
    """Fit all models for a horizon, write their weights, say what they gave out of fold; entries of the prior."""
    names = feature_names(hours * HOUR_SECONDS)
    common = {"names": np.array(names), "risks": np.array(location_scale.RISKS)}
    boosted, outside = location_scale.fit(rows, BENDS[hours])
    trees = {**boosted.location.arrays("location"), **boosted.deviation.arrays("deviation")}
    save(out / f"boosted_{hours}h.npz", {**common, **trees, "reach": boosted.reach, "bend": boosted.bend})
    regression = linear.fit(rows, names)
    save(out / f"quantile_regression_{hours}h.npz", {**common, **regression})
    said = {
        "boosted": {name: boosted.shares(part) for name, part in outside.items()},
        "quantile_regression": linear.outside(rows, names),
    }
    entries = _entries("cpu", hours, rows, said)
    of_memory = {
        "boosted": {name: boosted.answer(part) for name, part in memory.items()},
        "quantile_regression": {name: linear_shares(regression, part.table, names) for name, part in memory.items()},
    }
    return entries + _entries("memory", hours, memory, of_memory)


Answers = Mapping[str, Mapping[str, npt.NDArray[np.float64]]]
"""Model -> trace -> (risks, rows) answers, in shares of S."""


def _entries(resource: prior.Resource, hours: int, rows: Mapping[str, Rows], answers: Answers) -> list[prior.Entry]:
    horizon = hours * HOUR_SECONDS
    found: list[prior.Entry] = []
    for name, whole in rows.items():
        kept = whole.scored | whole.cut
        part = whole.where(kept)
        known = part.hours_known.astype(np.float64)
        # The highest use of the last seven days is S itself.
        said = {"window_max": {0.0: np.ones(len(part.peak))}}
        for model, traces in answers.items():
            said[model] = {level: traces[name][location_scale.RISKS.index(level)][kept] for level in residuals.LEVELS}
        for model, levels in said.items():
            found += residuals.entries(resource, model, horizon, name, part, known, levels)
            for level, shares in levels.items():
                print(residuals.line(model, hours, name, level, part, shares))  # noqa: T201 - a script prints its result
    return found


def main() -> None:
    """Read the arguments, fit, write."""
    parser = argparse.ArgumentParser(prog="python -m predictor.training.fit", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="directory of the traces")
    parser.add_argument("--horizon", type=int, choices=HORIZONS_HOURS, action="append", help="hours; default: all")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="directory to write to; default: the package's")
    given = parser.parse_args()
    os.environ["SLACKTIDE_TRACES"] = str(given.traces)
    for hours in given.horizon or HORIZONS_HOURS:
        print(f"horizon {hours} h: making rows, which takes minutes", file=sys.stderr)  # noqa: T201 - how far it is
        write_prior(given.out, hours, fit(hours, given.out, cpu_rows(hours), memory_rows(hours)))


def write_prior(out: Path, hours: int, entries: list[prior.Entry]) -> None:
    """Put the entries of one horizon into `prior.json`; those of the others stay."""
    path = out / "prior.json"
    if path.is_file():
        for known in prior.decode(path.read_bytes()).values():
            entries = entries + [entry for entry in known.entries if entry.horizon_seconds != hours * HOUR_SECONDS]
    path.write_bytes(prior.encode(entries, "predictor.training.fit on bitbrains, azure, google, planetlab"))


if __name__ == "__main__":
    main()
