from __future__ import annotations

import dataclasses
import subprocess
import sys

import duckdb
import numpy as np
import pytest

from predictor import forecast, models
from predictor.backtest import forecasts
from predictor.backtest.forecasts import UnknownForecaster, named
from predictor.backtest.judge import judge
from predictor.backtest.replay import Replay, node_usage
from predictor.backtest.run import ClusterError, Plan, run
from predictor.backtest.trace import BadInput
from predictor.backtest.write import COLUMNS, WriteError, write

DAY = 288
SLOW = {"holt_winters", "lstm"}
QUICK = tuple(name for name in models.known() if name not in SLOW)
SPARSE = 4 * 3600.0
"""Between decisions, where a test asks for many forecasts."""
NAN = float("nan")


def made(days=3.0, nodes=4, pods=3, seed=1, requested=3.0, name="made"):
    """Nodes with a daily pattern, noise and bursts."""
    rng = np.random.default_rng(seed)
    slots, members = int(days * DAY), nodes * pods
    wave = 1 + np.sin(2 * np.pi * (np.arange(slots)[:, None] / DAY + rng.random(members)))
    values = wave * rng.uniform(0.2, 1, members) + rng.gamma(1.0, 0.1, (slots, members))
    values[rng.random(values.shape) < 0.01] += 1.0
    return replay_of(values, np.repeat(np.arange(nodes), pods), requested, name)


def replay_of(values, owner, requested=3.0, name="made"):
    nodes = int(owner.max()) + 1
    return Replay(
        name=name,
        slot_seconds=300.0,
        at0=1372629600.0,
        nodes=tuple(f"n{i:02d}" for i in range(nodes)),
        usage=node_usage(values, owner, nodes),
        members=values,
        owner=owner,
        requested=np.full(len(owner), requested),
        warmup_slots=len(values) // 3,
    )


def peaks(replay, model, **options):
    [result] = run([replay], Plan((model,), **options))
    return result


@pytest.fixture(scope="module")
def replay():
    return made(days=2.5)


@pytest.mark.parametrize("model", [*models.known(), "window_max+cal", "published"])
@pytest.mark.parametrize("horizon", [3600.0, 86400.0])
def test_no_forecast_depends_on_what_comes_later(replay, model, horizon):
    short = made(days=1.3) if model in SLOW else replay
    cut = len(short.members) * 2 // 3
    rng = np.random.default_rng(9)
    shifted = np.roll(short.members[cut:], 37, axis=0)
    louder = 5 * short.members[cut:] + rng.random(short.members[cut:].shape)
    nothing = np.full_like(louder, NAN)
    before = peaks(short, model, horizons=(horizon,), every_seconds=SPARSE)
    kept = before.script.slots < cut
    assert 0 < kept.sum() < len(kept)
    for future in (shifted, louder, nothing):
        other = replay_of(np.concatenate([short.members[:cut], future]), short.owner)
        after = peaks(other, model, horizons=(horizon,), every_seconds=SPARSE)
        np.testing.assert_array_equal(after.peaks[kept], before.peaks[kept])


@pytest.mark.parametrize("model", [*QUICK, "published"])
def test_the_order_of_series_and_nodes_does_not_matter(replay, model):
    order = np.random.default_rng(4).permutation(len(replay.owner))
    relabel = np.array([2, 0, 3, 1])
    moved = dataclasses.replace(
        replay_of(replay.members[:, order], relabel[replay.owner[order]]),
        nodes=tuple(np.array(replay.nodes)[np.argsort(relabel)]),
    )
    found = peaks(moved, model, every_seconds=SPARSE).peaks[:, relabel]
    # The sums of pods differ in their last digit, which may take a tree to another leaf.
    np.testing.assert_allclose(found, peaks(replay, model, every_seconds=SPARSE).peaks, rtol=0.02)


@pytest.mark.parametrize("model", [*QUICK, "published"])
def test_scaled_usage_scales_the_forecast(replay, model):
    scaled = replay_of(replay.members * 1024.0, replay.owner, requested=3.0 * 1024)
    found, before = (peaks(one, model, every_seconds=SPARSE).peaks for one in (scaled, replay))
    np.testing.assert_allclose(found, 1024.0 * before, rtol=1e-5)


@pytest.mark.parametrize("model", [*QUICK, "window_max+cal", "published"])
@pytest.mark.parametrize(("horizon", "slot"), [(3600.0, 480), (86400.0, 672)])
def test_the_library_gives_the_numbers_of_the_backtest(replay, model, horizon, slot):
    result = peaks(replay, model, horizons=(horizon,))
    number = int(np.flatnonzero(result.script.slots == slot)[0])
    at = result.script.label(slot)
    answer = forecast(
        replay.members[: slot + 1], replay.requested, 300.0, horizon, 0.01, nodes=replay.owner, model=model, at=at
    )
    np.testing.assert_array_equal(answer, result.peaks[number])


