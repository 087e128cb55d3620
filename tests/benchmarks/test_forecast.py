from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from benchmarks import forecast, report
from predictor.training.rows import FOLDS


@pytest.fixture
def planetlab(tmp_path, monkeypatch):
    """Four short days of 40 machines, and weights that nobody has to fit."""
    monkeypatch.setenv("SLACKTIDE_TRACES", str(tmp_path))
    (tmp_path / "planetlab").mkdir()
    for number in range(4):
        values = np.random.default_rng(number).gamma(2.0, 8.0, (40, 288)).round()
        rows = ["vm," + ",".join(map(str, range(288)))]
        rows += [f"m{i}," + ",".join(f"{value:g}" for value in row) for i, row in enumerate(values)]
        packed = gzip.compress("\n".join(rows).encode())
        (tmp_path / "planetlab" / f"cpu_pct_2011010{number}.csv.gz").write_bytes(packed)
    return tmp_path


def unit(**changes):
    given = {
        "trace": "planetlab",
        "fold": 0,
        "horizon": "1h",
        "models": ("window_max", "n_sigma_5", "oracle"),
        "risks": (0.01,),
        "weights": "/nonexistent",
        "seed": 0,
    }
    return forecast.Unit(**{**given, **changes})


def test_every_node_is_scored_in_one_part(planetlab):
    nodes = 0
    for fold in range(FOLDS):
        found = forecast.work(unit(fold=fold))
        if found:
            assert set(found) == {("window_max", 0.01), ("n_sigma_5", 0.01), ("oracle", 0.01)}
            nodes += sum(len(part["savings"]) for part in found["window_max", 0.01])
    assert nodes == 4 * 2


def test_results_have_the_figures_of_every_model(planetlab):
    parts = {}
    for fold in range(FOLDS):
        for (name, risk), found in forecast.work(unit(fold=fold)).items():
            parts.setdefault((False, "1h", "planetlab", name, risk), []).extend(found)
    found = forecast.results(parts)
    oracle, static = (found["1h"]["planetlab"][name] for name in ("oracle", "window_max"))
    assert oracle["violation_percent"] == 0
    assert oracle["savings_percent"] > static["savings_percent"]
    assert {"savings_percent", "violation_percent", "severity_percent", "giveback_percent"} <= set(static)
    heading, *rows = forecast.table(found)
    assert heading[0] == "horizon, model"
    assert [row[0] for row in rows] == ["1h n_sigma_5", "1h oracle", "1h window_max"]
    assert rows[0][1 + forecast.TRACES.index("azure")] == "-"


def test_other_risks_and_foreign_weights_stand_apart():
    part = {name: np.array([0.5]) for name in ("decisions", *forecast.FIGURES)}
    keys = [
        (foreign, "1h", "google", "published", risk) for foreign, risk in ((False, 0.05), (False, 0.01), (True, 0.01))
    ]
    found = forecast.results({key: [part] for key in keys})
    assert found["risks"]["5"]["1h"]["google"]["published"]["savings_percent"] == 50
    assert found["foreign"]["1h"]["google"]["published"]["savings_percent"] == 50
    titles = [row[0] for row in forecast.table(found)[1:]]
    assert titles == ["1h published", "1h foreign published", "1h at 5 % published"]


def test_weights_are_fitted_without_the_part_that_is_scored_and_only_once(tmp_path, monkeypatch):
    from predictor.training import fit

    class Part:
        fold = np.array([0, 1, 2])

        def where(self, kept):
            return self.fold[kept].tolist()

    seen = []
    monkeypatch.setattr(forecast, "_rows", lambda hours: {"google": Part(), "azure": Part()})
    monkeypatch.setattr(fit, "fit", lambda hours, out, rows, memory: seen.append((out.name, rows)) or [])
    monkeypatch.setattr(fit, "write_prior", lambda out, hours, entries: None)
    for _ in range(2):
        assert forecast.fitted(tmp_path, "1h", fold=1) == tmp_path / "fold-1"
    assert seen == [("fold-1", {"google": [0, 2], "azure": [0, 2]})]
    forecast.fitted(tmp_path, "1h", without="google")
    assert list(seen[1][1]) == ["azure"]


def test_the_command_prints_and_keeps_its_result(planetlab, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(forecast, "fitted", lambda *_args, **_options: tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "kept")
    options = ["--trace", "planetlab", "--horizon", "1h", "--model", "window_max", "--jobs", "1", "--output", "json"]
    assert forecast.main([*options, "--save"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "kept" / "forecast.json").read_text())
    assert told["results"]["1h"]["planetlab"]["window_max"]["nodes"] == 8
