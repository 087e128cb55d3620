"""The common form of benchmark results, and how colocation sums up its rounds."""

from __future__ import annotations

import json

import pytest

from benchmarks import report
from benchmarks.colocation import summarise
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