def test_the_library_answers_for_one_node_with_one_number(replay):
    values = replay.members[: 2 * DAY, :3]
    answer = forecast(values, 3.0)
    assert isinstance(answer, float)
    assert values.sum(axis=1)[-1] <= answer <= 9.0
    assert answer == forecast(values, [3.0] * 3, nodes=[0, 0, 0])[0]


def test_the_library_counts_a_cold_node_with_its_requests():
    assert forecast(np.ones((3, 2)), [2.0, 5.0]) == 7.0
    assert np.isnan(forecast(np.ones((3, 2))))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: forecast(np.ones((0, 2))), "usage has shape"),
        (lambda: forecast(np.ones((5, 2)), [1.0]), r"requests have shape \(1,\): give \(2,\)"),
        (lambda: forecast([[1.0, -1.0]]), r"usage\[0, 1\] is -1"),
        (lambda: forecast([[1.0, np.inf]]), r"usage\[0, 1\] is inf"),
        (lambda: forecast(np.ones((5, 2)), nodes=[0]), "nodes have shape"),
        (lambda: forecast(np.ones((5, 2)), nodes=[0.5, 1]), "whole numbers"),
        (lambda: forecast(np.ones((5, 2)), risk=0), "risk 0 makes no sense"),
        (lambda: forecast(np.ones((5, 2)), risk=1), "risk 1 makes no sense"),
        (lambda: forecast(np.ones((5, 2)), horizon_seconds=200), "shorter than a slot"),
        (lambda: forecast(np.ones((5, 2)), slot_seconds=0), "slots of 0 s"),
        (lambda: forecast(np.ones((5, 2)), horizon_seconds=1e9), "more than 7 days"),
    ],
)
def test_arrays_that_make_no_sense_are_refused_with_a_reason(call, said):
    with pytest.raises(BadInput, match=said):
        call()


def test_an_unknown_model_lists_the_known():
    with pytest.raises(UnknownForecaster, match=r"'boost' is not known; choose published, all, .*window_max"):
        forecast(np.ones((5, 2)), model="boost")
    assert named(("all",)) == (*models.known(), "published")
    assert named(("window_max", "published", "window_max")) == ("window_max", "published")


def test_forecasts_are_cut_at_requests_and_stand_for_them_where_nothing_is_known(replay):
    tight = dataclasses.replace(replay, requested=np.full(12, 0.5))
    result = peaks(tight, "window_max")
    assert result.peaks.max() == 1.5
    assert peaks(tight, "published").peaks[0].tolist() == [1.5] * 4


def test_a_node_that_comes_late_or_goes_has_forecasts_only_while_it_is_measured(tmp_path):
    replay = made()
    replay.members[:400, :3] = NAN
    replay.members[600:, 3:6] = NAN
    replay = dataclasses.replace(replay, usage=node_usage(replay.members, replay.owner, 4))
    for model in ("window_max", "published"):
        write([peaks(replay, model)], str(tmp_path / "f.parquet"))
        with duckdb.connect() as connection:
            found = connection.sql(
                f'SELECT node, min("at"), max("at"), count(*) FROM \'{tmp_path}/f.parquet\' GROUP BY 1 ORDER BY 1'
            ).fetchall()
        label = replay.label
        assert [(node, first, last) for node, first, last, _ in found] == [
            ("n00", label(408), label(852)),
            ("n01", label(0), label(588)),
            ("n02", label(0), label(852)),
            ("n03", label(0), label(852)),
        ]


def test_forecasts_are_written_a_row_a_node_and_decision(replay, tmp_path):
    path = str(tmp_path / "f.parquet")
    results = run([replay], Plan(("window_max", "published"), risks=(0.01, 0.05)))
    assert write(results, path) == 4 * 60 * 4
    with duckdb.connect() as connection:
        relation = connection.from_parquet(path)
        assert tuple(relation.columns) == COLUMNS
        assert [str(kind) for kind in relation.types] == ["VARCHAR", "BIGINT", "DOUBLE", "DOUBLE", "DOUBLE", "VARCHAR"]
        rows = connection.execute(
            "SELECT peak FROM read_parquet(?) WHERE node = 'n02' AND risk = 0.05 AND model = 'window_max'"
            ' ORDER BY "at"',
            [path],
        ).fetchall()
        assert connection.sql(f"SELECT count(*) FROM '{path}' WHERE \"at\" % 3600 <> 0").fetchall() == [(0,)]
    np.testing.assert_array_equal(np.array(rows)[:, 0], results[1].peaks[:, 2])


