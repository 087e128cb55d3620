from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from slacktide.objects import PodStatus
from standalone.runner.attempts import Exit, Phase
from standalone.runner.lifecycle import BackOff
from standalone.runner.plan import StartFailure
from standalone.runner.podstatus import Facts, Rejection, differs, pod_status, timestamp
from tests.standalone.runner.test_plan import attempt, ended, pod_of
from tests.standalone.runner.twin import pod_dict, pod_view

NOW = 1_800_000_000.0


def built(pod, attempts=(), **facts):
    return pod_status(pod, Facts(attempts=tuple(attempts), started_at=NOW, address="10.0.0.9", **facts), NOW, BackOff())


def conditions(status):
    return {one["type"]: one["status"] for one in status["conditions"]}


def shown(pod, status):
    """The pod as the API would show it after the patch."""
    body = msgspec.to_builtins(pod)
    merged = {**body["status"], **status}
    merged["conditions"] = [*body["status"]["conditions"][:1], *status.get("conditions", [])]
    return pod_view({**body, "status": merged})


def test_nothing_started_yet():
    status = built(pod_of())
    assert (status["phase"], status["hostIP"], status["podIP"]) == ("Pending", "10.0.0.9", "10.0.0.9")
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert conditions(status) == {"Initialized": "True", "ContainersReady": "False", "Ready": "False"}


def test_running_is_ready_without_a_probe():
    pod = pod_of()
    status = built(pod, [attempt(pod)])
    assert status["phase"] == "Running"
    assert conditions(status)["Ready"] == "True"
    assert status["containerStatuses"][0]["started"] is True


def test_starting_is_not_running():
    pod = pod_of()
    status = built(pod, [attempt(pod, phase=Phase.STARTING, started_at=None)])
    assert status["phase"] == "Pending"


@pytest.mark.parametrize(
    ("policy", "codes", "phase"),
    [
        ("Never", (0, 0), "Succeeded"),
        ("Never", (0, 1), "Failed"),
        ("OnFailure", (0, 0), "Succeeded"),
        ("OnFailure", (0, 1), "Running"),
        ("Always", (0, 0), "Running"),
    ],
)
def test_phase_of_ended_containers(policy, codes, phase):
    pod = pod_of(policy=policy, containers=[{"name": "a"}, {"name": "b"}])
    attempts = [ended(pod, code, container=name) for name, code in zip("ab", codes, strict=True)]
    assert built(pod, attempts)["phase"] == phase


def test_a_deleted_pod_ends_in_a_terminal_phase():
    pod = pod_of(policy="Always", deleted=5)
    assert built(pod, [attempt(pod)])["phase"] == "Running"
    assert built(pod, [ended(pod, 143)])["phase"] == "Failed"
    assert built(pod, [ended(pod, 0)])["phase"] == "Succeeded"


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_terminal_phase_and_its_reason_are_never_changed(phase):
    pod = pod_of(phase=phase)
    status = built(pod, [attempt(pod)])
    assert status["phase"] == phase
    assert "reason" not in status


@pytest.mark.parametrize(
    ("exit_", "reason"),
    [
        ({"code": 0}, "Completed"),
        ({"code": 2}, "Error"),
        ({"code": 137, "oom_kills": 1}, "OOMKilled"),
        ({"code": 137, "oom_kills": 0}, "Error"),
        ({"code": 137, "oom_kills": None}, "Error"),
        ({"code": 0, "oom_kills": 3}, "Completed"),
        ({"code": 127, "reason": "StartError", "message": "m"}, "StartError"),
    ],
)
def test_reasons(exit_, reason):
    pod = pod_of()
    one = attempt(pod, phase=Phase.EXITED, exit=Exit(finished_at=NOW, **exit_))
    state = built(pod, [one])["containerStatuses"][0]["state"]["terminated"]
    assert state["reason"] == reason
    assert state["exitCode"] == exit_["code"]


def test_crash_loop():
    pod = pod_of(policy="Always")
    status = built(pod, [ended(pod, 1, number=3, crashes=3)])["containerStatuses"][0]
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert "back-off 40s" in status["state"]["waiting"]["message"]
    assert status["lastState"]["terminated"]["exitCode"] == 1
    assert status["restartCount"] == 3


def test_last_state_of_a_restarted_container():
    pod = pod_of(policy="Always")
    status = built(pod, [ended(pod, 9), attempt(pod, number=1)])["containerStatuses"][0]
    assert status["lastState"]["terminated"]["exitCode"] == 9
    assert status["restartCount"] == 1


def test_a_start_that_failed():
    failure = StartFailure(reason="CreateContainerError", message="no space", count=1, retry_at=0)
    status = built(pod_of(), failures={"main": failure})
    assert status["containerStatuses"][0]["state"] == {
        "waiting": {"reason": "CreateContainerError", "message": "no space"}
    }


def test_probe_result_decides_readiness():
    body = pod_dict()
    body["spec"]["containers"][0]["readinessProbe"] = {"tcpSocket": {"port": 80}}
    pod = pod_view(body)
    one = attempt(pod)
    assert conditions(built(pod, [one]))["Ready"] == "False"
    assert conditions(built(pod, [one], ready={one.id: True}))["Ready"] == "True"


def test_waiting_for_init():
    pod = pod_of(initContainers=[{"name": "i"}])
    status = built(pod, [attempt(pod, container="i")])
    assert status["phase"] == "Pending"
    assert conditions(status)["Initialized"] == "False"
    assert "[i]" in status["conditions"][0]["message"]
    assert status["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"


def test_rejection():
    status = built(pod_of(), rejection=Rejection(reason="OutOfcpu", message="m"))
    assert (status["phase"], status["reason"], status["message"]) == ("Failed", "OutOfcpu", "m")
    assert "conditions" not in status


def test_transition_time_moves_only_with_the_status():
    pod = pod_of()
    one = attempt(pod)
    first = built(pod, [one])
    pod = shown(pod, first)
    facts = Facts(attempts=(one,), started_at=NOW, address="10.0.0.9")
    later = pod_status(pod, facts, NOW + 50, BackOff())
    assert later["conditions"] == first["conditions"]
    over = pod_status(pod, replace(facts, attempts=(ended(pod, 1),)), NOW + 50, BackOff())
    times = {condition["type"]: condition["lastTransitionTime"] for condition in over["conditions"]}
    assert times == {
        "Initialized": timestamp(NOW),
        "ContainersReady": timestamp(NOW + 50),
        "Ready": timestamp(NOW + 50),
    }


def test_an_applied_patch_makes_no_difference():
    pod = pod_of()
    for attempts in ([], [attempt(pod)], [ended(pod, 3)]):
        status = built(pod, attempts)
        assert differs(pod, status)
        after = shown(pod, status)
        assert not differs(after, built(after, attempts))
        assert msgspec.convert(status, PodStatus).phase == after.status.phase


def test_pod_scheduled_is_not_ours():
    assert "PodScheduled" not in conditions(built(pod_of()))
