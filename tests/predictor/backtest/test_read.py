"""Every bad input of the issue, each with its file, row and remedy."""

from __future__ import annotations

import gzip

import duckdb
import numpy as np
import pytest

from predictor.backtest.nodes import Layout, Split, replays
from predictor.backtest.read import read
from predictor.backtest.trace import BadInput, Reading

NAN = float("nan")
SKIP = Reading(skip_bad_rows=True)


@pytest.fixture
def csv(tmp_path):
    def write(text, name="use.csv"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def rows(times, series="a", usage=1.0):
    return "".join(f"{time},{series},{usage}\n" for time in times)


def long(body, heading="time,series,usage"):
    return f"{heading}\n{body}"


def one(paths, reading=None):
    [trace] = read([paths] if isinstance(paths, str) else paths, reading)
    return trace


def test_a_long_file_becomes_series_on_a_grid_with_gaps_as_gaps(csv):
    trace = one(csv(long("0,a,n1,1,4\n300,a,n1,2,4\n900,a,n1,3,4\n300,b,n2,5,\n", "time,series,node,usage,request")))
    np.testing.assert_array_equal(trace.usage, [[1, NAN], [2, 5], [NAN, NAN], [3, NAN]])
    assert (trace.series, trace.node, trace.slot_seconds, trace.at0) == (("a", "b"), ("n1", "n2"), 300.0, 0.0)
    np.testing.assert_array_equal(trace.requested, [4, NAN])


@pytest.mark.parametrize(
    "times",
    [
        (1577836800, 1577837100),
        (1577836800000, 1577837100000),
        (1577836800000000, 1577837100000000),
        (1577836800000000000, 1577837100000000000),
        ("1577836800.0", "1577837100.0"),
        ("2020-01-01T00:00:00Z", "2020-01-01T00:05:00Z"),
        ("2020-01-01 01:00:00+01", "2020-01-01 01:05:00+01:00"),
        ("2020-01-01T01:00:00+0100", "2020-01-01T00:05:00Z"),
        ("2020-01-01 00:00:00", "2020-01-01 00:05:00"),
    ],
)
def test_times_may_be_epochs_in_any_unit_or_iso(csv, times):
    trace = one(csv(long(rows(times))))
    assert (trace.at0, trace.usage[:, 0].tolist()) == (1577836800.0, [1.0, 1.0])


@pytest.mark.parametrize(
    "heading", ["Timestamp,Pod,cpu_usage", "ts,vm,value", "slot start,series-id,Cores", "epoch_ms,id,used"]
)
def test_columns_have_the_names_that_people_give_them(csv, heading):
    assert one(csv(long(rows((0, 300)), heading))).series == ("a",)


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_other_separators_are_found(csv, separator):
    assert one(csv(long(rows((0, 300, 600))).replace(",", separator))).usage.shape == (3, 1)


def test_gzip_and_parquet_are_read_alike(csv, tmp_path):
    text = long(rows((0, 300), usage=0.1))
    plain = csv(text)
    packed = tmp_path / "use.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    parquet = str(tmp_path / "use.parquet")
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT * FROM (VALUES (TIMESTAMP '1970-01-01 00:00:00', 'a', 0.1::DOUBLE),"
            " (TIMESTAMP '1970-01-01 00:05:00', 'a', 0.1::DOUBLE)) AS v(time, series, usage)"
        )
        connection.table("t").write_parquet(parquet)
    for path in (plain, str(packed), parquet):
        np.testing.assert_array_equal(one(path).usage, [[0.1], [0.1]])


def test_a_float_of_parquet_is_not_rounded_by_text(tmp_path):
    path = str(tmp_path / "use.parquet")
    with duckdb.connect() as connection:
        connection.sql("SELECT i * 300 AS time, 'a' AS series, 0.1::FLOAT AS usage FROM range(3) t(i)").write_parquet(
            path
        )
    assert one(path).usage[0, 0] == float(np.float32(0.1))


def test_without_columns_of_series_and_node_all_rows_are_one_series(csv):
    trace = one(csv("time,usage\n0,1\n300,2\n"))
    assert trace.usage[:, 0].tolist() == [1, 2]
    assert any("one series" in note for note in trace.notes)


def test_a_series_on_two_nodes_is_one_on_each(csv):
    trace = one(csv(long("0,a,n1,1\n300,a,n2,2\n", "time,series,node,usage")))
    assert (trace.series, trace.node) == (("a", "a"), ("n1", "n2"))


def test_fine_samples_stand_for_a_slot_as_in_the_product(csv):
    text = long("".join(f"{i * 30},a,{i}\n" for i in range(20)))
    assert one(csv(text)).usage[:, 0].tolist() == [8, 18]
    assert one(csv(text), Reading("memory")).usage[:, 0].tolist() == [9, 19]


def test_times_that_may_count_slots_are_asked_about(csv):
    trace = one(csv(long(rows(range(20)))))
    assert any("multiply it by their seconds" in note for note in trace.notes)


def test_coarse_samples_keep_their_own_slot(csv):
    trace = one(csv(long(rows((0, 3600, 7200)))))
    assert trace.slot_seconds == 3600.0
    assert any("3600 s apart" in note for note in trace.notes)


def test_samples_beside_the_grid_keep_their_own_times_as_labels(csv):
    trace = one(csv(long(rows((1000000007, 1000000307, 1000000607)))))
    assert trace.at0 == 1000000007.0


def test_requests_that_change_stand_until_the_next(csv):
    trace = one(csv(long("0,a,1,2\n300,a,1,\n600,a,1,5\n", "time,series,usage,request")))
    assert trace.requested[:, 0].tolist() == [2, 2, 5]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (rows((0, "soon")), r"use.csv line 3: time 'soon' cannot be read: give epoch seconds"),
        (rows(("2020-01-01T00:00:00Z", "2020-01-01 00:05:00")), r"line 3: time .* has no time zone while others have"),
        ("0,a,1\n300,a,-0.5\n", r"line 3: usage '-0.5' is negative"),
        ("0,a,1\n300,a,inf\n", r"line 3: usage 'inf' is not finite"),
        ("0,a,1\n300,a,1 core\n", r"line 3: usage '1 core' is no number"),
        ("0,a,1\n300,a,1e12\n600,a,2\n900,a,3\n", r"line 3: usage '1e12' is over a million times the median"),
        ("0,a,1\n300,,1\n", r"line 3: the series is empty"),
    ],
)
def test_a_bad_row_is_named_and_may_be_dropped(csv, body, said):
    path = csv(long(body))
    with pytest.raises(BadInput, match=said) as error:
        read([path])
    assert "--skip-bad-rows" in str(error.value)
    trace = one(path, SKIP)
    assert any("1 bad rows dropped" in note for note in trace.notes)
    assert (~np.isnan(trace.usage)).sum() == body.count("\n") - 1


