"""The shared traces as nodes: conversions and packing of overcommit.md, section 4.

The traces are no part of the repository: `../shared/traces` beside it, or the directory in SLACKTIDE_TRACES.
`python -m benchmarks.traces NAME --out FILE.parquet` writes the nodes as a long file for `slacktide backtest`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pandas as pd

from predictor.backtest.nodes import fold_of
from predictor.backtest.pack import pack, packed
from predictor.backtest.replay import Replay, carry_forward
from predictor.models.base import Floats
from slacktide.errors import SlacktideError

SLOT_SECONDS: Final = 300.0
CORES_AT_FULL: Final = 4.0
"""What 100 % is, where a trace gives use as a share."""
_DAY_SLOTS: Final = 288
_MONTHS: Final = ("07", "08", "09")
_LEAST_COVERAGE: Final = 0.9
_MHZ: Final = "cpu_mhz"


@dataclass(frozen=True, slots=True)
class Table:
    """Series on one grid: usage (slots, series) without gaps, in cores or MiB, and the label of the first slot."""

    names: tuple[str, ...]
    usage: Floats
    at0: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How a trace becomes nodes: series a node, passes over the series, and the slots before scoring begins."""

    tables: Callable[[Path], Sequence[tuple[str, Table]]]
    size: int
    passes: int
    warmup_slots: int


def directory() -> Path:
    """Where the traces lie. Raises SlacktideError when they do not."""
    found = Path(os.environ.get("SLACKTIDE_TRACES") or Path(__file__).resolve().parents[2] / "shared" / "traces")
    if not found.is_dir():
        raise SlacktideError(f"{found}: no traces there; name their directory in SLACKTIDE_TRACES")
    return found


def load(name: str, seed: int = 0, *, fold: int | None = None, folds: int = 2) -> list[Replay]:
    """The replays of a trace: one, of planetlab one a day. Raises SlacktideError for a name that is none of PLANS.

    `fold` keeps only the series of that fold, so that what was fitted on the others can be scored on it: by series,
    of planetlab by day.
    """
    if name not in PLANS:
        raise SlacktideError(f"trace {name!r} is not known; choose one of: {', '.join(PLANS)}")
    plan = PLANS[name]
    replays = []
    for label, table in plan.tables(directory()):
        kept = _kept(label, table, fold, folds)
        if not len(kept):
            continue
        usage = table.usage[:, kept]
        packing = pack(usage, plan.size, plan.passes, seed)
        replays.append(packed(label, SLOT_SECONDS, table.at0, usage, packing, warmup_slots=plan.warmup_slots))
    return replays


def _kept(label: str, table: Table, fold: int | None, folds: int) -> npt.NDArray[np.int64]:
    whole_day = label.startswith("planetlab")
    names = [label] * len(table.names) if whole_day else table.names
    return np.array([i for i, n in enumerate(names) if fold is None or fold_of(n, folds) == fold], dtype=np.int64)


def _wide(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, index_col=0)


def _filled(values: npt.NDArray[np.float64]) -> Floats:
    """(slots, series) with gaps carried forward, and those at the start carried backward."""
    return np.asarray(carry_forward(carry_forward(values)[::-1])[::-1], dtype=np.float64)


def _bitbrains(root: Path, kind: str = _MHZ) -> Sequence[tuple[str, Table]]:
    """VMs that are covered well in all months; months joined as if they followed on each other."""
    folder = root / "bitbrains-rnd"
    machines = pd.read_csv(folder / "vms.csv", index_col="vm")
    machines = machines[(machines[[f"coverage_{month}" for month in _MONTHS]] >= _LEAST_COVERAGE).all(axis=1)]
    months = []
    first = 0.0
    for month in _MONTHS:
        frame = _wide(folder / f"{kind}_2013-{month}.csv.gz").loc[machines.index]
        first = first or float(frame.columns[0])
        values = frame.to_numpy(dtype=np.float64).T
        if kind == _MHZ:
            values = _cores(
                values, machines[f"cap_mhz_{month}"].to_numpy(dtype=np.float64), machines["cores"].to_numpy()
            )
        months.append(values)
    names = tuple(f"bitbrains/{vm}" for vm in machines.index)
    label = "bitbrains" if kind == _MHZ else "bitbrains-memory"
    return [(label, Table(names, _filled(np.concatenate(months)), first))]


