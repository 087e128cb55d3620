"""The agent beside a real kubelet, containerd and runc, on a pure cgroup v2: what it must find, limit and put back.

The node is one for all tests of a driver, which run in the order of the file. It is emulated, twenty times slower than
a machine: what is said here is order and effect, never how long something took.
"""

from __future__ import annotations

import json

import pytest

from cli.main import main
from slacktide.cluster import EVENTS, PODS
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from slacktide.quantity import parse
from slacktide.tier import Tier
from slacktide.weights import kernel_weight
from tests.kubelet.machine import NAME
from tests.kubelet.pods import BUSY_AT_FIRST, MIB, NAMESPACE, batch
from tests.kubelet.scene import SETTINGS

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(1200)]

UNLIMITED = "max 100000"


def weight(millis):
    return str(kernel_weight(millis, v2=True))


def limits(cpu, memory, request=None):
    return {"cpu.max": f"{cpu * 100} 100000", "memory.max": str(memory * MIB), "cpu.weight": weight(request or cpu)}


def of_pod(cpu, memory):
    return {"cpu.idle": "1", "cpu.max": f"{cpu * 100} 100000", "memory.max": str(memory * MIB)}


def wanted(**owners):
    return {f"{owner} {knob}": value for owner, knobs in owners.items() for knob, value in knobs.items()}


OF_BE = wanted(pod=of_pod(700, 96), c0=limits(500, 64, request=250), c1=limits(200, 32))
OF_FRESH = wanted(pod=of_pod(300, 48), c0=limits(300, 48))


def fresh(scene):
    """The pod that came while the agent ran; the first test that needs it makes it."""
    if scene.pods.get("fresh") is None:
        scene.pods.create("fresh", [batch(300, 48 * MIB)], BUSY_AT_FIRST)
    return scene.pods.running("fresh")


def holds(scene, name, values):
    """Wait until a pod's knobs have these values."""
    pod = scene.pods.get(name)
    seen = {}

    def all_there():
        seen.update(scene.pods.values(pod))
        return values.items() <= seen.items()

    try:
        scene.machine.wait(all_there, f"limits of {name}")
    except Exception as error:
        differing = {key: (seen.get(key), value) for key, value in values.items() if seen.get(key) != value}
        raise AssertionError(f"{name} (is, should be): {differing}") from error


def arrivals(scene):
    return scene.agent.status()["counters"]["arrivals"]


def test_a_node_that_sells_nothing_refuses_a_batch_pod(alone):
    assert alone.early.status.reason in {f"OutOf{BATCH_CPU}", f"OutOf{BATCH_MEMORY}"}


def test_to_the_kubelet_a_batch_pod_is_best_effort_and_limited_by_nothing(alone):
    assert alone.pods.get("be").status.qos_class == "BestEffort"
    held = alone.before["be"]
    for owner in ("pod", "c0", "c1"):
        assert (held[f"{owner} cpu.max"], held[f"{owner} memory.max"], held[f"{owner} cpu.weight"]) == (
            UNLIMITED,
            "max",
            "1",
        )
    assert "besteffort" in alone.pods.group(alone.pods.get("be")).path


def test_the_doctor_reads_the_settings_of_the_kubelet_and_finds_them_sound(alone, capsys):
    where = ["--kubeconfig", alone.machine.plane.kubeconfig(), "--output", "json"]
    code = main(["doctor", "--cluster", *where])
    findings = json.loads(capsys.readouterr().out)["findings"]
    (found,) = [one for one in findings if one["name"] == "kubelet settings"]
    assert (found["verdict"], found["evidence"]) == ("ok", f"cgroup driver 1 x {alone.machine.driver}")
    assert code == 1, "Slacktide is not installed here yet, which is a problem"
    # What it goes by has these names in a kubelet that was asked, and not only in its documentation.
    body = alone.pods.client.request("GET", f"/api/v1/nodes/{NAME}/proxy/configz")
    settings = json.loads(body)["kubeletconfig"]
    assert {"cgroupsPerQOS", "cpuCFSQuota", "cpuManagerPolicy", "cgroupDriver"} <= set(settings)


