"""Each daemon killed and kept away for a while: what goes on without it, what waits, and what is made up for."""

import os
import random
import shutil
import tempfile
import threading
import time

import pytest

from agent.host.cgroup import CgroupLister
from predictor.history import open_history
from slacktide import forecast
from slacktide.cluster import PODS
from slacktide.kernel.hierarchy import Version, discover
from slacktide.names import BATCH_MEMORY, HOST_PROCESS_IMAGE, SCHEDULER_NAME, TIER_LABEL
from standalone.load.colocation import ls_pod, plan_for
from standalone.load.driver import Driver
from standalone.sweep import directories
from tests.whole.support import started, wait_until

pytestmark = [pytest.mark.whole, pytest.mark.timeout(120)]

SETTINGS = {
    # BE is limited as soon as anything else uses CPU, so that there is a limit to keep.
    "SLACKTIDE_AGENT_SUPPRESS__ENGAGE_PERCENT": "1",
    "SLACKTIDE_AGENT_SUPPRESS__TARGET_PERCENT": "1",
    "SLACKTIDE_AGENT_SUPPRESS__HOLD_PERCENT": "0",
    # Without *close*: limited as it is, the node still sells.
    "SLACKTIDE_AGENT_POLICIES": "batch_limits,weight,spread,suppress",
    "SLACKTIDE_AGENT_REPORT__WINDOW_SECONDS": "1",
    "SLACKTIDE_AGENT_REPORT__BACKOFF_MAX_SECONDS": "1",
    "SLACKTIDE_PREDICTOR_TTL_SECONDS": "3",
    "SLACKTIDE_PREDICTOR_PUBLISH_SECONDS": "0.5",
    "SLACKTIDE_PREDICTOR_RISE_WAIT_SECONDS": "0",
}
SPOOLED = "slacktide_agent_spool_bytes"
CONNECTED = "slacktide_agent_predictor_connected"


@pytest.fixture(scope="module")
def shared():
    with started(SETTINGS) as running:
        yield running


