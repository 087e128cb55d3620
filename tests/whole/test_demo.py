"""`slacktide demo` in both forms: its result, and that nothing of it is left."""

import contextlib
import json
import os
import subprocess
import tempfile
import time

import pytest

from slacktide.kernel.hierarchy import discover
from standalone.state import find
from standalone.sweep import directories
from tests.whole.support import SLACKTIDE

pytestmark = [pytest.mark.whole, pytest.mark.timeout(120)]

PARTS = ["alone", "beside BE, without Slacktide", "beside BE, with"]


def demo(folder, *words):
    """Run it with all its temporary files in `folder`; gives what it printed and the name of its own cgroup."""
    command = [*SLACKTIDE, "demo", "--seconds", "1", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": folder}
    ) as process:
        try:
            own = ""
            while process.poll() is None:
                own = own or cgroup_of(folder)
                time.sleep(0.05)
            printed, said = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert own, "it never had a state directory"
    return printed, said, own


def cgroup_of(folder):
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            state = find(os.path.join(folder, name))
            if state is not None:
                return state.cgroup_root
    return ""


def processes_of(folder):
    """Commands of processes whose environment names `folder`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
            if f"TMPDIR={folder}\0".encode() in environ.read():
                with open(f"/proc/{pid}/cmdline", "rb") as command:
                    found.append(command.read())
    return found


@pytest.mark.parametrize("form", ["json", "table"])
def test_demo_ends_with_its_result_and_leaves_nothing(form):
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        printed, said, own = demo(folder, "--output", form)
        assert os.listdir(folder) == []
        assert processes_of(folder) == []
        assert directories(discover(), own) == []
    assert all(part in said for part in ("alone", "without Slacktide", "starting Slacktide", "stopping Slacktide"))
    if form == "json":
        document = json.loads(printed)
        results = document["results"]
        placement = {one["pod"]: one for one in document["placement"]}
        waits = placement.pop("default/wants-every-cpu")
        assert (waits["state"], waits["blocking"][0]["plugin"]) == ("pending", "BatchForecast")
        assert [(one["tier"], one["state"]) for one in placement.values()] == [("BE", "placed")]
        assert [name.startswith(part) for name, part in zip(results, PARTS, strict=True)] == [True] * 3
        assert all(result["latencies"]["count"] > 0 for result in results.values())
        assert results["alone"]["be_idle_share"] is None
        assert results[PARTS[1]]["be_idle_share"] > 0
    else:
        lines = printed.splitlines()
        assert all(any(line.lstrip(" │").startswith(part[:12]) for line in lines) for part in PARTS), printed
        assert any(line.startswith("wants-every-cpu: pending") for line in lines), printed
        assert "nothing is left behind" in lines[-1]
