"""The benchmarks' page is what its maker makes, and figures, goals and misses stand on it."""

from __future__ import annotations

import pytest

from benchmarks import page
from benchmarks.colocation import Cell, judge, summarise
from benchmarks.report import RESULTS, Machine, Report
from tests.benchmarks.test_report import measurement, report_settings

MACHINE = Machine(cpus=2, cpu_model="X", memory_bytes=2 << 30, kernel="6.1", cgroup="v2", python="3.12.1")


def of(name, **results):
    return {name: Report(benchmark=name, command=f"python -m benchmarks.{name}", machine=MACHINE, results=results)}


def render(reports):
    return page.render(page.TEXT.read_text(), reports)


def test_the_committed_page_is_made_from_the_committed_results():
    assert page.PAGE.read_text() == page.render(page.TEXT.read_text(), page.load(RESULTS)), (
        "run python -m benchmarks.page"
    )


def test_without_results_each_benchmark_says_how_to_get_them():
    text = render({})
    for name in ("colocation", "reaction", "agent_cost", "crash"):
        assert f"python -m benchmarks.{name} --save" in text
    assert "<!--" not in text


@pytest.mark.parametrize(("value", "said"), [(59.5, "| at most 60 |"), (61.0, "| **missed**: at most 60 |")])
def test_a_figure_stands_beside_its_goal(value, said):
    text = render(of("reaction", throttle_ms_p99=value, settings={"policies": "contention"}))
    assert f"| `throttle_ms_p99` | {value:.3g} {said}" in text
    assert "2 CPUs (X), 2.0 GiB, Linux 6.1, cgroup v2, Python 3.12.1" in text
    assert "policies" not in text


def test_the_matrix_is_a_table_with_its_misses():
    cell = Cell("cpu", 60, 2)
    found = summarise([{name: measurement(4 if name == "alone" else 5, 0.9) for name in report_settings()}])
    cells = {cell.key: {**found, "missed": judge(cell, found)}}
    text = render(of("colocation", rounds=1, seconds=6.0, missed=["cpu/60/2: too slow"], cells=cells))
    assert "| cpu/60/2 * | 4.00 | 1.25x | 1.25x | 1.25 to 1.25 | 0.90 | 0.90 |" in text
    assert "- cpu/60/2: too slow" in text
    assert "All goals are met" in render(of("colocation", rounds=1, seconds=6.0, missed=[], cells=cells))


def test_a_result_that_the_page_has_no_place_for_is_an_error():
    with pytest.raises(ValueError, match="no place for other"):
        render(of("other", x=1))


def test_check_tells_a_page_that_was_changed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "PAGE", tmp_path / "benchmarks.md")
    assert page.main(["--check"]) == 1
    assert page.main([]) == 0
    assert page.main(["--check"]) == 0
    page.PAGE.write_text("1.00x")
    assert page.main(["--check"]) == 1
    assert "run it" in capsys.readouterr().err
