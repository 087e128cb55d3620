from __future__ import annotations

import pytest

from slacktide.cluster.errors import Invalid
from standalone.runner.outbox import Outbox
from tests.standalone.runner.twin import FakeApi, pod_dict, pod_view, wait_for


@pytest.fixture
def api():
    return FakeApi()


@pytest.fixture
def outbox(api):
    made = Outbox(api)
    yield made
    made.stop(0.0)


def add(api, name="web"):
    return pod_view(api.add(pod_dict(name)))


def test_only_the_newest_status_is_sent(api, outbox):
    pod = add(api)
    for reason in ("one", "two", "three"):
        outbox.status(pod, {"reason": reason})
    outbox.start()
    wait_for(lambda: api.pod()["status"].get("reason") == "three")
    assert [call[0] for call in api.calls].count("patch") == 1


def test_the_status_goes_out_before_the_deletion(api, outbox):
    pod = add(api)
    outbox.delete(pod)
    outbox.status(pod, {"phase": "Failed"})
    outbox.start()
    wait_for(lambda: api.pod() is None)
    assert [verb for verb, *_ in api.calls if verb != "get"] == ["patch", "delete"]


def test_waits_out_an_absent_server(api, outbox):
    pod = add(api)
    api.away = True
    outbox.status(pod, {"reason": "x"})
    outbox.delete(pod)
    outbox.start()
    wait_for(lambda: len(api.calls) >= 2)
    api.away = False
    wait_for(lambda: api.pod() is None)


def test_a_namesake_is_spared(api, outbox):
    old = pod_view(pod_dict())
    add(api)
    outbox.status(old, {"reason": "x"})
    outbox.delete(old)
    outbox.start()
    wait_for(lambda: not outbox._letters)
    assert "reason" not in api.pod()["status"]


def test_what_the_server_refuses_is_not_repeated(api, outbox):
    pod = add(api)
    calls = []

    def refuse(*args, **kwargs):
        calls.append(1)
        raise Invalid(422, "Invalid", "no")

    api.patch = refuse
    outbox.status(pod, {"reason": "x"})
    outbox.start()
    wait_for(lambda: not outbox._letters)
    assert calls == [1]


def test_a_deletion_is_not_repeated_at_once(api, outbox):
    pod = add(api)
    deleted = []
    api.delete = lambda *args, **kwargs: deleted.append(1)
    outbox.start()
    for _ in range(5):
        outbox.delete(pod)
        wait_for(lambda: not outbox._letters)
    assert deleted == [1]
    outbox.forget(pod.metadata.uid)
    outbox.delete(pod)
    wait_for(lambda: len(deleted) == 2)


def test_stop_flushes(api):
    pod = add(api)
    made = Outbox(api)
    made.start()
    made.status(pod, {"reason": "last"})
    made.stop(5.0)
    assert api.pod()["status"]["reason"] == "last"
