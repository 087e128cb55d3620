"""In which order and with which settings the cells of a round are measured, over a stand-in for the real runs."""

from __future__ import annotations

import contextlib

import pytest

from benchmarks import colocation
from benchmarks.colocation import Cell, measure_cells
from standalone.load.driver import LoadError
from tests.benchmarks.test_report import measurement


@pytest.fixture
def runs(monkeypatch):
    """What was run, in order; LS alone gets slower with each run."""
    seen = []

    def plain(plan, *, with_be):
        seen.append(("plain", plan.kind, plan.be_processes) if with_be else "alone")
        return measurement(10.0 if with_be else float(1 + seen.count("alone")), 0.5)

    def managed(_client, plan):
        assert seen[-1] != "down", "Slacktide runs"
        seen.append(("managed", plan.kind, plan.be_processes))
        return measurement(5.0, 0.9)

    @contextlib.contextmanager
    def running(settings):
        seen.append(("up", dict(settings)))
        try:
            yield None, None
        finally:
            seen.append("down")

    monkeypatch.setattr(colocation, "run_plain", plain)
    monkeypatch.setattr(colocation, "run_managed", managed)
    monkeypatch.setattr(colocation, "running", running)
    return seen


def test_one_cell_is_alone_unmanaged_managed(runs):
    cell = Cell("membw", 60, 4)
    found = measure_cells([cell], 2, 1.0, lambda _text: None)
    assert runs == ["alone", ("plain", "membw", 4), ("up", {}), ("managed", "membw", 4), "down"]
    assert found[cell]["managed"].be_idle_share == 0.9


def test_cells_of_a_load_share_what_ls_takes_alone_and_ballast_has_a_stack_of_its_own(runs):
    cells = [Cell("cpu", 60, 1), Cell("cpu", 60, 1, ballast=True)]
    found = measure_cells(cells, 2, 1.0, lambda _text: None)
    ballast = {"SLACKTIDE_AGENT_SPREAD__BALLAST": "true"}
    assert runs == [
        *("alone", ("plain", "cpu", 1), "alone"),
        *(("up", {}), ("managed", "cpu", 1), "down"),
        *(("up", ballast), ("managed", "cpu", 1), "down"),
        "alone",
    ]
    assert {measured["alone"].latencies.p99_millis for measured in found.values()} == {3.0}, "the middle of three"
    assert found.keys() == set(cells)


@pytest.mark.parametrize("failures", [1, colocation.ATTEMPTS])
def test_a_cell_that_cannot_run_gets_another_slacktide_and_the_others_keep_theirs(runs, monkeypatch, failures):
    cells = [Cell("cpu", 60, 1), Cell("cpu", 60, 2), Cell("cpu", 60, 4)]
    managed, left = colocation.run_managed, [failures]

    def closed(client, plan):
        if plan.be_processes == 2 and left[0]:
            left[0] -= 1
            raise LoadError("the node is closed")
        return managed(client, plan)

    monkeypatch.setattr(colocation, "run_managed", closed)
    if failures == colocation.ATTEMPTS:
        with pytest.raises(LoadError, match="closed"):
            measure_cells(cells, 2, 1.0, lambda _text: None)
        assert runs[-1] == "down"
        return
    assert measure_cells(cells, 2, 1.0, lambda _text: None).keys() == set(cells)
    steps = [run if run == "down" else run[0] for run in runs if run != "alone" and run[0] != "plain"]
    assert steps == ["up", "managed", "down", "up", "managed", "managed", "down"]


def test_each_cell_of_the_matrix_is_measured_in_each_round(runs, capsys):
    found = colocation._run(colocation.matrix(), rounds=2, seconds=1.0)
    assert found.keys() == {cell.key for cell in colocation.matrix()}
    assert {cell["rounds"] for cell in found.values()} == {2}
    assert sum(run[0] == "managed" for run in runs if isinstance(run, tuple)) == 2 * len(colocation.matrix())
    assert "round 2 of 2" in capsys.readouterr().err
