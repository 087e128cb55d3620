"""The table of arrivals: what it may say, and that every mistake is named with its line."""

from __future__ import annotations

import pytest

from scheduler_plugins.dump import DumpError
from scheduler_plugins.simulation.arrivals import read_arrivals
from slacktide import names
from slacktide.settings import ResourceNames

HEADER = "time,name,namespace,cpu,memory,batch-cpu,batch-memory,lifetime_seconds\n"


def read(tmp_path, text):
    path = tmp_path / "day.csv"
    path.write_text(text)
    return read_arrivals(str(path), "mine", ResourceNames())


def test_rows_become_pods_in_the_order_of_their_times(tmp_path):
    rows = read(tmp_path, HEADER + "9.5,late,team,500m,1Gi,,,\n0,batch,,,,1500,2Gi,60\n")
    assert [(one.at, one.pod.metadata.name, one.lifetime_seconds) for one in rows] == [
        (0.0, "batch", 60.0),
        (9.5, "late", None),
    ]
    batch, late = (one.pod for one in rows)
    assert batch.spec.containers[0].resources.requests == {names.BATCH_CPU: "1500", names.BATCH_MEMORY: "2Gi"}
    assert late.spec.containers[0].resources.requests == {"cpu": "500m", "memory": "1Gi"}
    assert (batch.metadata.namespace, late.metadata.namespace) == ("default", "team")
    assert {one.pod.spec.scheduler_name for one in rows} == {"mine"}


def test_columns_may_be_left_out_and_priority_given(tmp_path):
    (row,) = read(tmp_path, "name,time,priority\nx,1,100\n")
    assert row.pod.spec.priority == 100


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("soon,p,,,,,,", "line 2: time is 'soon'"),
        ("nan,p,,,,,,", "time is 'nan'"),
        ("-1,p,,,,,,", "time is '-1'"),
        (",p,,,,,,", "time is empty"),
        ("1,,,,,,,", "name is empty"),
        ("1,p,,lots,,,,", "cpu: "),
        ("1,p,,-2,,,,", "cpu is -2"),
        ("1,p,,,,200m,,", "batch-cpu: "),
        ("1,p,,,,,,inf", "lifetime_seconds is 'inf'"),
        ("1,p", "has more or fewer cells"),
        ("1,p,,,,,,,,", "has more or fewer cells"),
        ("1,p,,,,,,\n2,p,,,,,,", "line 3: pod default/p is there already"),
    ],
)
def test_mistakes_are_named(tmp_path, line, words):
    with pytest.raises(DumpError) as error:
        read(tmp_path, HEADER + line + "\n")
    assert words in str(error.value)


def test_all_mistakes_at_once_but_not_thousands(tmp_path):
    with pytest.raises(DumpError) as error:
        read(tmp_path, HEADER + "x,p,,,,,,\n" * 500)
    assert "line 11:" in str(error.value)
    assert "line 12:" not in str(error.value)
    assert "and 490 more" in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"), [("", "column time is missing"), ("time,name,colour\n", "'colour' is not known")]
)
def test_header(tmp_path, text, words):
    with pytest.raises(DumpError, match=words):
        read(tmp_path, text)


def test_file_that_is_none(tmp_path):
    path = tmp_path / "day.csv"
    with pytest.raises(DumpError, match="No such file"):
        read_arrivals(str(path), "mine", ResourceNames())
    path.write_bytes(b"time,name\n\xff\xfe,x\n")
    with pytest.raises(DumpError, match="no table"):
        read_arrivals(str(path), "mine", ResourceNames())
