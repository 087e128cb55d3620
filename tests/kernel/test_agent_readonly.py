"""An agent whose cgroup mounts are read-only or masked observes only, says so once, and exports it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.api_twin import ApiTwin, pod_json
from tests.agent.test_daemon import metrics
from tests.agent.trees import CID, UID_BE, UID_LS
from tests.kernel.test_agent_cgroups import BE, BUSY, HIERARCHY, groups, pytestmark, wait_for  # noqa: F401 - fixture and marks
from tests.patience import PATIENCE

pytestmark = [*pytestmark, pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")]

READ_ONLY = 'mount --bind "$m" "$m" && mount -o remount,bind,ro "$m"'
MASKED = 'mount -t tmpfs -o ro,size=0 none "$m"'


@pytest.mark.parametrize("how", [READ_ONLY, MASKED], ids=["read-only", "masked"])
def test_it_observes_only_and_says_so_once(groups, tmp_path, how):  # noqa: F811 - the fixture
    groups.spawn(f"{BE}/{CID}", BUSY)
    mounts = " ".join(mount.path for mount in HIERARCHY.mounts())
    api, observe = str(tmp_path / "api.sock"), str(tmp_path / "o.sock")
    command = [
        *("unshare", "--mount", "--propagation", "private", "sh", "-ec"),
        f'for m in {mounts}; do {how}; done; exec "$0" "$@"',
        *(sys.executable, "-m", "agent", "--node", "n1", "--cluster.server", f"unix:{api}"),
        *("--state-dir", str(tmp_path / "state"), "--cgroup-root", groups.root, "--turn-seconds", "0.2"),
        *("--observe.listen", f"unix:{observe}"),
    ]
    with ApiTwin(api, [pod_json(UID_LS, "ls"), pod_json(UID_BE, "be")]):
        agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=os.getcwd())
        try:
            wait_for(lambda: turns(metrics(observe)) >= 5, "some turns")
            exported = metrics(observe)
            agent.send_signal(signal.SIGTERM)
            _, log = agent.communicate(timeout=20 * PATIENCE)
        finally:
            if agent.poll() is None:
                agent.kill()
                agent.communicate()
    assert agent.returncode == 0
    events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert sum("observe only" in event["event"] for event in events) == 1
    assert not [event for event in events if event["level"] == "error"]
    for knob in ("cpu.idle", "cpu.weight", "cpu.quota"):
        assert 'slacktide_agent_skipped_info{reason="' in exported
        assert f'what="{knob}"' in exported
    assert (groups.read(BE, "cpu.idle"), groups.quota()) == ("0", groups.unlimited)
    for mount in HIERARCHY.mounts():
        assert not list(Path(mount.path, groups.root).rglob("slacktide-probe-*"))


def turns(text):
    found = [line for line in text.splitlines() if line.startswith("slacktide_agent_turns_total ")]
    return float(found[0].split()[1]) if found else 0.0
