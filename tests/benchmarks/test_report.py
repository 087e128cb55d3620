"""The common form of benchmark results, and how colocation sums up its rounds."""

from __future__ import annotations

import json

import pytest

from benchmarks import report
from benchmarks.colocation import Cell, judge, matrix, summarise, table
from standalone.load.colocation import Measurement
from standalone.load.driver import Latencies


def measurement(p99, share):
    return Measurement(Latencies(p99 / 4, p99, p99 * 2, 1000, 0), share, 1.2)


def test_ratios_are_taken_inside_a_round_before_the_median():
    rounds = [
        {"alone": measurement(4, None), "unmanaged": measurement(40, 0.9), "managed": measurement(4.4, 0.8)},
        {"alone": measurement(8, None), "unmanaged": measurement(16, 0.7), "managed": measurement(8.8, 0.9)},
        {"alone": measurement(2, None), "unmanaged": measurement(10, 0.8), "managed": measurement(3.0, 0.7)},
    ]
    results = summarise(rounds)
    assert results["ls_p99_ratio_managed"] == pytest.approx(1.1)
    assert results["ls_p99_ratio_unmanaged"] == pytest.approx(5.0)
    assert results["be_idle_share"] == pytest.approx(0.8)
    assert results["ls_p99_millis_alone"] == 4
    assert results["rounds"] == 3


@pytest.mark.parametrize(
    ("cell", "p99", "share", "missed"),
    [
        (Cell("cpu", 60, 2), 4.2, 0.88, 0),
        (Cell("cpu", 60, 2), 4.3, 0.87, 2),
        (Cell("cpu", 30, 2), 4.6, 0.9, 0),
        (Cell("cpu", 80, 1, ballast=True), 4.8, 0.4, 0),
        (Cell("cpu", 80, 1), 4.9, 0.4, 1),
        (Cell("sleepwake", 60, 4), 4.2, 0.3, 0),
    ],
)
def test_a_cell_is_judged_by_its_load_and_threads(cell, p99, share, missed):
    found = summarise([{name: measurement(4 if name == "alone" else p99, share) for name in report_settings()}])
    assert len(judge(cell, found)) == missed
    row = table({cell.key: {**found, "missed": judge(cell, found)}})[1]
    assert row[0].endswith("*") is bool(missed)
    assert row[4] == f"{p99 / 4:.2f} to {p99 / 4:.2f}"


def report_settings():
    return ("alone", "unmanaged", "managed")


def test_the_matrix_has_all_loads_numbers_and_kinds_once():
    cells = matrix()
    assert len(cells) == len({cell.key for cell in cells}) == len(set(cells))
    assert {(cell.load, cell.threads) for cell in cells} >= {(load, n) for load in (30, 60, 80) for n in (1, 2, 4, 8)}
    assert {cell.kind for cell in cells} == {"cpu", "membw", "forkstorm", "pagecache", "sleepwake"}
    assert {cell.threads for cell in cells if cell.ballast} == {1}


def test_a_kept_result_is_the_same_document(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    report.emit("any", {"x": 1.0}, "json", save=True)
    assert json.loads((tmp_path / "results" / "any.json").read_text()) == json.loads(capsys.readouterr().out)


def test_rows_are_aligned(capsys):
    report.emit("any", {}, "table", rows=[["a", "long"], ["longer", "b"]])
    assert capsys.readouterr().out.endswith("a       long\nlonger  b   \n")


def test_json_form_has_the_four_parts(capsys):
    report.emit("colocation", {"be_idle_share": 0.9}, "json")
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"benchmark", "command", "machine", "results"}
    assert document["command"].startswith("python -m benchmarks.colocation")
    assert document["machine"]["cpus"] >= 1


def test_quick_and_output_are_arguments_of_every_benchmark():
    arguments = report.parser("any", "text").parse_args(["--quick", "--output", "json"])
    assert arguments.quick
    assert arguments.output == "json"