def test_all_kinds_of_problems_are_told_at_once(csv):
    with pytest.raises(BadInput, match=r"line 2: usage '-1' is negative \(and 1 more such rows\).*line 3: usage 'inf'"):
        read([csv(long("0,a,-1\n300,a,inf\n600,a,-2\n900,a,1\n"))])


def test_a_bad_row_of_parquet_is_counted_from_one(tmp_path):
    path = str(tmp_path / "use.parquet")
    with duckdb.connect() as connection:
        connection.sql("SELECT i * 300 AS time, 'a' AS series, 1 - i AS usage FROM range(3) t(i)").write_parquet(path)
    with pytest.raises(BadInput, match=r"use.parquet row 3: usage '-1' is negative"):
        read([path])


@pytest.mark.parametrize("word", ["", "NaN", "null", "-"])
def test_words_for_missing_are_gaps_and_no_error(csv, word):
    np.testing.assert_array_equal(one(csv(long(f"0,a,1\n300,a,{word}\n600,a,2\n"))).usage[:, 0], [1, NAN, 2])


def test_times_out_of_order_are_sorted_and_that_is_said(csv):
    trace = one(csv(long("600,a,3\n0,a,1\n300,a,2\n")))
    assert trace.usage[:, 0].tolist() == [1, 2, 3]
    assert any("not in order" in note for note in trace.notes)


