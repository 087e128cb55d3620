"""Makes the weights that the package ships: python -m predictor.training.fit --traces DIR [--horizon 1] [--out DIR].

Run it in a checkout. It reads the traces of `shared/traces`, makes rows of nodes packed in several ways, fits, and
writes `MODEL_HORIZONh.npz` files. The same traces and package versions give the same weights.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from predictor.models.base import HOUR_SECONDS
from predictor.models.features import feature_names
from predictor.models.weights import HORIZONS_HOURS
from predictor.training import linear, location_scale
from predictor.training.rows import Rows, joined, trace_rows

WEIGHTS: Final = Path(__file__).resolve().parents[1] / "models" / "weights"
_TRACES: Final = {1: ("bitbrains", "azure", "google", "planetlab"), 24: ("bitbrains", "azure", "google")}
_EVERY_HOURS: Final = {
    1: {"bitbrains": 2, "azure": 1, "google": 1, "planetlab": 1},
    24: {"bitbrains": 6, "azure": 3, "google": 3},
}
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def all_rows(hours: int) -> dict[str, Rows]:
    """Rows of every trace for a horizon: one packing with whole histories, one with shortened ones."""
    out = {}
    for name in _TRACES[hours]:
        every = _EVERY_HOURS[hours][name] * HOUR_SECONDS
        whole = trace_rows(name, hours * HOUR_SECONDS, seed=0, every_seconds=every)
        cut = trace_rows(name, hours * HOUR_SECONDS, seed=1, every_seconds=3 * every, cut=True)
        out[name] = joined([whole, cut])
        print(f"{name}: {len(out[name].peak)} rows, {hours} h", file=sys.stderr)  # noqa: T201 - a script says how far it is
    return out


def save(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write an npz file whose bytes depend on the arrays alone, not on the time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            raw = io.BytesIO()
            np.lib.format.write_array(raw, np.asarray(arrays[name]), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), raw.getvalue(), zipfile.ZIP_DEFLATED)


def fit(hours: int, out: Path, rows: Mapping[str, Rows]) -> None:
    """Fit all models for a horizon and write their weights."""
    names = feature_names(hours * HOUR_SECONDS)
    common = {"names": np.array(names), "risks": np.array(location_scale.RISKS)}
    fitted, _ = location_scale.fit(rows)
    trees = {**fitted.location.arrays("location"), **fitted.deviation.arrays("deviation")}
    save(out / f"boosted_{hours}h.npz", {**common, **trees, "reach": fitted.reach})
    save(out / f"quantile_regression_{hours}h.npz", {**common, **linear.fit(rows, names)})


def main() -> None:
    """Read the arguments, fit, write."""
    parser = argparse.ArgumentParser(prog="python -m predictor.training.fit", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="directory of the traces")
    parser.add_argument("--horizon", type=int, choices=HORIZONS_HOURS, action="append", help="hours; default: all")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="directory to write to; default: the package's")
    given = parser.parse_args()
    os.environ["SLACKTIDE_TRACES"] = str(given.traces)
    for hours in given.horizon or HORIZONS_HOURS:
        fit(hours, given.out, all_rows(hours))


if __name__ == "__main__":
    main()
