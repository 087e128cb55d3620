from __future__ import annotations

import json

import duckdb
import numpy as np
import pytest


@pytest.fixture
def long(tmp_path):
    """Two nodes of two series over two days, and a header that says so."""
    path = tmp_path / "use.csv"
    rng = np.random.default_rng(1)
    lines = ["time,series,node,usage,request"]
    for series, node in (("a", "n1"), ("b", "n1"), ("c", "n2"), ("d", "n2")):
        values = np.round(rng.gamma(3.0, 0.2, 576), 3)
        lines += [f"{slot * 300},{series},{node},{value},{values.max()}" for slot, value in enumerate(values)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture
def wide(tmp_path):
    path = tmp_path / "cpu.csv"
    rng = np.random.default_rng(2)
    lines = ["vm," + ",".join(map(str, range(288)))]
    lines += [f"v{i}," + ",".join(f"{value:.2f}" for value in rng.gamma(3.0, 1.0, 288)) for i in range(7)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_table_has_a_line_a_model_horizon_and_risk(command, out, err, long):
    assert (
        command("backtest", long, "--model", "window_max,n_sigma", "--horizon", "1h", "--risk", "0.01", "--jobs", "1")
        == 0
    )
    heading, *lines = out.text.splitlines()
    assert heading.split()[:2] == ["MODEL", "HORIZON"]
    assert [line.split()[:3] for line in lines] == [["window_max", "1h", "1"], ["n_sigma", "1h", "1"]]
    assert "only 48 hours" not in err.text


def test_forecasts_are_written_and_json_has_every_figure(command, out, err, long, tmp_path):
    path, plot = str(tmp_path / "f.parquet"), str(tmp_path / "p.png")
    options = ("--out", path, "--plot", plot, "--warmup", "1d", "--jobs", "1", "-o", "json")
    assert command("backtest", long, "--model", "window_max", "--model", "window_max+cal", *options) == 0
    told = json.loads(out.text)
    assert [line["model"] for line in told["results"]] == ["window_max", "window_max+cal"]
    first = told["results"][0]
    assert first["nodes"] == 2
    assert first["decisions"] == 2 * 23
    assert first["savings_percent"]["low"] <= first["savings_percent"]["mean"] <= first["savings_percent"]["high"]
    assert told["forecast_rows"] == 2 * 2 * 48
    with duckdb.connect() as connection:
        assert connection.execute('SELECT count(*), min("at") FROM read_parquet(?)', [path]).fetchall() == [(192, 0)]
    with open(plot, "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_wide_files_are_packed_when_asked(command, out, err, wide):
    assert command("backtest", wide, "--pack", "3", "--passes", "2", "--model", "window_max", "-o", "json") == 0
    told = json.loads(out.text)
    assert told["results"][0]["nodes"] == 4
    assert any("packed into 4 nodes" in note for note in told["notes"])
    assert "packed into 4 nodes" in err.text


def test_a_part_of_the_series_can_be_scored(command, out, wide):
    assert command("backtest", wide, "--split", "1/2", "--model", "window_max", "-o", "json") == 0
    assert 0 < json.loads(out.text)["results"][0]["nodes"] < 7


def test_nothing_to_score_is_said(command, out, err, long):
    assert command("backtest", long, "--warmup", "2d", "--model", "window_max", "--jobs", "1") == 0
    assert "no decision is scored" in err.text
    assert out.text.splitlines()[1].split()[3:] == ["-"] * 7 + ["0"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "windowmax"), "model 'windowmax' is not known"),
        (("--risk", "0"), "risk 0 makes no sense"),
        (("--risk", "1"), "risk 1 makes no sense"),
        (("--horizon", "1m"), "shorter than a slot"),
        (("--horizon", "soon"), "'soon' is no duration"),
        (("--split", "3/2"), "'3/2' is no part"),
        (("--every", "1m"), "closer than slots"),
    ],
)
def test_options_that_make_no_sense_are_bad_input(command, err, long, options, said):
    assert command("backtest", long, *options) == 2
    assert said in err.text


def test_a_bad_file_is_bad_input_with_file_and_row(command, err, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("time,series,usage\n0,a,1\n300,a,-1\n")
    assert command("backtest", str(path)) == 2
    assert f"slacktide: {path} line 3: usage '-1' is negative" in err.text
    assert command("backtest", str(path), "--skip-bad-rows", "--model", "window_max") == 0
    assert "1 bad rows dropped" in err.text


def test_what_cannot_be_written_or_reached_has_failed(command, err, long, monkeypatch):
    assert command("backtest", long, "--model", "window_max", "--jobs", "1", "--out", "/nonexistent/f.parquet") == 1
    assert "/nonexistent/f.parquet: cannot be written" in err.text
    monkeypatch.setattr("predictor.backtest.run._CONNECT_SECONDS", 0.3)
    assert command("backtest", long, "--model", "window_max", "--scheduler", "tcp://127.0.0.1:1") == 1
    assert "no Dask scheduler answers" in err.text