def test_equal_duplicates_are_merged_and_that_is_said(csv):
    trace = one(csv(long("0,a,1\n0,a,1\n300,a,2\n300,a,\n")))
    assert trace.usage[:, 0].tolist() == [1, 2]
    assert "2 repeated rows merged" in trace.notes


def test_contradicting_duplicates_are_an_error_naming_both_rows(csv):
    path = csv(long("0,a,1\n300,a,2\n0,a,7\n"))
    with pytest.raises(BadInput, match=r"use.csv line 4: usage of series 'a' at the time of .*use.csv line 2 differs"):
        read([path])
    assert one(path, SKIP).usage[:, 0].tolist() == [7, 2]


def test_times_in_several_zones_are_instants_and_that_is_said(csv):
    trace = one(csv(long("2020-01-01T00:00:00+00:00,a,1\n2020-01-01T01:05:00+01:00,a,2\n")))
    assert trace.usage[:, 0].tolist() == [1, 2]
    assert any("2 zones" in note for note in trace.notes)


def test_times_without_a_zone_are_utc_and_that_is_said(csv):
    assert any("UTC" in note for note in one(csv(long("2020-01-01 00:00:00,a,1\n2020-01-01 00:05:00,a,1\n"))).notes)


def test_a_request_below_use_is_said_with_its_row(csv):
    trace = one(csv(long("0,a,1,2\n300,a,3,2\n", "time,series,usage,request")))
    assert any("use.csv line 3: 3 of 2" in note for note in trace.notes)


def test_a_constant_series_is_said(csv):
    assert any("never change" in note for note in one(csv(long(rows((0, 300, 600))))).notes)


def test_one_day_of_data_is_said(csv):
    trace = one(csv(long("".join(f"{i * 300},a,{i}\n" for i in range(288)))))
    assert any("only 24 hours of data" in note for note in trace.notes)


def test_nothing_measured_at_all_is_an_error(csv):
    with pytest.raises(BadInput, match="no row has a usage"):
        read([csv(long("0,a,\n300,a,\n"))])


def test_a_series_without_any_usage_is_left_out_and_that_is_said(csv):
    trace = one(csv(long("0,a,1\n300,a,2\n0,b,\n300,b,\n")))
    assert trace.series == ("a",)
    assert any("without any usage left out (first: b)" in note for note in trace.notes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("when,series,usage\n0,a,1\n", "no column for the time; it has when, series, usage"),
        ("time,series,load\n0,a,1\n", "no column for the usage"),
        ("time,series,usage\n", "no rows"),
        ("", "is empty"),
    ],
)
def test_wrong_columns_are_named_with_those_that_are_wanted(csv, text, said):
    with pytest.raises(BadInput, match=said):
        read([csv(text)])


def test_a_file_that_is_not_there_or_no_table_is_an_error(tmp_path):
    with pytest.raises(BadInput, match=r"nowhere.csv: .*No such file"):
        read([str(tmp_path / "nowhere.csv")])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadInput, match="cannot be read"):
        read([str(tmp_path / "bad.parquet")])


def test_a_timeline_too_long_for_memory_is_an_error(csv):
    body = "".join(f"{t},s{i},1\n" for i in range(200) for t in (0, 300, 10**9))
    with pytest.raises(BadInput, match=r"do not fit into memory; split it"):
        read([csv(long(body))])


def test_long_files_are_joined_in_time(csv):
    trace = one([csv(long(rows((0, 300))), "one.csv"), csv(long(rows((600,), usage=2)), "two.csv")])
    assert trace.usage[:, 0].tolist() == [1, 1, 2]


# Wide files.


def test_a_wide_file_counts_its_slots(csv):
    trace = one(csv("vm,0,1,2\n7,1.5,,3\nx,4,5,6\n"))
    np.testing.assert_array_equal(trace.usage, [[1.5, 4], [NAN, 5], [3, 6]])
    assert (trace.series, trace.at0, trace.slot_seconds, trace.node) == (("7", "x"), 0.0, 300.0, None)


