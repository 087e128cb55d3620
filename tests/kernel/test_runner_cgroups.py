"""The node runner on this machine's real cgroup files, below a root of its own that is removed afterwards."""

from __future__ import annotations

import math
import os
import secrets
import signal
import subprocess
import sys

import pytest

from slacktide.errors import KernelError
from slacktide.kernel.files import read_text, write_value
from slacktide.kernel.hierarchy import Version, discover
from standalone.runner.groups import Groups
from standalone.runner.limits import Limits
from standalone.runner.shim.groups import Target, kill_all, members
from standalone.runner.shim.proc import descendants
from tests.patience import PATIENCE
from tests.standalone.runner.twin import Bench, FakeApi, alive, payload_pid, pod_dict, running_pod, wait_for

pytestmark = pytest.mark.kernel

ALLOCATE = "b = bytearray(); \nwhile True: b += bytes(1 << 20)"


@pytest.fixture
def groups():
    root = f"slacktide-test-{secrets.token_hex(4)}"
    made = Groups(discover(), root)
    try:
        try:
            made.prepare(2048)
        except KernelError as error:
            pytest.skip(f"cgroups cannot be written here: {error}")
        yield made
    finally:
        for tree in made.trees:
            top = os.path.join(tree.mount, root)
            for directory, _, _ in os.walk(top):
                if os.path.exists(f"{directory}/freezer.state"):
                    write_value(f"{directory}/freezer.state", "THAWED")
            kill_all(Target([top]), 10.0 * PATIENCE)
            for directory, _, _ in os.walk(top, topdown=False):
                wait_for(lambda directory=directory: removed(directory))
            assert not os.path.exists(top)


def removed(directory):
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture
def api():
    return FakeApi()


@pytest.fixture
def bench(tmp_path, api, groups):
    made = Bench(str(tmp_path), api, groups)
    yield made
    made.close()


def sh(script):
    return ["sh", "-c", script.replace("$$", "$$$$")]


def directory(groups, controller, relative):
    tree = groups._tree(controller)
    return os.path.join(tree.mount, groups.root, relative), tree.version


def knob(groups, controller, relative, v1, v2):
    path, version = directory(groups, controller, relative)
    return read_text(os.path.join(path, v1 if version is Version.V1 else v2)).strip()


def container_path(bench, pod="web"):
    stored = bench.store.read(next(one.id for one in bench.attempts() if one.pod == pod and one.live))
    tree = bench.containers._groups.trees[0]
    return os.path.relpath(stored.config.dirs[0], os.path.join(tree.mount, bench.containers._groups.root))


def test_requests_and_limits_are_in_the_files(bench, groups):
    pod = pod_dict(command=["sleep", "1000"])
    pod["spec"]["containers"][0]["resources"] = {
        "requests": {"cpu": "500m", "memory": "32Mi"},
        "limits": {"cpu": "1500m", "memory": "64Mi"},
    }
    bench.api.add(pod)
    bench.until(lambda: bench.phase() == "Running")
    relative = container_path(bench)
    uid = pod["metadata"]["uid"]
    assert relative.startswith(f"kubepods/burstable/pod{uid}/")
    for path in (relative, os.path.dirname(relative)):
        assert knob(groups, "cpu", path, "cpu.shares", "cpu.weight") in {"512", "20"}
        assert knob(groups, "cpu", path, "cpu.cfs_quota_us", "cpu.max") in {"150000", "150000 100000"}
        assert knob(groups, "memory", path, "memory.limit_in_bytes", "memory.max") == str(64 << 20)
    assert knob(groups, "cpu", "kubepods/burstable", "cpu.shares", "cpu.weight") in {"512", "20"}
    assert knob(groups, "cpu", "kubepods/besteffort", "cpu.shares", "cpu.weight") in {"2", "1"}
    assert knob(groups, "cpu", "kubepods", "cpu.shares", "cpu.weight") in {"2048", "79"}
    pid = payload_pid(bench)
    for tree in groups.trees:
        assert pid in members([os.path.join(tree.mount, groups.root, relative)])
    bench.api.ask_deletion(grace=0)
    bench.until(lambda: bench.api.pod() is None and not groups.listed())
    bench.until(lambda: knob(groups, "cpu", "kubepods/burstable", "cpu.shares", "cpu.weight") in {"2", "1"})