def test_every_pod_and_container_is_found(scene):
    pods = {name: scene.pods.get(name) for name in ("ls", "be")}
    expected = {pods["ls"].metadata.uid: Tier.LS, pods["be"].metadata.uid: Tier.BE, scene.agent.uid: Tier.LS}

    def all_found():
        # A slow kubelet takes its time to remove the cgroups of pods that are gone.
        return {pod["uid"]: Tier(pod["tier"]) for pod in scene.agent.status().get("pods", [])} == expected

    scene.machine.wait(all_found, "all pods and no other")
    assert {"c0", "c1", "sandbox"} == set(scene.pods.containers(pods["be"]))


def test_rights_and_capabilities_of_the_manifest_are_enough(scene):
    scene.machine.wait(scene.agent.ready, "readiness of the agent")
    status = scene.agent.status()
    assert not status["observe_only"]
    assert {"cpu.idle", "cpu.quota", "cpu.weight", "memory.max"}.isdisjoint(status["skipped"])


def test_counters_are_let_through_by_the_runtimes_own_seccomp_profile(scene):
    """CAP_PERFMON opens perf_event_open under RuntimeDefault; Debian's kernel also wants a lower perf_event_paranoid.

    An emulated CPU has no counters, so that this is what is said once the call gets as far as that.
    """
    inside, paranoid = scene.machine.inside, "/proc/sys/kernel/perf_event_paranoid"

    def said(words):
        return words in scene.agent.status().get("skipped", {}).get("perf", "")

    before = inside.read(paranoid)
    if int(before) > 2:
        scene.machine.wait(lambda: said("kernel.perf_event_paranoid"), "refusal by the kernel")
        inside.write(paranoid, "2")
    try:
        scene.machine.wait(lambda: said("no hardware counters"), "call that gets through")
    finally:
        inside.write(paranoid, before)


def test_a_pod_that_was_there_before_gets_weight_quota_and_memory_limit(scene):
    holds(scene, "be", OF_BE)
    # The sandbox is no container of the pod's: it keeps what the runtime gave it.
    held = scene.pods.values(scene.pods.get("be"))
    assert {key: value for key, value in held.items() if key.startswith("sandbox")} == {
        key: value for key, value in scene.before["be"].items() if key.startswith("sandbox")
    }


def test_ls_is_left_alone(scene):
    assert scene.pods.values(scene.pods.get("ls")) == scene.before["ls"]


def test_a_new_pod_is_limited_on_arrival_and_throttled(scene):
    before = arrivals(scene)
    pod = fresh(scene)
    holds(scene, "fresh", OF_FRESH)
    assert arrivals(scene) > before
    group = scene.pods.containers(pod)["c0"]

    def throttled():
        stat = dict(line.split() for line in scene.pods.read(group, "cpu.stat").splitlines())
        return int(stat["nr_throttled"]) > 0

    scene.machine.wait(throttled, "throttling")


