"""The agent within the whole product: limits of BE pods, drills, the closing of the node, and what it never touches."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from datetime import datetime

import psutil
import pytest

from agent.act.audit import read as read_audit
from slacktide.cluster import PDBS
from slacktide.kernel.files import read_text
from slacktide.v1 import drill_pb2 as pb
from tests.patience import PATIENCE
from tests.whole.drills import drill
from tests.whole.node import Group, bound, whole_tree, writable
from tests.whole.support import SLACKTIDE, started, wait_until
from tests.whole.test_kills import phase, start_be

pytestmark = [pytest.mark.whole, pytest.mark.timeout(240)]

MIB = 1 << 20
BUSY = "while :; do :; done"

AGENT = """
turn_seconds: 0.25
policies: [batch_limits, weight, spread, pids, burst, contention, cache_bandwidth, memory, io, close, evict, kill]
shortage: {run_delay_cut: 100, psi_cut: 1}
contention: {step_percent: 50, quiet_seconds: 0, min_dwell_seconds: 0, settle_seconds: 0.1}
close: {exhausted_seconds: 1, short_seconds: 1, quiet_seconds: 0, min_dwell_seconds: 0}
evict: {fresh_samples: 1, pressure_settle_seconds: 1, cooldown_seconds: 0, quiet_seconds: 0, min_dwell_seconds: 0}
drill: {load: true, dead_man_seconds: 2, refuse_in_trouble: false}
"""
"""Only a drill makes LS short: whatever else this machine does must not, so *suppress* is left out. All else follows at
once."""

PREDICTOR = {
    "SLACKTIDE_PREDICTOR_PUBLISH_SECONDS": "0.5",
    "SLACKTIDE_PREDICTOR_RISE_WAIT_SECONDS": "0",
}


@pytest.fixture(scope="module")
def shared():
    with started(PREDICTOR, config={"agent": AGENT}) as running:
        if not writable(running):
            pytest.skip("cgroups of this machine cannot be written, so there are no limits")
        yield running


@pytest.fixture(scope="module")
def protected(shared):
    """What the kernel held for an LS pod, with limits of its own, before anything happened."""
    words = ["--limit-cpu", "500m", "--limit-memory", "64Mi", "--detach", "--name", "protected"]
    assert shared.ls(*words, "--", "sh", "-c", "while sleep 0.05; do :; done").returncode == 0
    wait_until(lambda: phase(shared, "protected") == "Running", shared)
    group = Group(shared, "protected")
    wait_until(lambda: any(pod["name"] == "protected" for pod in status(shared).get("pods", [])), shared)
    held = group.held()
    assert any(name.endswith(("cpu.cfs_quota_us", "cpu.max")) for name in held)
    return group, settled(held)


@pytest.fixture
def up(shared, protected):
    """The running Slacktide; after each test the LS pod must hold what it held, and BE nothing of the agent's."""
    yield shared
    shared.clear(keep="protected")
    group, held = protected
    assert settled(group.held()) == held


def settled(held):
    """Without the masks of processes that come and go: those that are there may run everywhere."""
    masks = [value for name, value in held.items() if name.startswith("CPUs of")]
    assert all(set(mask) == os.sched_getaffinity(0) for mask in masks)
    return {name: value for name, value in held.items() if not name.startswith("CPUs of")}


def status(up):
    """What the agent says of itself; nothing while it starts."""
    text = up.ask("agent", "/status")
    return json.loads(text) if text.startswith("{") else {}


def reported(up, name):
    """The pod as /status has it."""
    return next((pod for pod in status(up).get("pods", []) if pod["name"] == name), {})


def limited(up, group):
    """Whether the drill's cut is in the kernel."""
    return status(up).get("be_quota_millis") and (group.quota() or 10_000) <= 100


def test_batch_limits_throttle_are_reported_and_are_put_back(up):
    bound(up, "capped", BUSY, cpu=150, memory=64 * MIB)
    group = Group(up, "capped")
    places = [(group.files("cpu"), group.files("memory")), (group.leaf("cpu"), group.leaf("memory"))]

    def held():
        return all(group.quota(cpu) == 150 and group.memory(memory) == 64 * MIB for cpu, memory in places)

    wait_until(held, up)
    before = group.throttled()
    wait_until(lambda: group.throttled() >= before + 5, up)
    shown = wait_until(lambda: (pod := reported(up, "capped")).get("throttled_ratio") and pod, up)
    assert (shown["tier"], shown["quota_millis"], shown["idle"]) == ("BE", 150, True)
    assert "held to a batch-cpu limit" in status(up)["reasons"]["batch_limits"]
    drift = status(up)["counters"]["drift"]
    group.lift()
    wait_until(held, up)
    wait_until(lambda: status(up)["counters"]["drift"] >= drift + 4, up)


