from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.act import audit
from agent.act.audit import Audit, AuditLine, read
from agent.act.ledger import Ledger
from agent.eviction import Spent, Way


def line(name="a", **more):
    known = {"numbers": {"priority": "5000", "memory_bytes": "12"}, "outcome": "sent", "reason": "memory", **more}
    return AuditLine(at=1.5, wall=2.5, boot_id="b", namespace="d", name=name, uid=f"u-{name}", way=Way.EVICT, **known)


def names(directory, newest=None):
    return [one.name for one in read(str(directory), newest)[0]]


def test_what_is_written_is_read_again(tmp_path):
    kept = Audit(str(tmp_path), 1 << 20)
    lines = [line("a"), line("b", detail="x\ny", drill="d1", retry_after_seconds=3.0, seconds=0.1)]
    assert all(kept.append(one) for one in lines)
    assert read(str(tmp_path)) == (tuple(lines), 0)
    assert names(tmp_path, 1) == ["b"]
    assert names(tmp_path, 0) == []
    first = json.loads((tmp_path / audit.FILE_NAME).read_text().splitlines()[0])
    assert (first["way"], first["numbers"]["memory_bytes"], first["at"]) == ("evict", "12", 1.5)
    assert os.stat(tmp_path / audit.FILE_NAME).st_mode & 0o777 == 0o600


def test_no_file_is_no_lines(tmp_path):
    assert read(str(tmp_path)) == ((), 0)


def test_the_file_is_bounded_and_keeps_the_newest(tmp_path):
    kept = Audit(str(tmp_path), 4000)
    for index in range(100):
        kept.append(line(f"p{index}"))
    assert sum(entry.stat().st_size for entry in os.scandir(tmp_path)) <= 4000
    seen = names(tmp_path)
    assert len(seen) >= 5
    assert seen == [f"p{index}" for index in range(100 - len(seen), 100)]


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_costs_that_line_alone(tmp_path, cut):
    kept = Audit(str(tmp_path), 1 << 20)
    kept.append(line("a"))
    kept.append(line("torn"))
    path = tmp_path / audit.FILE_NAME
    path.write_bytes(path.read_bytes()[:-cut])
    Audit(str(tmp_path), 1 << 20).append(line("c"))
    lines, skipped = read(str(tmp_path))
    assert [one.name for one in lines] in (["a", "c"], ["a", "torn", "c"])
    assert skipped + len(lines) == 3


@given(st.lists(st.one_of(st.binary(max_size=80), st.just(b'{"at": 1}')), max_size=8))
def test_junk_between_lines_is_counted_and_harms_nothing(tmp_path_factory, junk):
    directory = tmp_path_factory.mktemp("audit")
    kept = Audit(str(directory), 1 << 20)
    for index, noise in enumerate(junk):
        kept.append(line(f"p{index}"))
        with open(directory / audit.FILE_NAME, "ab") as file:
            file.write(noise + b"\n")
    lines, skipped = read(str(directory))
    assert [one.name for one in lines] == [f"p{index}" for index in range(len(junk))]
    assert skipped == sum(bool(part.strip()) for noise in junk for part in noise.split(b"\n"))


def test_a_disk_that_refuses_costs_lines_and_nothing_else(tmp_path, monkeypatch):
    kept = Audit(str(tmp_path), 1 << 20)
    kept.append(line("a"))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
    assert not kept.append(line("short"))
    monkeypatch.setattr(os, "write", write)
    assert kept.append(line("b"))
    assert kept.lost == 1
    assert names(tmp_path) == ["a", "b"]
    assert not Audit(str(tmp_path / "absent"), 1 << 20).append(line())


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path):
    victim = tmp_path / "other"
    victim.write_text("precious")
    os.symlink(victim, tmp_path / audit.FILE_NAME)
    assert not Audit(str(tmp_path), 1 << 20).append(line())
    assert victim.read_text() == "precious"


class Clocks:
    """Both clocks of a machine."""

    def __init__(self, at=1000.0, wall=1e9, boot="b1"):
        self.at, self.wall, self.boot = at, wall, boot

    def ledger(self, directory):
        return Ledger(str(directory), self.boot, lambda: self.at, lambda: self.wall)


def spent(uid="u", at=1000.0, way=Way.EVICT, drill=""):
    return Spent(uid=uid, at=at, way=way, drill=drill)


def test_k8s_31362_what_was_spent_survives_a_restart(tmp_path):
    clocks = Clocks()
    kept = clocks.ledger(tmp_path)
    assert kept.reserve(spent("a"))
    assert kept.reserve(spent("b", at=999.0, way=Way.KILL, drill="d"))
    kept.release(spent("a"))
    assert clocks.ledger(tmp_path).spent() == (spent("b", at=999.0, way=Way.KILL, drill="d"),)


def test_within_one_boot_the_wall_clock_does_not_matter(tmp_path):
    clocks = Clocks()
    clocks.ledger(tmp_path).reserve(spent())
    clocks.wall += 1e6
    assert clocks.ledger(tmp_path).spent() == (spent(),)
    clocks.at += 3600
    assert clocks.ledger(tmp_path).spent() == ()


@pytest.mark.parametrize(("passed", "age"), [(600, 600), (3599, 3599), (3600, None), (-5000, 0)])
def test_after_another_boot_an_entry_is_as_old_as_the_wall_clock_says(tmp_path, passed, age):
    Clocks().ledger(tmp_path).reserve(spent())
    later = Clocks(at=50.0, wall=1e9 + passed, boot="b2")
    assert later.ledger(tmp_path).spent() == (() if age is None else (spent(at=50.0 - age),))


def test_one_pod_counts_once(tmp_path):
    clocks = Clocks()
    kept = clocks.ledger(tmp_path)
    kept.reserve(spent())
    kept.reserve(spent(at=1500.0))
    assert kept.spent() == (spent(),)
    kept.reserve(spent(way=Way.KILL))
    assert len(kept.spent()) == 2


def test_a_dry_run_is_remembered_and_never_written(tmp_path):
    clocks = Clocks()
    kept = clocks.ledger(tmp_path)
    kept.reserve(spent(), keep=False)
    assert (kept.spent(), kept.spent(dry=True)) == ((), (spent(),))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 2, "boot_id": "b1", "at": 1, "wall": 1, "spent": []}', b"\xff" * 99]
)
def test_a_file_that_cannot_be_used_is_set_aside(tmp_path, content):
    path = tmp_path / "evictions.json"
    path.write_bytes(content)
    kept = Clocks().ledger(tmp_path)
    assert kept.spent() == ()
    assert "set aside" in kept.problem
    assert path.with_suffix(".json.bad").read_bytes() == content
    assert kept.reserve(spent())


def test_a_disk_that_refuses_is_told_and_stops_nothing(tmp_path):
    kept = Clocks().ledger(tmp_path / "absent")
    assert not kept.reserve(spent())
    assert "budgets do not survive a restart" in kept.problem
    assert kept.spent() == (spent(),)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 400), st.booleans()), max_size=30))
def test_the_file_always_says_what_the_memory_does(tmp_path_factory, steps):
    directory = tmp_path_factory.mktemp("ledger")
    clocks = Clocks()
    kept = clocks.ledger(directory)
    for uid, passed, taken in steps:
        clocks.at += passed
        entry = spent(uid, at=clocks.at)
        if taken:
            kept.reserve(entry)
        else:
            kept.release(entry)
        assert clocks.ledger(directory).spent() == kept.spent()
