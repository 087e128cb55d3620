"""The command's side of a drill, against the agent's real service."""

from __future__ import annotations

import threading
import time

import pytest

from agent.drill import Seen
from agent.drill_board import DrillBoard
from agent.drill_settings import DrillSettings
from agent.policy.rung import RungStatus
from cli.demo import drill_line
from cli.drills import rehearse
from tests.drill_twin import drill_server
from tests.patience import PATIENCE


class Node:
    """An agent's control thread that answers a drill: it cuts at once, and opens again after the pressure or never."""

    def __init__(self, opens):
        self.board = DrillBoard(time.monotonic)
        self._opens = opens
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        while not self._stop.wait(0.01):
            drill = self.board.active()
            held = drill is not None and drill.raised_at is not None and (drill.pressing or not self._opens)
            rung = RungStatus(name="contention", level=int(held), top=1, since=0.0, reason="a drill raises the signal")
            self.board.observe(
                Seen(at=time.monotonic(), rungs={"contention": rung}, be_limit_millis=500 if held else None)
            )


@pytest.fixture
def serve(tmp_path):
    servers = []

    def start(board):
        settings = DrillSettings(listen=f"unix:{tmp_path}/drill.sock", recover_seconds=60)
        server = drill_server(board, settings)
        server.start()
        servers.append(server)
        return settings.listen

    yield start
    for server in servers:
        server.stop()


def test_a_drill_that_goes_well(serve):
    with Node(opens=True) as node:
        seen = rehearse(serve(node.board), 1.0 * PATIENCE, "test", 20 * PATIENCE)
    assert seen.problem == ""
    assert 0 <= seen.detected_millis <= seen.throttled_millis < seen.recovered_millis
    assert seen.answer == "BE is limited to 500m"
    assert "BE had all its room back" in drill_line(seen)


def test_a_node_that_does_not_open_is_said_and_the_drill_is_ended(serve):
    with Node(opens=False) as node:
        seen = rehearse(serve(node.board), 0.1, "test", 1.0)
        assert seen.recovered_millis is None
        assert seen.problem == "aborted by the owner of the socket"
        assert seen.throttled_millis is not None
        assert node.board.active() is None


def test_nobody_there_is_said(tmp_path):
    seen = rehearse(f"unix:{tmp_path}/nobody.sock", 0.1, "test", 1.0)
    assert "deadline_exceeded" in seen.problem
    assert drill_line(seen).startswith("Drill: deadline_exceeded")
