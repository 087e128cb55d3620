"""A program that runs a Slacktide of its own and is told to end (`timeout`, a CI that gives up) leaves nothing."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from slacktide.kernel.hierarchy import discover
from standalone.state import find
from standalone.sweep import directories
from tests.patience import PATIENCE
from tests.whole.test_demo import processes_of

pytestmark = [pytest.mark.whole, pytest.mark.timeout(240 * PATIENCE)]

PROGRAM = """
import time
from standalone.load.stack import running
with running() as (state, client):
    print(state.root, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder():
    """With a short path: sockets are made below it."""
    with tempfile.TemporaryDirectory() as made:
        yield made


def test_sigterm_ends_the_slacktide_that_a_program_runs(folder):
    environment = {**os.environ, "TMPDIR": folder}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment
    ) as program:
        try:
            state = find(program.stdout.readline().strip())
            assert state is not None
            program.send_signal(signal.SIGTERM)
            assert program.wait(90 * PATIENCE) == 128 + signal.SIGTERM
        finally:
            program.kill()
    assert os.listdir(folder) == []
    assert processes_of(folder) == []
    assert [path for name in (state.cgroup_root, state.agent_cgroup) for path in directories(discover(), name)] == []