def test_a_batch_pod_is_best_effort_without_limits(bench, groups):
    pod = pod_dict(command=["sleep", "1000"])
    pod["spec"]["containers"][0]["resources"] = {"requests": {"kubernetes.io/batch-cpu": "1000"}}
    bench.offered = {"cpu": 1000, "memory": 1 << 40, "pods": 9, "kubernetes.io/batch-cpu": 4000}
    bench.api.add(pod)
    bench.until(lambda: bench.phase() == "Running")
    relative = container_path(bench)
    assert relative.startswith("kubepods/besteffort/")
    for path in (relative, os.path.dirname(relative)):
        assert knob(groups, "cpu", path, "cpu.shares", "cpu.weight") in {"2", "1"}
        assert knob(groups, "cpu", path, "cpu.cfs_quota_us", "cpu.max") in {"-1", "max 100000"}


def test_no_process_survives_the_end_of_a_pod(bench, groups, tmp_path):
    script = (
        "trap '' TERM; i=0; while [ $i -lt 5 ]; do i=$((i+1)); "
        "setsid sh -c 'trap \"\" TERM; (setsid sleep 1000 &); sleep 1001' & done; echo up; sleep 1002"
    )
    running_pod(bench, command=sh(script))
    relative = container_path(bench)
    dirs = [os.path.join(tree.mount, groups.root, relative) for tree in groups.trees]
    pids = wait_for(lambda: len(found := members(dirs)) >= 16 and found)
    bench.api.ask_deletion(grace=1)
    bench.until(lambda: bench.api.pod() is None)
    assert not any(alive(pid) for pid in pids)
    assert not any(os.path.exists(path) for path in dirs)


def test_children_end_with_pid_1(bench, groups):
    bench.api.add(pod_dict(command=sh("setsid sleep 1000 & setsid sleep 1001 & exit 4")))
    bench.until(lambda: bench.phase() == "Failed")
    assert bench.terminated()["exitCode"] == 4
    bench.until(lambda: not groups.listed())


CHAIN = """
import os, time
if os.fork() == 0:
    os.setsid()
    while True:
        if os.fork():
            os._exit(0)
time.sleep(0.2)
os._exit(2)
"""


@pytest.mark.parametrize("how", ["ends", "deleted"])
def test_a_chain_of_forks_cannot_run_away(bench, groups, how):
    """Each link lives for a moment only, so a list of pids is always out of date; freezing first is what catches it."""
    script = CHAIN if how == "ends" else CHAIN.replace("time.sleep(0.2)", "time.sleep(1000)")
    bench.api.add(pod_dict(command=[sys.executable, "-I", "-S", "-c", script]))
    if how == "deleted":
        bench.until(lambda: bench.phase() == "Running")
        bench.api.ask_deletion(grace=0)
        bench.until(lambda: bench.api.pod() is None)
    else:
        bench.until(lambda: bench.phase() == "Failed")
        assert bench.terminated()["exitCode"] == 2
    bench.until(lambda: not groups.listed())


def test_out_of_memory_is_seen(bench):
    pod = pod_dict(command=[sys.executable, "-I", "-S", "-c", ALLOCATE])
    pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": "64Mi"}, "requests": {"memory": "64Mi"}}
    bench.api.add(pod)
    bench.until(lambda: bench.phase() == "Failed")
    state = bench.terminated()
    assert (state["exitCode"], state["reason"]) == (137, "OOMKilled")
    assert "OOMKilled" in bench.recorder.reasons()


def freeze(groups, relative):
    path, version = directory(groups, "freezer", relative)
    if version is Version.V1:
        write_value(f"{path}/freezer.state", "FROZEN")
        wait_for(lambda: read_text(f"{path}/freezer.state").strip() == "FROZEN")
    else:
        write_value(f"{path}/cgroup.freeze", 1)
        wait_for(lambda: "frozen 1" in read_text(f"{path}/cgroup.events"))


