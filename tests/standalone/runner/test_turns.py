"""The whole loop on real processes without cgroups: start, status, restart, end, adoption."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time

import pytest

from standalone.runner.containers import StartError
from tests.standalone.runner.twin import Bench, FakeApi, alive, payload_pid, pod_dict, running_pod, wait_for


@pytest.fixture
def api():
    return FakeApi()


@pytest.fixture
def bench(tmp_path, api):
    made = Bench(str(tmp_path), api)
    yield made
    made.close()


def sh(script):
    # `$$` is an escaped `$` in a pod's command, so a shell's own `$$` has to be doubled.
    return ["sh", "-c", script.replace("$$", "$$$$")]


def test_a_pod_runs_logs_and_succeeds(bench, api):
    pod = pod_dict()
    pod["spec"]["containers"][0] |= {
        "command": sh("echo out; echo err >&2; echo $GREETING $(NAME); pwd"),
        "env": [{"name": "NAME", "value": "tide"}, {"name": "GREETING", "value": "hello-$(NAME)"}],
        "workingDir": "/usr",
    }
    api.add(pod)
    bench.until(lambda: bench.phase() == "Succeeded")
    status = bench.status()
    state = bench.terminated()
    assert (state["exitCode"], state["reason"]) == (0, "Completed")
    assert status["containerStatuses"][0]["containerID"].startswith("slacktide://")
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "PodScheduled": "True",
        "Initialized": "True",
        "ContainersReady": "False",
        "Ready": "False",
    }
    texts = [line.split(" ", 3)[1:] for line in bench.log().splitlines()]
    assert ["stdout", "F", "out"] in texts
    assert ["stderr", "F", "err"] in texts
    assert ["stdout", "F", "hello-tide tide"] in texts
    assert ["stdout", "F", "/usr"] in texts
    assert bench.recorder.reasons() == ["Started"] or bench.recorder.reasons() == []


def test_exit_code_of_a_failed_pod(bench, api):
    api.add(pod_dict(command=sh("exit 7")))
    bench.until(lambda: bench.phase() == "Failed")
    assert (bench.terminated()["exitCode"], bench.terminated()["reason"]) == (7, "Error")


def test_a_signal_shows_as_128_plus_its_number(bench, api):
    api.add(pod_dict(command=sh("kill -USR1 $$")))
    bench.until(lambda: bench.phase() == "Failed")
    state = bench.terminated()
    assert (state["exitCode"], state.get("signal")) == (138, 10), state


def test_command_not_found(bench, api):
    api.add(pod_dict(command=["no-such-command-here"]))
    bench.until(lambda: bench.phase() == "Failed")
    state = bench.terminated()
    assert (state["exitCode"], state["reason"]) == (127, "StartError")
    assert "no-such-command-here" in state["message"]
    assert "PATH" in state["message"]
    assert "Failed" in bench.recorder.reasons()


@pytest.mark.parametrize(
    ("command", "cwd", "code", "reason", "words"),
    [
        (["/etc/passwd"], "", 126, "ContainerCannotRun", "/etc/passwd"),
        (["true"], "/no/such/dir", 128, "StartError", "/no/such/dir"),
        (["/no/such/file"], "", 127, "StartError", "/no/such/file"),
    ],
)
def test_what_cannot_start_says_why(bench, api, command, cwd, code, reason, words):
    pod = pod_dict(command=command)
    pod["spec"]["containers"][0]["workingDir"] = cwd
    api.add(pod)
    bench.until(lambda: bench.phase() == "Failed")
    state = bench.terminated()
    assert (state["exitCode"], state["reason"]) == (code, reason)
    assert words in state["message"]


def test_no_command_at_all(bench, api):
    pod = pod_dict()
    pod["spec"]["containers"][0]["command"] = []
    api.add(pod)
    bench.until(lambda: bench.phase() == "Failed")
    assert bench.terminated()["exitCode"] == 127
    assert "names no command" in bench.terminated()["message"]


def test_restarts_with_back_off(bench, api, tmp_path):
    marker = tmp_path / "count"
    api.add(pod_dict(command=sh(f"echo x >> {marker}; exit 1"), restartPolicy="OnFailure"))
    bench.until(lambda: bench.status().get("containerStatuses", [{}])[0].get("restartCount", 0) >= 3)
    bench.until(
        lambda: bench.status()["containerStatuses"][0]["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
    status = bench.status()["containerStatuses"][0]
    assert status["lastState"]["terminated"]["exitCode"] == 1
    assert bench.phase() == "Running"
    assert "BackOff" in bench.recorder.reasons()
    assert len(bench.attempts()) <= 3
    assert marker.read_text().count("x") >= 4


def test_init_containers_run_in_order_and_sidecars_stay(bench, api, tmp_path):
    trace = tmp_path / "trace"
    pod = pod_dict(command=sh(f"echo main >> {trace}; cat {trace}"))
    pod["spec"]["initContainers"] = [
        {"name": "one", "command": sh(f"sleep 0.05; echo one >> {trace}")},
        {"name": "side", "command": sh(f"echo side >> {trace}; exec sleep 1000"), "restartPolicy": "Always"},
        {"name": "two", "command": sh(f"sleep 0.05; echo two >> {trace}")},
    ]
    api.add(pod)
    bench.until(lambda: bench.phase() == "Succeeded")
    lines = trace.read_text().split()
    assert lines.index("one") < lines.index("two") < lines.index("main")
    assert "side" in lines
    inits = {one["name"]: one["state"] for one in bench.status()["initContainerStatuses"]}
    assert inits["one"]["terminated"]["exitCode"] == 0
    assert inits["side"]["terminated"]["exitCode"] == 143


def test_failed_init_fails_the_pod_and_main_never_runs(bench, api, tmp_path):
    pod = pod_dict(command=["touch", str(tmp_path / "ran")])
    pod["spec"]["initContainers"] = [{"name": "one", "command": sh("exit 3")}]
    api.add(pod)
    bench.until(lambda: bench.phase() == "Failed")
    assert not (tmp_path / "ran").exists()
    assert bench.status()["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_deletion_gives_grace_then_confirms(bench, api, tmp_path):
    saved = tmp_path / "saved"
    script = f"trap 'echo bye > {saved}; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    pid = running_pod(bench, command=sh(script))
    wait_for(lambda: "ready" in bench.log())
    api.ask_deletion()
    bench.until(lambda: api.pod() is None)
    assert saved.read_text() == "bye\n"
    assert not alive(pid)
    bench.until(lambda: not bench.attempts())
    assert os.listdir(bench.logs) == []
    assert "Killing" in bench.recorder.reasons()


def test_what_ignores_sigterm_and_leaves_its_session_is_killed(bench, api, tmp_path):
    pids = tmp_path / "pids"
    script = (
        f"trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ >> {pids}; sleep 1000' & "
        f"(setsid sh -c 'trap \"\" TERM; (echo $PPID >> {pids}; exec sleep 1001) &' &) ; echo $$ >> {pids}; sleep 1002"
    )
    running_pod(bench, command=sh(script))
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) >= 3)
    before = _children_of(bench)
    api.ask_deletion(grace=1)
    bench.until(lambda: api.pod() is None)
    wait_for(lambda: not any(alive(pid) for pid in before))


def _children_of(bench):
    from standalone.runner.shim.proc import descendants

    found = []
    for attempt in bench.attempts():
        shim = bench.store.read(attempt.id).shim
        found += descendants(shim.pid)
    assert len(found) >= 3
    return found


def test_nothing_outlives_pid_1(bench, api, tmp_path):
    stray = tmp_path / "stray"
    api.add(pod_dict(command=sh(f"(setsid sleep 1000 & echo $! > {stray}) ; while [ ! -s {stray} ]; do :; done")))
    bench.until(lambda: bench.phase() == "Succeeded")
    assert not alive(int(stray.read_text()))


def test_a_new_runner_adopts_what_runs(bench, api, tmp_path):
    script = "echo first; while [ ! -e go ]; do sleep 0.02; done; echo second; exit 5"
    pod = pod_dict(command=sh(script))
    pod["spec"]["containers"][0]["workingDir"] = str(tmp_path)
    api.add(pod)
    bench.until(lambda: bench.phase() == "Running")
    pid = payload_pid(bench)
    bench.crash()
    second = Bench(bench.directory, api)
    try:
        second.until(lambda: second.phase() == "Running")
        assert payload_pid(second) == pid
        (tmp_path / "go").touch()
        second.until(lambda: second.phase() == "Failed")
        assert second.terminated()["exitCode"] == 5
        assert [line.split(" ", 3)[3] for line in second.log().splitlines()] == ["first", "second"]
        assert second.status()["containerStatuses"][0]["restartCount"] == 0
    finally:
        second.close()


def test_an_end_while_no_runner_was_there_is_reported(bench, api, tmp_path):
    running_pod(bench, command=sh(f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; exit 9"))
    pid = payload_pid(bench)
    bench.crash()
    (tmp_path / "go").touch()
    wait_for(lambda: not alive(pid))
    second = Bench(bench.directory, api)
    try:
        second.until(lambda: second.phase() == "Failed")
        assert second.terminated()["exitCode"] == 9
    finally:
        second.close()


def test_a_killed_shim_takes_the_payload_along(bench, api):
    pid = running_pod(bench, command=["sleep", "1000"])
    shim = bench.store.read(bench.attempts()[0].id).shim
    os.kill(shim.pid, signal.SIGKILL)
    bench.until(lambda: bench.phase() == "Failed")
    assert not alive(pid)
    assert bench.terminated()["exitCode"] == 137
    assert "shim" in bench.terminated()["message"]


def test_before_the_first_list_nothing_is_cleaned_up(bench, api):
    pid = running_pod(bench, command=["sleep", "1000"])
    bench.crash()
    kept, api.objects, api.synced = api.objects, {}, False
    second = Bench(bench.directory, api)
    try:
        for _ in range(5):
            second.turns.turn()
        assert alive(pid)
        api.objects, api.synced = kept, True
        second.until(lambda: second.phase() == "Running")
        assert payload_pid(second) == pid
        api.objects.pop(("Pod", "default", "web"))
        second.until(lambda: not second.attempts())
        assert not alive(pid)
    finally:
        second.close()


def test_deletion_continues_over_a_crash_with_its_deadline(bench, api):
    pid = running_pod(bench, command=sh("trap '' TERM; while :; do sleep 0.02; done"))
    wait_for(lambda: bench.attempts()[0].started_at)
    api.ask_deletion(grace=2)
    bench.until(lambda: bench.attempts()[0].stopping)
    deadline = bench.attempts()[0].stopping.kill_at()
    bench.crash()
    second = Bench(bench.directory, api)
    try:
        assert second.attempts()[0].stopping.kill_at() == deadline
        second.until(lambda: api.pod() is None)
        assert time.monotonic() >= deadline
        assert not alive(pid)
    finally:
        second.close()


def test_corrupt_record_is_set_aside_and_said(bench, api):
    running_pod(bench, command=["sleep", "1000"])
    attempt = bench.attempts()[0]
    pid = payload_pid(bench)
    bench.crash()
    with open(bench.store.path(attempt.id, "config.json"), "w", encoding="utf-8") as file:
        file.write('{"torn')
    second = Bench(bench.directory, api)
    try:
        second.until(lambda: second.metrics.corrupt._value.get() == 1)
        assert os.listdir(os.path.join(bench.directory, "state", "corrupt")) == [attempt.id]
        second.until(lambda: not alive(pid))
    finally:
        second.close()


def test_api_away_does_not_hold_up_a_kill(bench, api):
    pid = running_pod(bench, command=sh("trap '' TERM; while :; do sleep 0.02; done"))
    api.ask_deletion(grace=1)
    api.away = True
    bench.until(lambda: not alive(pid))
    api.away = False
    bench.until(lambda: api.pod() is None)


def test_readiness_probe_decides(bench, api, tmp_path):
    pod = pod_dict(command=["sleep", "1000"])
    pod["spec"]["containers"][0]["readinessProbe"] = {
        "exec": {"command": ["test", "-e", str(tmp_path / "up")]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    api.add(pod)
    bench.until(lambda: bench.phase() == "Running")
    assert bench.status()["containerStatuses"][0]["ready"] is False
    (tmp_path / "up").touch()
    bench.until(lambda: bench.status()["containerStatuses"][0]["ready"])
    ready = {one["type"]: one["status"] for one in bench.status()["conditions"]}
    assert ready["Ready"] == ready["ContainersReady"] == "True"


def test_a_pod_that_does_not_fit_is_refused(bench, api):
    bench.offered = {"cpu": 1000, "memory": 1 << 30, "pods": 110}
    pod = pod_dict(command=["true"])
    pod["spec"]["containers"][0]["resources"] = {"requests": {"kubernetes.io/batch-cpu": "500"}}
    api.add(pod)
    bench.until(lambda: bench.phase() == "Failed")
    assert bench.status()["reason"] == "OutOfkubernetes.io/batch-cpu"
    assert "requested: 500, used: 0, capacity: 0" in bench.status()["message"]
    assert bench.attempts() == ()


def test_pods_wait_while_the_node_is_unknown(bench, api):
    bench.offered = None
    api.add(pod_dict(command=["true"]))
    for _ in range(3):
        bench.turns.turn()
    assert bench.attempts() == ()
    assert bench.phase() == "Pending"
    bench.offered = {"cpu": 1000, "memory": 1 << 30, "pods": 110}
    bench.until(lambda: bench.phase() == "Succeeded")


def test_no_space_for_records_is_said_and_retried(bench, api, tmp_path):
    store = os.path.join(bench.directory, "state", "containers")
    os.rename(store, store + ".away")
    with open(store, "w", encoding="utf-8"):
        pass
    api.add(pod_dict(command=["true"]))
    with pytest.raises(NotADirectoryError):
        bench.turns.turn()
    os.unlink(store)
    os.rename(store + ".away", store)
    bench.until(lambda: bench.phase() == "Succeeded")


def test_env_source_that_cannot_be_served(bench, api):
    pod = pod_dict(command=["true"])
    pod["spec"]["containers"][0]["env"] = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    api.add(pod)
    waiting = bench.until(lambda: bench.status().get("containerStatuses", [{}])[0].get("state", {}).get("waiting"))
    bench.until(
        lambda: bench.status()["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    )
    assert waiting
    assert "secretKeyRef" in bench.status()["containerStatuses"][0]["state"]["waiting"]["message"]


def test_image_and_volumes_are_warned_of_once(bench, api):
    pod = pod_dict(command=["true"], volumes=[{"name": "v", "emptyDir": {}}])
    pod["spec"]["containers"][0]["image"] = "nginx"
    api.add(pod)
    bench.until(lambda: bench.phase() == "Succeeded")
    assert bench.recorder.reasons().count("ImageIgnored") == 1
    assert bench.recorder.reasons().count("VolumesIgnored") == 1


def test_a_shim_that_never_began_is_no_end_of_the_container(bench, api, tmp_path):
    """Killed between the record and the process: the payload never ran, so a Never pod must still run."""
    kept = bench.containers._spawn
    marker = tmp_path / "ran"
    bench.containers._spawn = lambda container_id, lock: subprocess.Popen(["true"])
    api.add(pod_dict(command=["touch", str(marker)]))
    bench.until(lambda: "Failed" in bench.recorder.reasons())
    assert not marker.exists()
    bench.containers._spawn = kept
    bench.until(lambda: bench.phase() == "Succeeded")
    assert marker.exists()
    assert bench.status()["containerStatuses"][0]["restartCount"] == 0


def test_a_shim_that_cannot_begin_is_retried_with_pauses(bench, api):
    spawned = []

    def spawn(container_id, lock):
        spawned.append(container_id)
        return subprocess.Popen(["true"])

    bench.containers._spawn = spawn
    api.add(pod_dict(command=["true"], restartPolicy="Always"))
    bench.until(lambda: bench.turns._failures)
    for _ in range(20):
        bench.turns.turn()
    assert len(spawned) == 1
    waiting = bench.until(lambda: bench.status()["containerStatuses"][0]["state"].get("waiting"))
    assert waiting["reason"] == "RunContainerError"


def test_what_fails_after_a_first_run_is_retried_with_pauses_too(bench, api):
    api.add(pod_dict(command=["true"], restartPolicy="Always"))
    bench.until(lambda: bench.attempts() and bench.attempts()[0].exit)
    tries = []

    def refuse(start):
        tries.append(start.number)
        raise StartError("CreateContainerError", "no space left on device")

    bench.containers.start = refuse
    bench.until(lambda: tries)
    number = max([one.number for one in bench.attempts()]) + 1
    for _ in range(20):
        bench.turns.turn()
    assert tries == [number]
    bench.until(lambda: "no space" in str(bench.status()["containerStatuses"][0]["state"].get("waiting")))


@pytest.mark.parametrize("deleted", [False, True])
def test_a_pod_with_an_unreadable_amount_does_not_stop_the_others(bench, api, deleted):
    bad = pod_dict("bad")
    bad["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1.5.2"}}
    api.add(bad)
    if deleted:
        api.ask_deletion("bad")
    api.add(pod_dict("good", command=["true"]))
    bench.until(lambda: bench.phase("good") == "Succeeded")
    bench.until(lambda: api.pod("bad") is None if deleted else bench.phase("bad") == "Failed")


def test_no_space_is_said_and_leaves_nothing_half_made(bench, api):
    api.add(pod_dict(command=["true"]))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        bench.turns.turn()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert bench.attempts() == ()
    assert os.listdir(os.path.join(bench.directory, "state", "containers")) == []
    waiting = bench.until(lambda: bench.status().get("containerStatuses", [{}])[0].get("state", {}).get("waiting"))
    assert waiting["reason"] in {"CreateContainerError", "ContainerCreating"}
    assert "CreateContainerError" in bench.recorder.events[0][2]
    bench.until(lambda: bench.phase() == "Succeeded")