def test_slacktide_run_ends_beyond_its_memory_limit_and_ps_says_why(up):
    if "SwapTotal:             0 kB" not in read_text("/proc/meminfo"):
        pytest.skip("with swap a memory limit makes processes swap instead of ending them")
    # It grows once it is limited: the agent sets the limit a moment after the start.
    script = "import time\nheld = []\nwhile True:\n    held.append(bytearray(b'x') * (1 << 20)); time.sleep(0.05)\n"
    words = ["run", "--keep", "--name", "greedy", "--cpu", "1m", "--memory", "16Mi", "--limit-memory", "48Mi"]
    done = up.run(*words, "--start-timeout", "5", "--", sys.executable, "-S", "-c", script, timeout=120)
    if done.returncode == 4:
        # This machine has no idle CPU to sell, so it is bound by hand.
        bound(up, "greedy", f"exec {shlex.join([sys.executable, '-S', '-c', script])}", memory=48 * MIB)
        wait_until(lambda: phase(up, "greedy") == "Failed", up)
    else:
        assert done.returncode == 137, (done.stdout, done.stderr)
    (pod,) = [pod for pod in up.json("ps")["pods"] if pod["name"] == "greedy"]
    assert (pod["status"], pod["exit_code"]) == ("Failed", 137)
    assert "OOMKilled" in pod["reason"]


def test_a_drill_throttles_be_in_the_kernel_and_gives_all_back(up):
    bound(up, "free", BUSY)
    bound(up, "capped", BUSY, cpu=400)
    free, capped = Group(up, "free"), Group(up, "capped")
    wait_until(lambda: capped.quota() == 400 and free.idle() and capped.idle(), up)
    with drill(up, 4) as one:
        wait_until(lambda: limited(up, free) and limited(up, capped), up)
        before = free.throttled() + capped.throttled()
        wait_until(lambda: free.throttled() + capped.throttled() > before, up)
        assert "a drill raises LS pressure" in status(up)["reasons"]["contention"]
        last = one.result()
    assert one.went(["WAITING", "RAISED", "DETECTED", "THROTTLED", "RECOVERED"])
    times = [last.result.detected_millis, last.result.throttled_millis, last.result.recovered_millis]
    assert times == sorted(times)
    assert times[-1] >= 4000
    assert (len(last.result.victims), last.result.HasField("evicted_millis")) == (0, False)
    wait_until(lambda: free.quota() is None and capped.quota() == 400, up)
    wait_until(lambda: status(up)["drill"]["phase"] == "recovered" and not status(up)["closed"], up)
    assert [phase(up, name) for name in ("free", "capped")] == ["Running", "Running"]


def audited(up, name):
    return [line for line in read_audit(up.state.folder("agent"))[0] if line.name == name]


def test_a_drill_with_a_budget_of_one_evicts_the_newest_through_the_api(up):
    # Creation is known to the second.
    made = datetime.fromisoformat(bound(up, "elder", BUSY).metadata.creation_timestamp).timestamp()
    wait_until(lambda: time.time() >= made + 1, up)
    bound(up, "newest", BUSY)
    wait_until(
        lambda: all((reported(up, name).get("usage") or {}).get("cpu_millis") for name in ("elder", "newest")), up
    )
    uid = up.pod("newest").metadata.uid
    with drill(up, 8, victim_budget=1) as one:
        one.reaches("EVICTED")
        wait_until(lambda: up.pod("newest") is None, up)
        (event,) = wait_until(lambda: up.events("newest", "SlacktideEvicted"), up)
        last = one.result()
    assert one.went(["WAITING", "RAISED", "DETECTED", "THROTTLED", "EVICTED", "RECOVERED"])
    (victim,) = last.result.victims
    assert (victim.name, victim.uid, victim.evicted) == ("newest", uid, True)
    assert (event.type, event.involved_object.uid) == ("Warning", uid)
    (drilled,) = wait_until(lambda: up.events("newest", "SlacktideDrill"), up)
    assert drilled.message == f"Evicted by drill {one.id} by the owner of the socket (test)"
    assert "Evicted for the pods that must answer: LS is short although contention was cut to the end" in event.message
    (line,) = audited(up, "newest")
    assert (line.uid, line.way, line.outcome, line.drill) == (uid, "evict", "sent", one.id)
    assert line.numbers["shortage"] == "a drill raises LS pressure"
    assert phase(up, "elder") == "Running"
    assert up.metric("agent", "slacktide_agent_evictions_total") in {None, 1.0}


