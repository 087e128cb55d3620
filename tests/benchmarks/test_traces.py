from __future__ import annotations

import gzip

import numpy as np
import pytest

from benchmarks import traces
from slacktide.errors import SlacktideError


def wide(path, heading, rows):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress("\n".join([",".join(map(str, r)) for r in [heading, *rows]]).encode()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SLACKTIDE_TRACES", str(tmp_path))
    return tmp_path


def test_bitbrains_is_capped_in_cores_filled_and_joined(folder):
    (folder / "bitbrains-rnd").mkdir()
    (folder / "bitbrains-rnd" / "vms.csv").write_text(
        "vm,cores,cap_mhz_07,cap_mhz_08,cap_mhz_09,mem_cap_mib,coverage_07,coverage_08,coverage_09\n"
        "1,2,4000,4000,0,1,0.9,1,1\n2,1,1000,1000,1000,1,0.89,1,1\n"
    )
    for month, start in (("07", 600), ("08", 90000), ("09", 180000)):
        name = f"cpu_mhz_2013-{month}.csv.gz"
        wide(folder / "bitbrains-rnd" / name, ["vm", start, start + 300], [[1, 9000, ""], [2, 1, 1]])
    [replay] = traces.load("bitbrains")
    assert replay.at0 == 600
    assert replay.members[:, 0].tolist() == [2.0, 2.0, 2.0, 2.0, 0.0, 0.0]
    assert replay.members.shape == (6, 6)


def test_google_keeps_the_jobs_with_all_days(folder):
    wide(
        folder / "google2011-jobs" / "cpu_pct.csv.gz",
        ["job", "day", 0, 1],
        [[7, 2, 30, 40], [7, 1, 10, 20], [8, 1, 1, 1]],
    )
    [replay] = traces.load("google")
    assert (replay.usage[:, 0] * 25).tolist() == [10, 20, 30, 40]


def test_planetlab_is_a_replay_a_day(folder):
    for day in ("20110303", "20110306"):
        wide(folder / "planetlab" / f"cpu_pct_{day}.csv.gz", ["vm", 0, 1], [["a", 10, 50]])
    replays = traces.load("planetlab")
    assert [replay.name for replay in replays] == ["planetlab-20110303", "planetlab-20110306"]
    assert replays[0].usage[:, 0].tolist() == [0.4, 2.0]


def test_folds_share_no_series(folder):
    rows = [[vm, *np.random.default_rng(vm).integers(1, 99, 20)] for vm in range(80)]
    wide(folder / "azure-v1" / "cpu_avg_pct.csv.gz", ["vm", *range(20)], rows)
    parts = [traces.load("azure", fold=fold)[0] for fold in range(2)]
    found = [{tuple(column) for column in part.members.T} for part in parts]
    assert found[0].isdisjoint(found[1])
    assert all(len(part) >= 25 for part in found)


def test_an_unknown_trace_lists_the_known():
    with pytest.raises(SlacktideError, match="azure, azure_max"):
        traces.load("azur")


def test_no_traces_are_an_error_that_says_where_they_may_lie(monkeypatch):
    monkeypatch.setenv("SLACKTIDE_TRACES", "/nonexistent")
    with pytest.raises(SlacktideError, match="SLACKTIDE_TRACES"):
        traces.load("azure")