def test_a_pod_that_takes_more_than_its_batch_memory_is_killed_and_no_other(scene):
    hog = ("/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1000000")
    scene.pods.create("hog", [batch(300, 48 * MIB)], hog, restartPolicy="Never")
    ended = scene.machine.wait(
        lambda: (pod := scene.pods.get("hog")).status.phase == "Failed" and pod, "end of the hog"
    )
    body = scene.pods.client.get_dict(PODS, "hog", NAMESPACE)
    assert body["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled", ended.status
    assert scene.pods.running("be").status.container_statuses[0].restart_count == 0
    scene.pods.delete("hog")


def test_a_restarted_container_is_seen_and_limited(scene):
    pod = scene.restart_container(scene.pods.get("be"), "c1")
    holds(scene, "be", OF_BE)
    assert {one.name: one.restart_count for one in pod.status.container_statuses} == {"c0": 0, "c1": 1}


def test_what_systemd_or_a_person_resets_is_put_back(scene):
    drift = scene.agent.status()["counters"]["drift"]
    if scene.machine.driver == "systemd":
        scene.machine.inside.run("systemctl daemon-reload")
    else:
        pod = scene.pods.get("be")
        for group in (scene.pods.group(pod), scene.pods.containers(pod)["c0"]):
            for knob in ("cpu.max", "memory.max"):
                scene.machine.inside.write(f"{group.path}/{knob}", "max")
    scene.machine.wait(lambda: scene.agent.status()["counters"]["drift"] > drift, "sight of the reset")
    holds(scene, "be", OF_BE)


@pytest.fixture(scope="module")
def restarted(scene):
    """The kubelet was started anew after something was published and reported."""
    scene.sell(3000, 1024 * MIB)
    scene.next_heartbeat(2)
    scene.restart_kubelet()
    return scene


def test_limits_outlive_a_restart_of_the_kubelet(restarted):
    holds(restarted, "be", OF_BE)
    assert restarted.pods.values(restarted.pods.get("ls")) == restarted.before["ls"]


def test_what_is_published_stays_over_reports_and_a_restart_of_the_kubelet(restarted):
    for amounts in restarted.sold():
        assert parse(amounts[BATCH_CPU]).value() == 3000
        assert parse(amounts[BATCH_MEMORY]).value() == 1024 * MIB


def test_a_lower_number_takes_from_no_pod_and_refuses_the_next(scene):
    scene.sell(500, 1024 * MIB)
    scene.next_heartbeat(2)
    scene.pods.create("late", [batch(500, 32 * MIB)])
    refused = scene.machine.wait(lambda: (pod := scene.pods.get("late")).status.phase == "Failed" and pod, "refusal")
    assert refused.status.reason == f"OutOf{BATCH_CPU}"
    assert scene.pods.running("be").status.phase == fresh(scene).status.phase == "Running"
    holds(scene, "be", OF_BE)
    scene.pods.delete("late")
    scene.sell(4000, 2048 * MIB)


def test_an_evicted_pod_goes_and_no_other(scene):
    fresh(scene)
    scene.pods.create("victim", [batch(100, 32 * MIB)])
    uid = scene.pods.running("victim").metadata.uid
    always = {"memory_percent": 100, "memory_target_percent": 100, "memory_settle_seconds": 0}
    scene.agent.set(evict={**always, "memory_patience_seconds": 0, "max_per_hour": 1})
    scene.machine.wait(lambda: scene.pods.get("victim") is None, "eviction")
    scene.machine.wait(lambda: not scene.pods.directory(uid), "end of its cgroup")
    scene.agent.set(evict=SETTINGS["evict"])
    assert scene.pods.running("be").status.phase == fresh(scene).status.phase == "Running"
    events = scene.pods.client.list(EVENTS, NAMESPACE).items
    assert [one.involved_object.name for one in events if one.reason == "SlacktideEvicted"] == ["victim"]


def test_a_stop_gives_everything_back(scene):
    holds(scene, "be", OF_BE)
    holds(scene, fresh(scene).metadata.name, OF_FRESH)
    scene.agent.stop()
    pod = scene.pods.get("be")
    assert scene.pods.values(pod) == scene.before["be"]
    assert scene.pods.values(scene.pods.get("ls")) == scene.before["ls"]
    given = {key: value for key, value in scene.before["be"].items() if not key.startswith("c1")}
    assert scene.pods.values(scene.pods.get("fresh")) == given


def test_the_kubelet_logged_no_error_that_it_does_not_log_alone(scene):
    assert scene.errors() - scene.errors_alone == set()


def test_the_agent_had_no_trouble(scene):
    serious = [line for line in scene.agent.log() if line.get("level") in {"error", "critical"}]
    assert serious == []
