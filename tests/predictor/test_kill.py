"""kill -9 of a writing process: what was acknowledged is there afterwards, each sample once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from predictor.history import open_history
from predictor.slots import SLOT_MILLIS

WRITER = """
import sys
from predictor.history import Batch, open_history
from predictor.slots import SLOT_MILLIS
from predictor.store.columns import PodReport
from tests.predictor.support import make_sample
from tests.predictor.test_history_pods import hours, pod

history = open_history(sys.argv[1])
first = int(sys.argv[2])
for start in range(first, 10**9, 7):
    batch = [make_sample(i, 1_700_000_100_000 + i * 1000) for i in range(start, start + 7)]
    history.append([Batch("n1", "b", batch)])
    if start % 3 == 0:
        history.save_state("at", str(start).encode())
        history.save_pods(PodReport(hours((pod("a"), start, 12, 1, 2)), hours((pod("a"), start + 1, 3, 1, 2))))
    print(start + 6, flush=True)
    if start % 5 == 0:
        # Folding and checkpointing must be as safe as appending.
        history.fold(1_700_000_100_000 + start * 1000)
        history._connection.execute("CHECKPOINT")
"""


def sequences_below(history):
    boot = history._boots.boots["n1", "b"].seen
    return boot.high, boot.holes


def covered_slots(history):
    return len(history.window(0).slot)


def check_pods(history, high):
    """Every report is there whole, and none is older than the state written before it."""
    state = history.load_state("at")
    if state is None:
        return
    *parts, going_on = history.pod_hours(0)
    closed = [int(hour) for part in parts for hour in part.hour]
    assert len(closed) == len(set(closed))
    assert all(hour % 3 == 0 for hour in closed)
    assert int(state) <= high
    if closed:
        assert going_on.hour.tolist() == [max(closed) + 1]
        assert 0 <= int(state) - max(closed) <= 21


@pytest.mark.parametrize("lines", [1, 23, 140])
def test_what_was_acknowledged_survives_kill_9(tmp_path, lines):
    first, acknowledged = 1, 0
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(first)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=os.getcwd(),
        )
        try:
            for _ in range(lines):
                acknowledged = int(writer.stdout.readline())
        finally:
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split("\n")
            writer.stdout.close()
            writer.wait(10)
        # A line that was cut in the middle is no acknowledgement.
        acknowledged = max([acknowledged, *(int(line) for line in rest[:-1])])
        history = open_history(str(tmp_path))
        high, holes = sequences_below(history)
        assert high >= acknowledged
        assert holes == []
        # The first sample ends one second into a slot.
        assert covered_slots(history) == (high * 1000 - 1) // SLOT_MILLIS + 1
        counted = history._connection.execute(
            "SELECT (SELECT count(*) FROM samples) * 1000 + (SELECT coalesce(sum(covered_millis), 0) FROM node_slots)"
        ).fetchall()
        assert counted == [(high * 1000,)]
        check_pods(history, high)
        history.close()
        first = high + 1