def test_what_nobody_knows_is_written_as_null(tmp_path):
    path = str(tmp_path / "f.parquet")
    replay = made(days=0.5, requested=NAN)
    write([peaks(replay, "published")], path)
    with duckdb.connect() as connection:
        assert connection.sql(
            f"SELECT count(*) FROM '{path}' WHERE peak IS NULL AND \"at\" = {replay.at0}"
        ).fetchall() == [(4,)]
        assert connection.sql(f"SELECT count(*) FROM '{path}' WHERE isnan(peak)").fetchall() == [(0,)]


def test_a_place_that_cannot_be_written_is_an_error_and_leaves_nothing(replay, tmp_path):
    with pytest.raises(WriteError, match="cannot be written"):
        write([peaks(replay, "window_max")], str(tmp_path / "no" / "f.parquet"))
    assert not list(tmp_path.iterdir())


def test_a_pool_gives_the_numbers_of_one_process_and_tells_how_far_it_is(replay):
    plan = Plan(("window_max", "n_sigma"))
    told = []
    pooled = run(
        [replay, made(seed=2)], dataclasses.replace(plan, jobs=2), lambda done, total: told.append((done, total))
    )
    alone = run([replay, made(seed=2)], plan)
    assert [(r.replay, r.model) for r in pooled] == [
        (0, "window_max"),
        (0, "n_sigma"),
        (1, "window_max"),
        (1, "n_sigma"),
    ]
    for one, other in zip(pooled, alone, strict=True):
        np.testing.assert_array_equal(one.peaks, other.peaks)
    assert told == sorted(told)
    assert told[-1][1] == 60 * 2 + 72 * 2


def test_an_error_in_the_pool_is_the_error_of_the_run(replay, monkeypatch):
    broken = dataclasses.replace(replay, usage=replay.usage[:, :2])
    with pytest.raises(Exception, match=r"."):
        run([broken, broken], Plan(("window_max",), jobs=2))


def test_a_dask_cluster_gives_the_same_numbers(replay):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="inproc://"
    ) as cluster:
        plan = Plan(("window_max", "published"), scheduler=cluster.scheduler_address)
        for one, other in zip(
            run([replay], plan), run([replay], dataclasses.replace(plan, scheduler=None)), strict=True
        ):
            np.testing.assert_array_equal(one.peaks, other.peaks)


def test_a_scheduler_that_does_not_answer_is_an_error(replay, monkeypatch):
    monkeypatch.setattr("predictor.backtest.run._CONNECT_SECONDS", 0.3)
    with pytest.raises(ClusterError, match=r"no Dask scheduler answers at tcp://127.0.0.1:1"):
        run([replay], Plan(("window_max",), scheduler="tcp://127.0.0.1:1"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"risks": (0.0,)}, "risk 0 makes no sense"),
        ({"risks": (1.0,)}, "risk 1 makes no sense"),
        ({"horizons": (60.0,)}, "made: a horizon of 60 s is shorter than a slot"),
        ({"horizons": (8 * 86400.0,)}, "more than 7 days"),
        ({"every_seconds": 60.0}, "closer than slots"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(replay, options, said):
    with pytest.raises(BadInput, match=said):
        run([replay], Plan(("window_max",), **options))


def test_verdicts_are_in_order_and_pool_all_replays(replay):
    replays = [replay, made(seed=2)]
    verdicts = judge(replays, run(replays, Plan(("window_max", "published"), horizons=(3600.0, 7200.0))))
    assert [(v.model, v.horizon_seconds) for v in verdicts] == [
        ("window_max", 3600.0),
        ("published", 3600.0),
        ("window_max", 7200.0),
        ("published", 7200.0),
    ]
    assert all(v.score.nodes == 8 for v in verdicts)


def test_one_series_alone_can_be_replayed():
    replay = made(nodes=1, pods=1)
    assert np.isfinite(peaks(replay, "published").peaks).all()


def test_importing_the_predictor_does_not_load_the_backtest():
    code = (
        "import sys, predictor; sys.exit(any(n.startswith('predictor.backtest') or n == 'numpy' for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_engines_see_no_series_that_is_gone_for_longer_than_they_look_back(monkeypatch):
    monkeypatch.setattr(forecasts, "HISTORY_DAYS", 1.0)
    replay = made()
    replay.members[100:, :3] = NAN
    replay = dataclasses.replace(replay, usage=node_usage(replay.members, replay.owner, 4))
    result = peaks(replay, "window_max")
    assert np.isnan(result.peaks[-1, 0])
    assert np.isfinite(result.peaks[-1, 1:]).all()
