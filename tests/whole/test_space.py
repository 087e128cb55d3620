"""No space where a daemon keeps something: none of them ends, each says it, and all go on when there is room again."""

import contextlib
import os
import subprocess
import tempfile

import pytest

from slacktide.cluster import PODS
from slacktide.cluster.errors import ApiError
from slacktide.names import HOST_PROCESS_IMAGE
from standalone.process import alive
from standalone.state import Lock, create, prepare
from tests.whole.support import started, wait_until

pytestmark = [pytest.mark.whole, pytest.mark.timeout(120)]

ACKNOWLEDGED = "slacktide_agent_samples_acknowledged_total"
SIZES = {"predictor": "8m", "logs": "1m", "api": "4m", "agent": "2m"}


@pytest.fixture
def cramped():
    """A state directory in which four folders are small file systems of their own."""
    with tempfile.TemporaryDirectory(prefix="st") as root, contextlib.ExitStack() as stack:
        create(root)
        with Lock(root):
            state = prepare(root)
        for name, size in SIZES.items():
            folder = state.folder(name)
            mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", folder]
            if subprocess.run(mount, capture_output=True).returncode:
                pytest.skip("a file system cannot be mounted here")
            stack.callback(subprocess.run, ["umount", folder], check=True)
        yield state


def fill(folder):
    """Take all space there is, to the last page; gives what to remove to have it back."""
    path = os.path.join(folder, "filler")
    with open(path, "ab", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    return path


def log_of(up, name):
    with open(up.state.log_file(name)) as file:
        return file.read()


def refusal(up):
    """What the API says once it can store nothing more; a write may still fit into space that it had already."""
    for number in range(200):
        container = {"name": "main", "image": HOST_PROCESS_IMAGE, "env": [{"name": "A", "value": "x" * 50_000}]}
        body = {"metadata": {"name": f"big-{number}"}, "spec": {"schedulerName": "nobody", "containers": [container]}}
        try:
            up.client.create(PODS, body, "default")
        except ApiError as error:
            return str(error)
    return ""


def test_no_space_for_history_logs_objects_and_spool(cramped):
    with started({"SLACKTIDE_AGENT_REPORT__WINDOW_SECONDS": "1"}, cramped.root) as up:
        before = up.processes()
        fillers = [fill(cramped.folder("predictor")), fill(cramped.folder("logs"))]
        # A payload that could not write its output would stand still, and never get to its last word.
        talker = up.ls("--keep", "--name", "talker", "--", "sh", "-c", "seq 300000; exit 6", timeout=30)
        assert talker.returncode == 6, talker.stderr
        wait_until(lambda: "No space left" in up.ask("predictor", "/readyz"), up)
        assert up.metric("predictor", "slacktide_predictor_history_usable") == 0
        assert up.metric("runner", "slacktide_runner_lost_log_lines_total") > 0

        fillers += [fill(cramped.folder("agent")), fill(cramped.folder("api"))]
        said = refusal(up)
        assert "database cannot be written" in said
        assert "free space" in said
        refused = up.ls("--", "true")
        assert refused.returncode == 125
        assert "database cannot be written" in refused.stderr
        wait_until(lambda: "samples are kept in memory only" in log_of(up, "agent"), up)

        for filler in fillers:
            os.unlink(filler)
        up.clear()
        wait_until(lambda: up.metric("predictor", "slacktide_predictor_history_usable") == 1 and up.ready(), up)
        # What waited in memory was not lost.
        acknowledged = up.metric("agent", ACKNOWLEDGED)
        wait_until(lambda: up.metric("agent", ACKNOWLEDGED) > acknowledged, up)
        assert up.metric("agent", "slacktide_agent_spool_drops_total") == 0
        assert up.ls("--", "sh", "-c", "echo again; exit 3").stdout == "again\n"
        assert {name for name, process in before.items() if not alive(process)} == set()