@pytest.mark.parametrize("level", ["container", "pod"])
def test_a_frozen_pod_terminates(bench, groups, level):
    pid = running_pod(bench, command=["sleep", "1000"])
    relative = container_path(bench)
    freeze(groups, relative if level == "container" else os.path.dirname(relative))
    bench.api.ask_deletion(grace=1)
    bench.until(lambda: bench.api.pod() is None)
    assert not alive(pid)


def test_a_container_that_cannot_even_start_terminates(bench, groups):
    """Joining a frozen cgroup stops the child before exec; nothing may wait for it."""
    pod = pod_dict(command=["sleep", "1000"])
    groups.make_pod("BestEffort", pod["metadata"]["uid"], Limits(shares=2))
    freeze(groups, f"kubepods/besteffort/pod{pod['metadata']['uid']}")
    bench.api.add(pod)
    bench.until(lambda: bench.attempts())
    shim = wait_for(lambda: bench.store.read(bench.attempts()[0].id).shim)
    wait_for(lambda: descendants(shim.pid))
    payload = descendants(shim.pid)
    assert bench.attempts()[0].started_at is None
    bench.api.ask_deletion(grace=1)
    bench.until(lambda: bench.api.pod() is None)
    assert not any(alive(pid) for pid in payload)


def test_the_oom_killer_is_told_whom_to_prefer(bench):
    pid = running_pod(bench, command=["sleep", "1000"])
    assert read_text(f"/proc/{pid}/oom_score_adj").strip() == "1000"
    shim = bench.store.read(bench.attempts()[0].id).shim
    # Lowering takes CAP_SYS_RESOURCE, which root in a sandbox may lack; the shim then stays as its parent is.
    assert read_text(f"/proc/{shim.pid}/oom_score_adj").strip() in {
        "-998",
        read_text("/proc/self/oom_score_adj").strip(),
    }


