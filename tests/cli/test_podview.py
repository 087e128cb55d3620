import msgspec
import pytest

from cli import podview
from cli.podview import Ending
from slacktide.objects import Pod


def pod(phase="Running", deleted=False, container=None, spec=None, **status):
    meta = {"name": "p", "namespace": "default", "uid": "u"}
    if deleted:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if container is not None:
        status["containerStatuses"] = [{"name": "main", "state": container}]
    body = {"metadata": meta, "spec": spec or {}, "status": {"phase": phase, **status}}
    return msgspec.convert(body, Pod)


def terminated(code, reason="Error", **more):
    return {"terminated": {"exitCode": code, "reason": reason, **more}}


UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}]


@pytest.mark.parametrize(
    ("given", "status", "reason"),
    [
        (pod(), "Running", ""),
        (pod(phase=""), "Pending", ""),
        (pod(deleted=True), "Terminating", ""),
        (pod("Succeeded", deleted=True, container=terminated(0, "Completed")), "Succeeded", ""),
        (pod("Pending", conditions=UNSCHEDULABLE), "Pending", "Unschedulable: no room"),
        (pod("Failed", container=terminated(3)), "Failed", "Error (exit code 3)"),
        (pod("Failed", container=terminated(137, "OOMKilled")), "Failed", "OOMKilled (exit code 137)"),
        (
            pod("Failed", container=terminated(127, "StartError", message="no such command: x")),
            "Failed",
            "StartError: no such command: x (exit code 127)",
        ),
        (pod("Failed", reason="Evicted", message="LS first"), "Failed", "Evicted: LS first"),
        (pod("Pending", container={"waiting": {"reason": "CrashLoopBackOff"}}), "Pending", "CrashLoopBackOff"),
        (pod("Failed"), "Failed", ""),
    ],
)
def test_status_and_reason(given, status, reason):
    assert podview.status(given) == status
    assert podview.reason(given) == reason


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (pod(), "still runs"),
        (pod("Running", container=terminated(1)), "still runs"),
        (pod("Succeeded", container=terminated(0, "Completed")), 0),
        (pod("Failed", container=terminated(3)), 3),
        (pod("Failed", container=terminated(137, signal=9)), 137),
        (pod("Failed", container=terminated(0, signal=15)), 143),
        (pod("Failed", container=terminated(9, signal=9)), 137),
        (pod("Succeeded"), 0),
        (pod("Failed", reason="Evicted"), None),
    ],
)
def test_exit_code(given, code):
    end = podview.ending(given)
    assert (end.exit_code if isinstance(end, Ending) else "still runs") == code


def test_a_pod_somebody_else_made_has_another_container_name():
    body = {"status": {"phase": "Failed", "containerStatuses": [{"name": "app", "state": terminated(4)}]}}
    assert podview.ending(msgspec.convert(body, Pod)).exit_code == 4


@pytest.mark.parametrize(
    ("state", "has"),
    [(None, False), ({"waiting": {"reason": "x"}}, False), ({"running": {}}, True), (terminated(0), True)],
)
def test_output_is_there_once_it_ran(state, has):
    assert podview.has_output(pod(container=state)) is has


def test_request_is_not_known_where_it_cannot_be_read():
    spec = {"containers": [{"name": "a", "resources": {"requests": {"cpu": "one"}}}]}
    assert podview.line(pod(spec=spec), None, 0.0).cpu_request_millis is None
    assert podview.line(pod(), None, 0.0).cpu_request_millis is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0s"), (119, "119s"), (120, "2m0s"), (601, "10m"), (3 * 3600, "3h0m"), (8 * 86400, "8d")],
)
def test_age_in_words(seconds, text):
    assert podview.show_age(seconds) == text


@pytest.mark.parametrize(
    ("stamp", "age"),
    [
        ("1970-01-01T00:00:10Z", 5.0),
        ("1970-01-01T00:00:10.500000Z", 4.5),
        ("1970-01-01T01:00:10+01:00", 5.0),
        ("1970-01-01T00:01:00Z", 0.0),
        ("yesterday", None),
        (None, None),
    ],
)
def test_age_from_a_stamp(stamp, age):
    assert podview.age(stamp, 15.0) == age