def start_be(up, name, script):
    """A BE pod that asks for memory only: it finds room however busy this machine is."""
    container = {
        "name": "main",
        "image": HOST_PROCESS_IMAGE,
        "command": ["sh", "-c", script],
        "resources": {"requests": {BATCH_MEMORY: str(16 << 20)}},
    }
    spec = {
        "schedulerName": SCHEDULER_NAME,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    up.client.create(PODS, {"metadata": {"name": name, "labels": {TIER_LABEL: "be"}}, "spec": spec}, "default")


def phase(up, name):
    pod = up.pod(name)
    return pod.status.phase if pod else ""


def below(value, bound):
    return value is not None and value < bound


class Limit:
    """The CPU quota that the kernel holds for one pod, in its own words."""

    def __init__(self, up, pod):
        lister = CgroupLister(discover(), up.state.cgroup_root)
        name = "cpu.max" if lister.version is Version.V2 else "cpu.cfs_quota_us"
        (group,) = [found.group for found in lister.pods() if found.uid == pod.metadata.uid]
        self._path = os.path.join(lister.absolute(group), name)
        self.value = wait_until(self._limited, up)

    def _limited(self):
        held = self.read()
        return held if held not in {"-1", "max"} else None

    def read(self):
        with open(self._path) as file:
            return file.read().split()[0]


@pytest.fixture
def limit(up):
    """Limit of a busy BE pod."""
    if not directories(discover(), up.state.cgroup_root):
        pytest.skip("cgroups of this machine cannot be written, so there are no limits")
    start_be(up, "busy", "while :; do :; done")
    wait_until(lambda: phase(up, "busy") == "Running", up)
    return Limit(up, up.pod("busy"))


def test_without_a_predictor_samples_wait_be_does_not_grow_and_nothing_is_sold(up, limit):
    acknowledged = wait_until(lambda: up.metric("agent", "slacktide_agent_samples_acknowledged_total"), up)
    with up.without("predictor"):
        wait_until(lambda: (up.metric("agent", SPOOLED) or 0) > 500 and up.metric("agent", CONNECTED) == 0, up)
        last = up.forecast()
        wait_until(lambda: forecast.freshness(up.forecast(), time.time()) is forecast.Freshness.EXPIRED, up)
        assert up.forecast().at == last.at
        start_be(up, "late", "echo at last")
        wait_until(lambda: "forecast expired" in up.condition("late"), up)
        assert up.events("late", "FailedScheduling")
        assert limit.read() == limit.value
        assert phase(up, "busy") == "Running"
        drops = up.metric("agent", "slacktide_agent_spool_drops_total")
    wait_until(lambda: phase(up, "late") == "Succeeded", up)
    wait_until(lambda: up.metric("agent", CONNECTED) == 1 and below(up.metric("agent", SPOOLED), 500), up)
    assert (drops, up.metric("agent", "slacktide_agent_spool_drops_total")) == (0, 0)
    with up.without("predictor"), tempfile.TemporaryDirectory() as copy:
        shutil.copytree(up.state.folder("predictor"), copy, dirs_exist_ok=True)
        history = open_history(copy)
        query = "SELECT count(*), count(DISTINCT sequence), max(sequence) - min(sequence) + 1 FROM samples"
        ((count, distinct, span),) = history._connection.execute(query).fetchall()
        ((high, holes),) = history._connection.execute("SELECT high, holes FROM boots").fetchall()
        history.close()
    # None twice, none missing: neither what was sent before, nor what waited on disk meanwhile.
    assert count == distinct == span
    assert (high > acknowledged, holes) == (True, "")


def test_a_killed_agent_leaves_the_limit_and_its_successor_adopts_it(up, limit):
    seen, done = set(), threading.Event()

    def watch():
        while not done.wait(0.01):
            seen.add(limit.read())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with up.without("agent"):
            assert limit.read() == limit.value
        wait_until(lambda: "be_limit_millis" in adopted(up), up)
    finally:
        done.set()
        watcher.join()
    assert seen == {limit.value}


def adopted(up):
    with open(up.state.log_file("agent")) as log:
        return "".join(line for line in log if "adopted what an earlier agent left" in line)


def test_without_a_scheduler_pods_wait_and_then_each_is_placed_once(up):
    names = [f"waiting-{i}" for i in range(6)]
    with tempfile.TemporaryDirectory() as born:
        with up.without("scheduler"):
            for name in names:
                start_be(up, name, f"echo x >> {born}/{name}; sleep 600")
            assert not any(up.pod(name).spec.node_name for name in names)
        wait_until(lambda: all(phase(up, name) == "Running" for name in names), up)
        wait_until(lambda: sorted(os.listdir(born)) == names, up)
        assert all(os.path.getsize(os.path.join(born, name)) == 2 for name in names)
    for name in names:
        (event,) = up.events(name, "Scheduled")
        assert event.count == 1


def test_without_an_api_server_pods_go_on_and_all_reconnect_where_they_were(up):
    script = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"
    assert up.ls("--detach", "--name", "steady", "--", "sh", "-c", script).returncode == 0
    wait_until(lambda: up.output("steady"), up)
    clients = {"runner": "pods", "agent": "pods", "scheduler": "pods", "predictor": "pods"}
    lists = {name: up.metric(name, f'slacktide_informer_lists_total{{informer="{i}"}}') for name, i in clients.items()}
    assert all(lists.values()), lists
    log = next(
        os.path.join(folder, file)
        for folder, _, files in os.walk(up.state.pod_logs)
        for file in files
        if "steady" in folder
    )
    with up.without("api"):
        size = os.path.getsize(log)
        wait_until(lambda: os.path.getsize(log) > size + 500, up)
    before = up.forecast()
    assert up.ls("--", "sh", "-c", "exit 5").returncode == 5
    wait_until(lambda: up.forecast().at > before.at, up)
    wait_until(lambda: '"name":"steady"' in up.ask("agent", "/status").replace(": ", ":"), up)
    # Each went on from the version it had seen, without listing anew.
    for name, informer in clients.items():
        assert up.metric(name, f'slacktide_informer_lists_total{{informer="{informer}"}}') == lists[name], name


def test_ls_loses_no_request_while_the_agent_is_killed(up, limit):
    plan = plan_for(1, 0.3, seconds=4.0)
    with tempfile.TemporaryDirectory() as directory:
        up.client.create(PODS, ls_pod(plan, "served", directory), "default")
        driver = Driver(directory, random.Random(1))
        try:
            driver.wait_ready(30)
            before = up.processes()
            killer = threading.Timer(1.0, os.kill, (before["agent"].pid, 9))
            killer.start()
            found = driver.run(plan.rate, plan.seconds)
            killer.join()
        finally:
            driver.close()
        wait_until(lambda: up.processes().get("agent") not in {None, before["agent"]} and up.ready(), up)
        assert phase(up, "served") == "Running"
        up.clear()
        wait_until(lambda: up.pod("served") is None, up)
    assert found.lost == 0
    assert found.count > 0.8 * plan.rate * plan.seconds