def _cores(mhz: Floats, provisioned: Floats, cores: npt.NDArray[np.int64]) -> Floats:
    """Use in cores, no more than was provisioned; a VM that was off for the month has 0 MHz and uses nothing."""
    share = np.minimum(mhz, provisioned)
    return np.divide(share * cores, provisioned, out=np.where(np.isnan(share), np.nan, 0.0), where=provisioned > 0)


def _azure(root: Path, kind: str = "avg") -> Sequence[tuple[str, Table]]:
    """All VMs over the slots that all of them have."""
    frame = _wide(root / "azure-v1" / f"cpu_{kind}_pct.csv.gz")
    values = frame.to_numpy(dtype=np.float64).T
    ends = [int(np.flatnonzero(~np.isnan(column))[-1]) + 1 for column in values.T]
    usage = _filled(values[: min(ends)]) * (CORES_AT_FULL / 100.0)
    return [(f"azure-{kind}", Table(tuple(f"azure/{vm}" for vm in frame.index), usage))]


def _google(root: Path, kind: str = "cpu") -> Sequence[tuple[str, Table]]:
    """Jobs that have all ten days, joined over midnight."""
    frame = pd.read_csv(root / "google2011-jobs" / f"{kind}_pct.csv.gz").sort_values(["job", "day"])
    counts = frame.groupby("job")["day"].nunique()
    jobs = counts.index[counts == counts.max()]
    whole = frame[frame["job"].isin(jobs)].drop(columns=["job", "day"]).to_numpy(dtype=np.float64)
    usage = _filled(whole.reshape(len(jobs), -1).T) * (CORES_AT_FULL / 100.0)
    return [(f"google-{kind}", Table(tuple(f"google/{job}" for job in jobs), usage))]


def _planetlab(root: Path) -> Sequence[tuple[str, Table]]:
    """Each day for itself: they are weeks apart and their VMs differ."""
    days = []
    for path in sorted((root / "planetlab").glob("cpu_pct_*.csv.gz")):
        frame = _wide(path)
        label = f"planetlab-{path.name.removeprefix('cpu_pct_').removesuffix('.csv.gz')}"
        usage = _filled(frame.to_numpy(dtype=np.float64).T) * (CORES_AT_FULL / 100.0)
        days.append((label, Table(tuple(f"{label}/{vm}" for vm in frame.index), usage)))
    return days


PLANS: Final[Mapping[str, Plan]] = {
    "bitbrains": Plan(_bitbrains, 25, 6, 14 * _DAY_SLOTS),
    "azure": Plan(_azure, 25, 10, 14 * _DAY_SLOTS),
    "azure_max": Plan(lambda root: _azure(root, "max"), 25, 10, 14 * _DAY_SLOTS),
    "google": Plan(_google, 20, 12, 5 * _DAY_SLOTS),
    "planetlab": Plan(_planetlab, 30, 2, 10 * _DAY_SLOTS // 24),
    "bitbrains_memory": Plan(lambda root: _bitbrains(root, "mem_mib"), 25, 6, 14 * _DAY_SLOTS),
    "google_memory": Plan(lambda root: _google(root, "mem"), 20, 12, 5 * _DAY_SLOTS),
}
"""Traces by name; those called `_memory` are in MiB or the like, the others in cores."""


def export(replays: Sequence[Replay], path: str) -> None:
    """Write replays as one long Parquet file: time, node, series, usage, request."""
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE long (time BIGINT, node VARCHAR, series VARCHAR, usage DOUBLE, request DOUBLE)"
        )
        for replay in replays:
            prefix = f"{replay.name}/" if len(replays) > 1 else ""
            times = [int(replay.label(slot)) for slot in range(len(replay.usage))]
            for member, node in enumerate(replay.owner):
                part = pd.DataFrame({"time": times, "usage": replay.members[:, member]})
                connection.register("part", part)
                connection.execute(
                    "INSERT INTO long SELECT time, ?, ?, usage, ? FROM part",
                    [prefix + replay.nodes[node], f"{prefix}series-{member}", float(replay.requested[member])],
                )
        connection.table("long").write_parquet(path)


def main(argv: list[str] | None = None) -> int:
    """Write one trace; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=__doc__)
    parser.add_argument("name", choices=sorted(PLANS))
    parser.add_argument("--out", required=True, metavar="FILE.parquet")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    export(load(arguments.name, arguments.seed), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
