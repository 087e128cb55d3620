from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.cluster import PODS, errors
from slacktide.cluster.watch import LineSplitter, WatchDecoder
from tests.slacktide.cluster.fakeapi import line, pod

names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
good = st.builds(
    lambda type_, name, version: line(type_, **pod(name, version)),
    st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]),
    names,
    st.integers(0, 10**12),
)
gone = line("ERROR", kind="Status", code=410, reason="Expired", message="too old")
streams = st.builds(
    lambda lines, end: b"".join(lines) + end,
    st.lists(st.one_of(good, st.just(b"\n"), st.just(b"  \n"))),
    st.sampled_from([b"", gone, b'{"type": "ADDED", "obj', b"garbage\n", line("WHAT")]),
)


def decode(chunks):
    """Events, and the class of the error that ended the stream."""
    decoder, events = WatchDecoder(PODS), []
    try:
        for chunk in chunks:
            events.extend(decoder.feed(chunk))
    except errors.ClusterError as error:
        return events, type(error), str(error)
    return events, None, ""


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(p % (len(data) + 1) for p in places)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@settings(deadline=None)
@given(streams, st.lists(st.integers(0, 10**6), max_size=20))
def test_events_do_not_depend_on_where_the_bytes_are_cut(data, places):
    assert decode(cut(data, places)) == decode([data])


@settings(deadline=None)
@given(streams)
def test_one_byte_at_a_time(data):
    assert decode(data[i : i + 1] for i in range(len(data))) == decode([data])


@settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=20))
def test_any_bytes_either_decode_or_raise_a_cluster_error(data, places):
    assert decode(cut(data, places)) == decode([data])


def test_object_and_bookmark():
    decoder = WatchDecoder(PODS)
    data = line("MODIFIED", **pod("a", 5, phase="Running")) + line("BOOKMARK", metadata={"resourceVersion": "9"})
    changed, mark = decoder.feed(data)
    assert (changed.type, changed.object.metadata.name, changed.object.status.phase) == ("MODIFIED", "a", "Running")
    assert (mark.type, mark.object.metadata.resource_version, mark.object.metadata.name) == ("BOOKMARK", "9", "")


def test_error_410_is_gone_and_comes_after_the_events_before_it():
    events, error, _ = decode([line("ADDED", **pod("a")) + gone + line("ADDED", **pod("b"))])
    assert [e.object.metadata.name for e in events] == ["a"]
    assert error is errors.Gone


def test_error_without_code_is_a_server_error():
    _, error, message = decode([line("ERROR", kind="Status", message="etcd went away")])
    assert error is errors.ServerError
    assert "etcd went away" in message


def test_object_that_does_not_fit_keeps_its_metadata():
    body = pod("odd", 7)
    body["spec"] = {"priority": "high"}
    (event,) = WatchDecoder(PODS).feed(line("DELETED", **body))
    assert (event.type, event.readable) == ("DELETED", False)
    assert (event.object.metadata.name, event.object.metadata.resource_version) == ("odd", "7")


@pytest.mark.parametrize(
    "data",
    [
        b"{}\n",
        b"[]\n",
        b'{"type": 3}\n',
        line("SURPRISE"),
        json.dumps({"type": "ADDED", "object": []}).encode() + b"\n",
    ],
)
def test_line_that_is_no_event_is_unreadable(data):
    assert decode([data])[1] is errors.Unreadable


def test_line_without_end_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr("slacktide.cluster.watch._LINE_LIMIT", 1000)
    splitter = LineSplitter()
    assert list(splitter.feed(b"x" * 1000)) == []
    with pytest.raises(errors.Unreadable, match="longer than"):
        list(splitter.feed(b"x"))
