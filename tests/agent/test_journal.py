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
