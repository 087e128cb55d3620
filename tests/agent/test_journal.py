from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.act.journal import FILE_NAME, Entry, Journal, Original
from agent.capabilities import Knob


def entry(group="g", applied=1, inode=7, knob=Knob.IDLE, **original):
    return Entry(group=group, inode=inode, knob=knob, original=Original(**original), applied=applied)


def test_entries_survive_a_restart_in_the_same_boot(tmp_path):
    journal = Journal(str(tmp_path), "boot")
    journal.record([entry(value=0, weight=512), entry("h", knob=Knob.QUOTA, applied=5000)])
    journal.record([entry("h", knob=Knob.QUOTA, applied=7000)])
    journal.forget([("g", Knob.IDLE)])
    again = Journal(str(tmp_path), "boot")
    assert again.load() == (entry("h", knob=Knob.QUOTA, applied=7000),)
    assert Journal(str(tmp_path), "later").load() == ()
    assert not again.lost


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(cut=st.integers(0, 400), junk=st.binary(max_size=20))
def test_a_torn_or_foreign_file_is_set_aside_and_never_raises(tmp_path, cut, junk):
    journal = Journal(str(tmp_path), "boot")
    journal.record([entry(applied=cut % 2, value=0), entry(f"g{cut}", value=cut)])
    path = tmp_path / FILE_NAME
    data = path.read_bytes()
    torn = data[:cut] + junk
    if torn.strip() == data:
        return
    path.write_bytes(torn)
    again = Journal(str(tmp_path), "boot")
    assert again.load() == ()
    assert again.lost
    assert "set aside" in again.problem
    assert (tmp_path / f"{FILE_NAME}.bad").read_bytes() == torn
    assert not path.exists()


@pytest.mark.parametrize(
    "change", [(b'"format":2', b'"format":3'), (b'"applied":1', b'"applied":0'), (b'"inode":7', b'"inode":8')]
)
def test_a_newer_format_or_a_flipped_value_is_not_believed(tmp_path, change):
    Journal(str(tmp_path), "boot").record([entry(value=0)])
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes().replace(*change))
    again = Journal(str(tmp_path), "boot")
    assert again.load() == ()
    assert again.lost


FORMAT_1 = (
    '{"format":1,"boot_id":"boot","entries":[{"group":"kubepods/pod1","inode":7,"knob":"cpu.idle",'
    '"original":{"value":0,"weight":512},"applied":1,"before":0},{"group":"kubepods/pod1","inode":7,'
    '"knob":"cpu.quota","original":{"burst_us":5},"applied":5000,"before":null}],'
    '"sum":"acb4476aedda0a98f8869a370d344713abad50b57ad0844f2ac8a9a79baba06a",'
    '"masks":[{"group":"kubepods/pod1","inode":7,"original":[0,1],"own":[{"tid":5,"start":9,"original":[1]}]}]}'
)
"""As an agent of that time wrote it."""


def test_the_journal_of_earlier_agents_is_read(tmp_path):
    (tmp_path / FILE_NAME).write_text(FORMAT_1)
    journal = Journal(str(tmp_path), "boot")
    idle, quota = journal.load()
    assert (idle.knob, idle.original, idle.applied, idle.before) == (Knob.IDLE, Original(value=0, weight=512), 1, 0)
    assert (quota.original, quota.applied, quota.policy) == (Original(burst_us=5), 5000, "suppress")
    (masks,) = journal.masks()
    assert (masks.original, masks.own[0].original) == ((0, 1), (1,))
    journal.record([entry("h", value=0)])
    assert (tmp_path / FILE_NAME).read_text().startswith('{"format":2,')
    assert set(Journal(str(tmp_path), "boot").load()) == {idle, quota, entry("h", value=0)}


def test_a_flipped_bit_in_format_1_is_not_believed(tmp_path):
    (tmp_path / FILE_NAME).write_text(FORMAT_1.replace("5000", "5001"))
    journal = Journal(str(tmp_path), "boot")
    assert journal.load() == ()
    assert "checksum" in journal.problem


@pytest.mark.parametrize("group", ["../x", "", "/kubepods", "a\n"])
def test_a_journal_that_names_what_is_no_cgroup_is_not_believed(tmp_path, group):
    Journal(str(tmp_path), "boot").record([entry(group)])
    journal = Journal(str(tmp_path), "boot")
    assert journal.load() == ()
    assert journal.lost


@given(st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
def test_junk_of_any_kind_never_raises(tmp_path, junk):
    for data in (junk, b'{"format":2,"sum":0,"body":' + junk + b"}", b"[" * 5000 + junk):
        (tmp_path / FILE_NAME).write_bytes(data)
        journal = Journal(str(tmp_path), "boot")
        assert journal.load() == ()
        assert journal.lost


def test_one_that_only_looks_changes_nothing(tmp_path):
    Journal(str(tmp_path), "boot").record([entry(value=0)])
    before = (tmp_path / FILE_NAME).read_bytes()
    journal = Journal(str(tmp_path), "boot", read_only=True)
    journal.load()
    journal.record([entry("h", value=0)])
    journal.forget([("g", Knob.IDLE)])
    assert (tmp_path / FILE_NAME).read_bytes() == before
    (tmp_path / FILE_NAME).write_text("{torn")
    Journal(str(tmp_path), "boot", read_only=True).load()
    assert (tmp_path / FILE_NAME).read_text() == "{torn"


def test_an_unreadable_file_is_set_aside(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    journal = Journal(str(tmp_path), "boot")
    assert journal.load() == ()
    assert journal.lost


def test_a_killed_writer_leaves_a_whole_journal(tmp_path):
    script = textwrap.dedent(f"""
        from agent.act.journal import Entry, Journal, Original
        from agent.capabilities import Knob
        journal = Journal({str(tmp_path)!r}, "boot")
        number = 0
        while True:
            number += 1
            journal.record(
                Entry(group=f"g{{n}}", inode=n, knob=Knob.QUOTA, original=Original(), applied=number) for n in range(50)
            )
            print(number, flush=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        seen = 0
        while seen < 20:
            seen = int(process.stdout.readline())
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        process.stdout.close()
    journal = Journal(str(tmp_path), "boot")
    entries = journal.load()
    assert not journal.lost
    assert len({item.applied for item in entries}) == 1
    assert entries[0].applied >= seen


def test_a_knob_that_is_cut_again_waits_for_no_disk_and_another_original_does(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("agent.act.journal.write_atomically", lambda _path, _data, *, durable: synced.append(durable))
    journal = Journal(str(tmp_path), "boot")
    for change in (entry(value=0), entry(applied=2, value=0)):
        journal.record([change])
    journal.forget([("g", Knob.IDLE)])
    journal.record([entry(value=0)])
    assert synced == [True, False, False, False]
    journal.record([entry(value=1)])
    journal.forget([("g", Knob.IDLE)])
    journal.record([entry(inode=8, value=1)])
    assert synced[4:] == [True, False, True]
