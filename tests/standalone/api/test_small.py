"""Pure parts that are too small for a file of their own: times, paths, queries, negotiation, rows of pods, events."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.errors import SettingsError
from standalone.api import access, bootstrap, discovery, negotiation, openapi, paths, queries, times
from standalone.api.errors import ApiError
from standalone.api.kinds import EVENTS, KINDS, NAMESPACES, NODES, PODS
from standalone.api.negotiation import Form
from standalone.api.podstatus import pod_cells
from tests.standalone.api.world import Cluster

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (600, "10m"),
        (10799, "179m"),
        (10800, "3h"),
        (12000, "3h20m"),
        (28800, "8h"),
        (172799, "47h"),
        (172800, "2d"),
        (180000, "2d2h"),
        (691200, "8d"),
        (63072000, "2y"),
        (63158400, "2y1d"),
        (252288000, "8y"),
    ],
)
def test_ages(seconds, text):
    assert times.human(seconds) == text


def test_times_that_are_none():
    assert times.parse_time(None) is None
    assert times.parse_time("yesterday") is None
    assert times.age(None, NOW) == "<unknown>"
    assert times.age("2026-01-01T02:00:00Z", NOW) == "0s"
    assert times.parse_time("2026-01-01T00:00:00.000000Z") == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/pods", (PODS, None, "", "")),
        ("/api/v1/namespaces/ns/pods/", (PODS, "ns", "", "")),
        ("/api/v1/namespaces/ns/pods/a/log", (PODS, "ns", "a", "log")),
        ("/api/v1/namespaces", (NAMESPACES, "", "", "")),
        ("/api/v1/namespaces/a", (NAMESPACES, "", "a", "")),
        ("/api/v1/namespaces/a/status", (NAMESPACES, "", "a", "status")),
        ("/api/v1/nodes/n/status", (NODES, "", "n", "status")),
        ("/api/v1/pods/a", None),
        ("/api/v1/namespaces/ns/nodes/n", None),
        ("/api/v1/namespaces/ns/pods/a/log/x", None),
        ("/api/v1/nodes/n/log", None),
        ("/api/v1", None),
        ("/", None),
        ("", None),
        ("/apis/policy/v1beta1/poddisruptionbudgets", None),
    ],
)
def test_paths(path, expected):
    found = paths.parse(path)
    assert (found and (found.kind, found.namespace, found.name, found.subresource)) == expected


@given(st.integers(-1, 2**63), st.text(max_size=20), st.text(max_size=20))
def test_continue_tokens_come_back(version, namespace, name):
    place = queries.Continue(version, namespace, name)
    assert queries.decode_continue(place.encoded()) == place


@given(st.text(max_size=30))
def test_other_tokens_are_refused(text):
    with pytest.raises(ApiError):
        queries.decode_continue(text)


@pytest.mark.parametrize(
    ("header", "form"),
    [
        ("", Form.PLAIN),
        ("*/*", Form.PLAIN),
        ("application/json, */*", Form.PLAIN),
        ("application/json;q=0.8", Form.PLAIN),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Form.TABLE),
        ("application/json;as=Table;v=v2;g=meta.k8s.io,application/json", Form.PLAIN),
        ("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json", Form.PLAIN),
        ("application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", Form.METADATA),
    ],
)
def test_negotiation(header, form):
    assert negotiation.accepted(header)[0] is form


@pytest.mark.parametrize("header", ["text/html", "application/yaml", "application/json;as=Nothing"])
def test_forms_that_are_not_written(header):
    with pytest.raises(ApiError) as refused:
        negotiation.accepted(header)
    assert refused.value.code == 406


def container(name="main", *, ready=False, restarts=0, last=None, **state):
    found = {"name": name, "ready": ready, "restartCount": restarts, "state": state}
    return found | ({"lastState": {"terminated": {"finishedAt": last}}} if last else {})


def row(status, *, deleting=False, spec=None):
    meta = {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:30:00Z"
    return pod_cells(
        {"metadata": meta, "spec": {"containers": [{"name": "main"}], **(spec or {})}, "status": status}, NOW
    )


@pytest.mark.parametrize(
    ("status", "deleting", "ready", "shown", "restarts"),
    [
        ({"phase": "Pending"}, False, "0/1", "Pending", "0"),
        ({"phase": "Running", "containerStatuses": [container(ready=True, running={})]}, False, "1/1", "Running", "0"),
        (
            {"phase": "Running", "containerStatuses": [container(ready=True, running={})]},
            True,
            "1/1",
            "Terminating",
            "0",
        ),
        (
            {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "ContainerCreating"})]},
            False,
            "0/1",
            "ContainerCreating",
            "0",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    container(restarts=3, last="2026-01-01T00:55:00Z", waiting={"reason": "CrashLoopBackOff"})
                ],
            },
            False,
            "0/1",
            "CrashLoopBackOff",
            "3 (5m ago)",
        ),
        (
            {"phase": "Succeeded", "containerStatuses": [container(terminated={"reason": "Completed"})]},
            False,
            "0/1",
            "Completed",
            "0",
        ),
        (
            {"phase": "Failed", "containerStatuses": [container(terminated={"reason": "OOMKilled"})]},
            False,
            "0/1",
            "OOMKilled",
            "0",
        ),
        (
            {"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 3})]},
            False,
            "0/1",
            "ExitCode:3",
            "0",
        ),
        (
            {"phase": "Failed", "containerStatuses": [container(terminated={"signal": 9})]},
            False,
            "0/1",
            "Signal:9",
            "0",
        ),
        ({"phase": "Failed", "reason": "Evicted"}, False, "0/1", "Evicted", "0"),
        ({"phase": "Failed", "reason": "Evicted"}, True, "0/1", "Evicted", "0"),
        (
            {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]},
            False,
            "0/1",
            "SchedulingGated",
            "0",
        ),
    ],
)
def test_rows_of_pods(status, deleting, ready, shown, restarts):
    cells = row(status, deleting=deleting)
    assert cells[1:5] == [ready, shown, restarts, "60m"]


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"waiting": {"reason": "PodInitializing"}}, "Init:1/2"),
        ({"running": {}}, "Init:1/2"),
        ({"waiting": {"reason": "CrashLoopBackOff"}}, "Init:CrashLoopBackOff"),
        ({"terminated": {"exitCode": 1, "reason": "Error"}}, "Init:Error"),
        ({"terminated": {"exitCode": 0}}, "Pending"),
    ],
)
def test_rows_of_pods_that_initialize(state, shown):
    statuses = [container("i0", terminated={"exitCode": 0}), container("i1", **state)]
    spec = {"initContainers": [{"name": "i0"}, {"name": "i1"}]}
    assert row({"phase": "Pending", "initContainerStatuses": statuses}, spec=spec)[2] == shown


def test_events_go_an_hour_after_they_were_last_said():
    cluster = Cluster()

    def event(name, **times_said):
        cluster.create(EVENTS, {"metadata": {"name": name}, "involvedObject": {}, **times_said})

    event("old")
    cluster.later(1800)
    event(
        "repeated",
        series={"lastObservedTime": "2026-01-01T00:59:00.000000Z", "count": 5},
        firstTimestamp="2026-01-01T00:00:00Z",
    )
    event("unreadable", lastTimestamp="never")
    cluster.later(1801)
    assert cluster.decide(lambda tx: bootstrap.expire_events(tx, cluster.now)) == 1
    assert [found.key.name for found in cluster.store.items("events")] == ["repeated", "unreadable"]


def test_every_kind_is_in_discovery_and_openapi():
    for kind in KINDS:
        root = f"apis/{kind.group}/v1" if kind.group else "api/v1"
        listed = discovery.document(f"/{root}", Form.PLAIN)["resources"]
        assert kind.resource in {found["name"] for found in listed}
        assert any(
            path.endswith(f"/{kind.resource}/{{name}}") for path in openapi.document(f"/openapi/v3/{root}")["paths"]
        )
    assert discovery.document("/apis/none", Form.PLAIN) is None


def test_token_files(tmp_path):
    path = str(tmp_path / "token")
    made = access.load_token(path)
    assert len(made) >= 32
    assert access.load_token(path) == made
    assert os.stat(path).st_mode & 0o777 == 0o600
    os.chmod(path, 0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        access.load_token(path)
    for text in ("", "two words", "a@b"):
        other = tmp_path / "other"
        other.write_text(text)
        other.chmod(0o600)
        with pytest.raises(SettingsError, match="one line"):
            access.load_token(str(other))
    with pytest.raises(SettingsError, match="cannot be made"):
        access.load_token(str(tmp_path / "none" / "token"))