def test_a_disruption_budget_keeps_its_pods_and_the_drill_says_so(up):
    bound(up, "kept", BUSY)
    pod = up.pod("kept")
    body = {
        "metadata": {"name": "none"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": pod.metadata.labels}},
    }
    up.client.create(PDBS, body, "default")
    try:
        wait_until(lambda: (reported(up, "kept").get("usage") or {}).get("cpu_millis"), up)
        with drill(up, 6, victim_budget=1) as one:
            (event,) = wait_until(lambda: up.events("kept", "SlacktideEvictionBlocked"), up)
            last = one.result()
    finally:
        up.client.delete(PDBS, "none", "default")
    assert "EVICTED" not in one.phases
    (victim,) = last.result.victims
    assert (victim.name, victim.evicted) == ("kept", False)
    assert "; not evicted: blocked by a disruption budget: " in victim.reason
    assert "blocked" in event.message
    assert {line.outcome for line in audited(up, "kept")} == {"blocked"}
    assert phase(up, "kept") == "Running"
    assert up.pod("kept").metadata.uid == pod.metadata.uid


def test_a_dry_drill_names_its_victim_and_evicts_nobody(up):
    bound(up, "named", BUSY)
    wait_until(lambda: (reported(up, "named").get("usage") or {}).get("cpu_millis"), up)
    with drill(up, 4, victim_budget=1, dry_run=True) as one:
        last = one.result()
    assert one.went(["WAITING", "RAISED", "DETECTED", "THROTTLED", "RECOVERED"])
    (victim,) = last.result.victims
    assert (victim.name, victim.uid, victim.evicted) == ("named", up.pod("named").metadata.uid, False)
    assert victim.reason.endswith("; not evicted: a dry run evicts nobody")
    assert (audited(up, "named"), up.events("named", "SlacktideEvicted")) == ([], [])
    assert phase(up, "named") == "Running"


def test_an_aborted_drill_gives_be_its_room_back(up):
    bound(up, "busy", BUSY)
    group = Group(up, "busy")
    with drill(up, 300) as one:
        wait_until(lambda: limited(up, group), up)
        assert "ends with the next beat" in one.abort()
        last = one.result()
    assert one.phases[-1] == "ABORTED"
    assert last.message == "aborted by the owner of the socket"
    wait_until(lambda: group.quota() is None and status(up)["be_quota_millis"] is None, up)


WATCHER = """
import sys
import grpc
from slacktide.v1 import drill_pb2 as pb, drill_pb2_grpc
stub = drill_pb2_grpc.DrillServiceStub(grpc.insecure_channel(sys.argv[1]))
request = pb.StartDrillRequest(pressure=pb.PRESSURE_KIND_SIGNAL, duration_millis=300000)
for message in stub.WatchDrill(pb.WatchDrillRequest(drill_id=stub.StartDrill(request).drill_id)):
    print(message.phase, flush=True)
"""


def test_a_drill_ends_when_its_only_watcher_is_killed(up):
    bound(up, "busy", BUSY)
    group = Group(up, "busy")
    watcher = subprocess.Popen([sys.executable, "-c", WATCHER, f"unix:{up.state.drill_socket}"], stdout=subprocess.PIPE)
    try:
        wait_until(lambda: limited(up, group), up)
        assert status(up)["drill"]["phase"] == "throttled"
    finally:
        watcher.kill()
        watcher.communicate()
    wait_until(lambda: status(up)["drill"]["phase"] == "aborted", up)
    assert status(up)["drill"]["message"] == "nobody watched for 2 s"
    wait_until(lambda: group.quota() is None, up)


def burners(up):
    """Processes that burn CPU for a drill: children of the agent's helper."""
    children = psutil.Process(up.processes()["agent"].pid).children()
    (helper,) = [one for one in children if one.cmdline()[-1].endswith("drill_load_helper.py")]
    return helper.children()


def burnt_seconds(up):
    times = []
    for process in burners(up):
        with contextlib.suppress(psutil.NoSuchProcess):
            times.append(process.cpu_times().user)
    return sum(times)


def test_a_drill_with_real_load_burns_and_stops(up):
    assert burners(up) == []
    deadline = time.monotonic() + 60.0 * PATIENCE
    burnt = False
    while not burnt and time.monotonic() < deadline:
        # Only what LS and SYSTEM leave idle is burnt: on a machine that is busy otherwise that may be nothing.
        with drill(up, 60, pressure=pb.PRESSURE_KIND_LOAD) as one:
            one.reaches("RAISED")
            burnt = bool(burners(up)) and wait_until(lambda: burnt_seconds(up) > 0.02, up)
            one.abort()
            one.result()
        wait_until(lambda: not burners(up), up)
    if not burnt:
        pytest.skip("this machine has no idle CPU to burn")
    assert status(up)["closed"] == ""


def test_a_node_that_closes_is_closed_to_the_scheduler_at_once_and_opens_again(up):
    wait_until(lambda: (said := up.forecast()) and not said.closed, up)
    bound(up, "busy", BUSY)
    with drill(up, 300) as one:
        why = wait_until(lambda: status(up).get("closed"), up)
        begin = time.monotonic()
        wait_until(lambda: "closed by the agent: " in up.forecast().closed, up, seconds=10.0 * PATIENCE)
        print(f"forecast closed {time.monotonic() - begin:.1f} s after the agent said so")
        assert "a drill raises LS pressure" in why
        assert "a drill raises LS pressure" in up.forecast().closed
        start_be(up, "late", "echo at last")
        wait_until(lambda: "closed for batch work" in up.condition("late"), up)
        assert "closed by the agent" in up.condition("late")
        one.abort()
        one.result()
    wait_until(lambda: not status(up)["closed"] and not up.forecast().closed, up)
    wait_until(lambda: phase(up, "late") == "Succeeded", up)


def test_a_second_agent_is_refused_and_told_by_whom(up, tmp_path):
    command = [
        *(sys.executable, "-P", "-m", "agent", "--node", "whole", "--cluster.server", f"unix:{up.state.api_socket}"),
        *("--state-dir", str(tmp_path / "other"), "--cgroup-root", up.state.cgroup_root),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    assert done.returncode == 1
    assert f"another agent (pid {up.processes()['agent'].pid}: " in done.stderr
    assert up.state.cgroup_root in done.stderr
    again = subprocess.run(
        [*SLACKTIDE, "--state", up.root, "agent", "restore"], capture_output=True, text=True, timeout=60, check=False
    )
    assert again.returncode == 2
    assert str(up.processes()["agent"].pid) in again.stderr


@contextlib.contextmanager
def observing(up):
    """The agent started anew with `observe_only`, and without it again in the end."""
    try:
        restart(up, AGENT + "observe_only: true\n")
        yield
    finally:
        restart(up, AGENT)


def restart(up, config):
    before = up.processes()["agent"]
    with open(up.state.config_file("agent"), "w") as file:
        file.write(config)
    os.kill(before.pid, signal.SIGTERM)
    wait_until(lambda: up.processes().get("agent") not in {None, before} and up.ready() and status(up), up)


def test_observing_only_says_and_audits_all_and_changes_nothing(up):
    bound(up, "busy", BUSY, cpu=150, memory=64 * MIB)
    group = Group(up, "busy")
    wait_until(lambda: group.quota() == 150, up)
    with observing(up):
        wait_until(lambda: status(up).get("observe_only") and reported(up, "busy"), up)
        # What the agent before gave back when it was told to end.
        assert (group.quota(), group.idle()) == (None, False)
        held = settled(whole_tree(up))
        assert any("besteffort/cpu.shares" in name or "besteffort/cpu.weight" in name for name in held)
        wait_until(lambda: (reported(up, "busy").get("usage") or {}).get("cpu_millis"), up)
        with drill(up, 8, victim_budget=1) as one:
            wait_until(lambda: status(up)["be_quota_millis"], up)
            assert "a drill raises LS pressure" in status(up)["reasons"]["contention"]
            assert "held to a batch-cpu limit" in status(up)["reasons"]["batch_limits"]
            assert "observe" in status(up)["line"]
            wait_until(lambda: status(up)["closed"], up)
            (line,) = wait_until(lambda: audited(up, "busy"), up)
            last = one.result()
        assert (line.outcome, line.drill) == ("dry-run", one.id)
        assert [victim.evicted for victim in last.result.victims] == [False]
        assert settled(whole_tree(up)) == held
        assert (reported(up, "busy")["quota_millis"], reported(up, "busy")["idle"]) == (None, False)
        assert phase(up, "busy") == "Running"
        assert up.events("busy", "SlacktideEvicted") == []
    wait_until(lambda: group.quota() == 150 and group.idle(), up)