def test_without_rights_it_says_so():
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    # Imported before the rights are given up: the interpreter may live where others cannot read.
    script = (
        "import os\n"
        "from slacktide.errors import NotPermitted\n"
        "from slacktide.kernel.hierarchy import discover\n"
        "from standalone.runner.groups import Groups, why_not\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n    Groups(discover(), 'slacktide-test-nobody').prepare(2)\n"
        "except NotPermitted as error:\n    print(why_not(error))\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert found.stdout.startswith("cgroups are off: /"), found.stderr
    assert "slacktide-test-nobody: Permission denied" in found.stdout


def test_a_throttled_pod_terminates(bench, groups):
    pid = running_pod(bench, command=sh("trap '' TERM; while :; do :; done"))
    relative = container_path(bench)
    path, version = directory(groups, "cpu", relative)
    if version is Version.V1:
        write_value(f"{path}/cpu.cfs_quota_us", 1000)
    else:
        write_value(f"{path}/cpu.max", "1000 100000")
    bench.api.ask_deletion(grace=1)
    bench.until(lambda: bench.api.pod() is None)
    assert not alive(pid)


def test_a_container_restarts_under_a_narrowed_pod(bench, groups):
    pod = pod_dict(command=["sleep", "1000"], restartPolicy="Always")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    bench.api.add(pod)
    bench.until(lambda: bench.phase() == "Running")
    relative = container_path(bench)
    path, version = directory(groups, "cpu", os.path.dirname(relative))
    if version is Version.V1:
        write_value(os.path.join(directory(groups, "cpu", relative)[0], "cpu.cfs_quota_us"), 20_000)
        write_value(f"{path}/cpu.cfs_quota_us", 20_000)
    else:
        write_value(f"{path}/cpu.max", "20000 100000")
    os.kill(payload_pid(bench), signal.SIGKILL)
    bench.until(
        lambda: (
            bench.status()["containerStatuses"][0]["restartCount"] == 1
            and "running" in bench.status()["containerStatuses"][0]["state"]
        )
    )


def test_a_killed_shim_takes_everything_along(bench, groups):
    pid = running_pod(bench, command=sh("setsid sleep 1000 & setsid sleep 1001 & exec sleep 1002"))
    relative = container_path(bench)
    dirs = [os.path.join(tree.mount, groups.root, relative) for tree in groups.trees]
    pids = wait_for(lambda: len(found := members(dirs)) == 3 and found)
    assert pid in pids
    os.kill(bench.store.read(bench.attempts()[0].id).shim.pid, signal.SIGKILL)
    bench.until(lambda: bench.phase() == "Failed")
    assert bench.terminated()["exitCode"] == 137
    assert not any(alive(one) for one in pids)


def test_groups_without_a_pod_are_removed_only_after_a_list(bench, groups, api):
    running_pod(bench, command=["sleep", "1000"])
    pid, relative = payload_pid(bench), container_path(bench)
    attempt = bench.attempts()[0]
    bench.crash()
    # The record is lost as well: only the cgroup tells that something runs.
    bench.store.remove(attempt.id)
    api.objects, api.synced = {}, False
    second = Bench(bench.directory, api, groups)
    try:
        for _ in range(3):
            second.turns.turn()
        assert alive(pid)
        api.synced = True
        second.until(lambda: not groups.listed())
        assert not alive(pid)
        assert not os.path.exists(directory(groups, "cpu", relative)[0])
    finally:
        second.close()


def test_kill_9_of_the_runner_then_adoption(groups, tmp_path):
    """A real runner process, killed for real: same payload, the log goes on, the exit code arrives."""
    script = (
        "import sys\n"
        "from slacktide.kernel.hierarchy import discover\n"
        "from standalone.runner.groups import Groups\n"
        "from tests.standalone.runner.twin import Bench, FakeApi, pod_dict\n"
        "api = FakeApi()\n"
        "api.add(pod_dict(command=['sh', '-c', sys.argv[3]]))\n"
        "api.pod()['metadata']['uid'] = '3a1f3f9e-3c9d-4e0b-8a37-0f2f0f6f3d11'\n"
        "bench = Bench(sys.argv[1], api, Groups(discover(), sys.argv[2]))\n"
        "bench.until(lambda: bench.phase() == 'Running')\n"
        "print('running', flush=True)\n"
        "while True:\n    bench.turns.turn(); bench.wake.wait(1.0)\n"
    )
    payload = f"echo first; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo second; exit 6"
    argv = [sys.executable, "-c", script, str(tmp_path), groups.root, payload]
    runner = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=os.getcwd())
    with runner:
        assert runner.stdout.readline() == b"running\n"
        runner.kill()
    assert runner.returncode == -signal.SIGKILL
    api = FakeApi()
    pod = pod_dict(command=["sh", "-c", payload])
    pod["metadata"]["uid"] = "3a1f3f9e-3c9d-4e0b-8a37-0f2f0f6f3d11"
    api.add(pod)
    bench = Bench(str(tmp_path), api, groups)
    try:
        pid = payload_pid(bench)
        assert alive(pid)
        bench.until(lambda: bench.phase() == "Running")
        assert payload_pid(bench) == pid
        (tmp_path / "go").touch()
        bench.until(lambda: bench.phase() == "Failed")
        assert bench.terminated()["exitCode"] == 6
        assert bench.status()["containerStatuses"][0]["restartCount"] == 0
        assert [line.split(" ", 3)[3] for line in bench.log().splitlines()] == ["first", "second"]
    finally:
        bench.close()


def test_a_probe_runs_inside_the_container(bench, groups):
    pod = pod_dict(command=["sleep", "1000"])
    pod["spec"]["containers"][0]["readinessProbe"] = {
        "exec": {"command": ["grep", "-q", f"/{groups.root}/kubepods/", "/proc/self/cgroup"]},
        "periodSeconds": 1,
        "timeoutSeconds": math.ceil(PATIENCE),
    }
    bench.api.add(pod)
    bench.until(lambda: bench.phase() == "Running" and bench.status()["containerStatuses"][0]["ready"])


def test_vanished_directories_are_no_error(bench, groups):
    uid = "3a1f3f9e-3c9d-4e0b-8a37-0f2f0f6f3d12"
    assert groups.kill(uid, "0" * 64) == 0
    assert groups.remove_container(uid, "0" * 64) is True
    assert groups.remove_pod(uid) is True
