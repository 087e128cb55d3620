"""What the crash benchmark counts as lost or left, and how reaction sums up; the benchmarks themselves run by hand."""

from __future__ import annotations

import os

import pytest

from agent.act.journal import Entry, Journal
from agent.capabilities import Knob
from agent.host.knobs import Original
from agent.threads import GroupMasks
from benchmarks import reaction
from benchmarks.crash import Held, Tally, summarise, unknown
from slacktide.errors import SlacktideError

ALL = frozenset({0, 1})
FREE = Held({("r/ls", "cpu.shares"): "100", ("r/be", "cpu.idle"): "0"}, {"r/ls": frozenset({ALL})})


def boot_id():
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def test_nothing_changed_is_nothing():
    assert FREE.changed(FREE) == set()


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (Held({**FREE.knobs, ("r/be", "cpu.idle"): "1"}, FREE.masks), ("r/be", "cpu.idle")),
        (Held({**FREE.knobs, ("r/x", "cpu.idle"): "1"}, FREE.masks), ("r/x", "cpu.idle")),
        (Held(FREE.knobs, {"r/ls": frozenset({ALL, frozenset({1})})}), ("r/ls", "affinity")),
        (Held(FREE.knobs, {"r/be": frozenset({frozenset({1})})}), ("r/be", "affinity")),
    ],
)
def test_a_knob_a_new_group_and_a_narrowed_mask_are_changes(now, changed):
    assert now.changed(FREE) == {changed}


def test_a_limit_is_lost_unless_the_journal_has_it(tmp_path):
    journal = Journal(str(tmp_path), boot_id())
    journal.load()
    entry = Entry(group="r/be", inode=1, knob=Knob.IDLE, original=Original(value=0), applied=1)
    journal.record([entry])
    journal.record_masks([GroupMasks(group="r/be", inode=1)])
    held = [("r/be", "cpu.idle"), ("r/be", "cpu.shares"), ("r/be", "affinity"), ("r/be", "cpu.cfs_quota_us")]
    assert unknown(held, str(tmp_path)) == [("r/be", "cpu.cfs_quota_us")]
    assert unknown([("r/be/c", "cpu.idle")], str(tmp_path)) == [("r/be/c", "cpu.idle")]
    assert os.listdir(tmp_path) == ["journal.json"], "only a copy was opened"


def test_without_a_journal_every_limit_is_lost(tmp_path):
    assert unknown([("r/be", "cpu.idle")], str(tmp_path)) == [("r/be", "cpu.idle")]


def test_the_tally_is_counted_and_said():
    results = summarise(Tally(kills=3, ls_limited=["a"], limits_lost=["b", "c"], start_seconds=[1.0, 3.0]), ["d"])
    assert (results["kills"], results["ls_limited"], results["limits_lost"], results["left_over"]) == (3, 1, 2, 1)
    assert results["what"] == ["a", "b", "c", "d"]
    assert results["start_seconds_p50"] == 2.0


def test_a_surge_without_a_cut_counts_as_long_as_it_was_waited_for():
    results = reaction.summarise([0.03] * 98 + [0.05, None], {"policies": "contention"})
    assert (results["surges"], results["missed"]) == (100, 1)
    assert results["throttle_ms_p50"] == pytest.approx(30)
    assert results["throttle_ms_p99"] == results["throttle_ms_max"] == 3000


def test_the_client_of_a_surge_waits_for_its_answers(tmp_path):
    with reaction.pipes(str(tmp_path)) as client:
        client.send(1.0, 7)
        assert reaction.REQUEST.unpack(os.read(client.sink, 64)) == (1.0, 7)
        reply = os.open(tmp_path / "replies", os.O_RDWR)
        os.write(reply, reaction.REPLY.pack(1.0, 2.0, 7) * 3)
        os.close(reply)
        client.settle(3, 5.0)
        with pytest.raises(SlacktideError, match="did not answer 1 requests"):
            client.settle(1, 0.01)
