"""An agent whose state directory is on a full disk: it goes on, and limits BE all the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.agent.api_twin import ApiTwin, pod_json
from tests.agent.test_daemon import metrics
from tests.agent.trees import CID, UID_BE, UID_BE2, UID_LS
from tests.kernel.test_agent_cgroups import BE, BUSY, TIGHT_FLAGS, groups, pytestmark, wait_for  # noqa: F401 - fixture and marks
from tests.patience import PATIENCE

LATE = f"kubepods/besteffort/pod{UID_BE2}"


@pytest.fixture
def disk(tmp_path):
    """A state directory that is a file system of its own."""
    folder = tmp_path / "state"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "none", folder], capture_output=True
    ).returncode:
        pytest.skip("a file system cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(folder):
    """Take all space there is, to the last page; gives what to remove to have it back."""
    path = folder / "filler"
    with open(path, "ab", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    return path


class Agent:
    """`python -m agent` on these groups, with a short window, so that samples soon want to be kept."""

    def __init__(self, groups, state, directory):  # noqa: F811 - the fixture
        self.observe = str(directory / "o.sock")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "agent", "--node", "n1", "--cluster.server", f"unix:{directory}/api.sock"),
                *("--state-dir", str(state), "--cgroup-root", groups.root, "--turn-seconds", "0.2"),
                *("--predictor", f"unix:{directory}/nobody.sock", "--observe.listen", f"unix:{self.observe}"),
                *("--report.window-seconds", "1", "--report.spool-bytes", "65536", *TIGHT_FLAGS),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )

    def metric(self, name):
        found = [line for line in metrics(self.observe).splitlines() if line.startswith(f"{name} ")]
        return float(found[0].split()[1]) if found else 0.0

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=30 * PATIENCE)
        return self.process.returncode, [json.loads(line) for line in log.splitlines() if line.startswith("{")]


@pytest.fixture
def agent_on(groups, tmp_path):  # noqa: F811 - the fixture
    """Starts agents, each with an API; ends them."""
    started = []
    groups.spawn(f"{BE}/{CID}", BUSY)
    pods = [pod_json(UID_LS, "ls"), pod_json(UID_BE, "be"), pod_json(UID_BE2, "be")]
    with ApiTwin(str(tmp_path / "api.sock"), pods):

        def start(state):
            started.append(Agent(groups, state, tmp_path))
            return started[-1]

        try:
            yield start
        finally:
            for one in started:
                if one.process.poll() is None:
                    one.process.kill()
                    one.process.communicate()


def limited(cgroups):
    return 0 < int(cgroups.quota().replace("max", "0")) <= 10_000 and cgroups.read(BE, "cpu.idle") == "1"


def traceless(log):
    return [event for event in log if "exception" in event or "Traceback" in json.dumps(event)] == []


def test_a_disk_that_fills_up_while_it_runs_stops_nothing(groups, disk, agent_on):  # noqa: F811 - the fixture
    agent = agent_on(disk)
    wait_for(lambda: limited(groups), "limits")
    filler = fill(disk)
    turns, sent = agent.metric("slacktide_agent_turns_total"), agent.metric("slacktide_agent_samples_sent_total")
    # What somebody took away is put back, and who comes now is limited although it cannot be written down.
    groups.lift_quota()
    groups.make(f"{LATE}/{CID}")
    wait_for(lambda: limited(groups) and groups.read(LATE, "cpu.idle") == "1", "limits again")
    wait_for(lambda: agent.metric("slacktide_agent_turns_total") > turns + 10, "turns")
    wait_for(lambda: agent.metric("slacktide_agent_samples_sent_total") > sent, "samples")
    assert agent.metric("slacktide_agent_journal_errors_total") > 0
    assert UID_BE2 not in (disk / "journal.json").read_text()
    filler.unlink()
    wait_for(lambda: UID_BE2 in (disk / "journal.json").read_text(), "the journal of what was done meanwhile")
    assert agent.metric("slacktide_agent_errors_total") == 0
    code, log = agent.end()
    assert code == 0
    assert traceless(log)
    assert (groups.quota(), groups.read(BE, "cpu.idle"), groups.read(LATE, "cpu.idle")) == (groups.unlimited, "0", "0")


def test_a_disk_that_is_full_at_the_start_costs_no_protection(groups, disk, agent_on):  # noqa: F811 - the fixture
    fill(disk)
    agent = agent_on(disk)
    wait_for(lambda: agent.process.poll() is not None or limited(groups), "limits", 60 * PATIENCE)
    assert agent.process.poll() is None, agent.process.communicate()[1]
    wait_for(lambda: agent.metric("slacktide_agent_turns_total") > 10, "turns")
    code, log = agent.end()
    assert code == 0
    assert traceless(log)
    assert any("No space left" in json.dumps(event) for event in log)
    assert groups.quota() == groups.unlimited
    assert groups.read(BE, "cpu.idle") == "0"