def test_wide_files_with_epochs_are_joined_in_time(csv):
    first = csv("vm,1372629600,1372629900\n1,1,2\n2,5,6\n", "a.csv")
    second = csv("vm,1372630500,1372630800\n2,7,8\n1,3,4\n", "b.csv")
    trace = one([second, first])
    np.testing.assert_array_equal(trace.usage, [[5, 1], [6, 2], [NAN, NAN], [7, 3], [8, 4]])
    assert trace.at0 == 1372629600.0


def test_days_of_a_wide_file_are_joined(csv):
    heading = "job,day," + ",".join(map(str, range(288)))
    day = ",".join("1" for _ in range(288))
    trace = one(csv(f"{heading}\nj,3,{day}\nj,1,{day}\nk,1,{day}\n"))
    assert trace.usage.shape == (3 * 288, 2)
    assert np.isnan(trace.usage[288:576, 0]).all()
    assert trace.usage[600, 0] == 1


def test_wide_files_that_count_slots_are_timelines_of_their_own(csv):
    found = read([csv("vm,0,1\na,1,2\n", "d1.csv"), csv("vm,0,1\na,3,4\n", "d2.csv")])
    assert [trace.usage[:, 0].tolist() for trace in found] == [[1, 2], [3, 4]]
    made, _ = replays(found, Layout())
    assert [replay.nodes for replay in made] == [("d1/a",), ("d2/a",)]


def test_a_wide_file_may_name_node_and_request(csv):
    trace = one(csv("series,node,request,0,1\na,n1,4,1,2\nb,n1,5,3,4\n"))
    assert (trace.node, trace.requested.tolist()) == (("n1", "n1"), [4, 5])


def test_a_row_that_says_the_same_again_is_left_out_and_another_is_told_apart(csv):
    trace = one(csv("vm,0,1\na,1,2\na,1,2\na,3,4\n"))
    assert trace.series == ("a", "a#2")
    assert sum("of series 'a'" in note for note in trace.notes) == 2


@pytest.mark.parametrize(
    ("cell", "why"), [("-1", "negative"), ("inf", "not finite"), ("x", "no number"), ("1e12", "over a million")]
)
def test_a_bad_cell_is_named_and_may_be_a_gap(csv, cell, why):
    path = csv(f"vm,0,1,2\na,1,2,3\nb,1,{cell},3\n")
    with pytest.raises(BadInput, match=rf"use.csv line 3 column 1: .* is {why}"):
        read([path])
    assert np.isnan(one(path, SKIP).usage[1, 1])


def test_a_wide_file_without_names_is_an_error(csv):
    with pytest.raises(BadInput, match="no column names the series"):
        read([csv("0,1,2\n1,2,3\n")])


# Nodes.


def test_each_series_is_a_node_of_its_own_when_none_is_named_and_that_is_said(csv):
    made, notes = replays(read([csv(long("0,b,1\n300,b,2\n0,a,3\n300,a,4\n"))]), Layout())
    assert made[0].nodes == ("a", "b")
    assert any("each series is a node" in note for note in notes)


def test_nodes_are_the_sums_of_their_series_and_short_gaps_are_carried(csv):
    body = "".join(f"{i * 300},a,n,1\n" for i in range(30)) + "0,b,n,2\n"
    [replay], _ = replays(read([csv(long(body, "time,series,node,usage"))]), Layout())
    assert replay.usage[:, 0].tolist() == [3] * 13 + [1] * 17


def test_a_part_of_the_series_is_the_same_in_every_file(csv):
    trace = read([csv("vm,0,1\n" + "".join(f"s{i},1,2\n" for i in range(40)))])
    parts = [replays(trace, Layout(split=Split(fold, 2)))[0][0].nodes for fold in range(2)]
    assert sorted(parts[0] + parts[1]) == sorted(f"s{i}" for i in range(40))
    assert all(parts)


def test_packed_series_do_not_get_their_own_peak_as_request(csv):
    [replay], notes = replays(
        read([csv("vm,0,1\n" + "".join(f"s{i},1,2\n" for i in range(9)))]), Layout(pack=4, passes=2)
    )
    assert len(replay.nodes) == 4
    assert np.isnan(replay.requested).all()
    assert any("packed into 4 nodes" in note for note in notes)
