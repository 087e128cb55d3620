from __future__ import annotations

import os
import threading

import pytest

from tests.standalone.api.client import eventually, pod


def lines(*texts, stream="stdout"):
    return "".join(f"2026-01-01T00:00:00.{n:09}Z {stream} F {text}\n" for n, text in enumerate(texts))


@pytest.fixture
def logged(served, api, space):
    """A running pod on a node, and a function that writes to its log."""
    made = api.post(f"{space}/pods", pod("web", nodeName="n1")).json["metadata"]
    folder = f"{served[1].log_dir}/{made['namespace']}_web_{made['uid']}/main"
    os.makedirs(folder)

    def write(text, count=0):
        with open(f"{folder}/{count}.log", "a") as file:
            file.write(text)

    return f"{space}/pods/web", write


def state(api, path, restarts=0, **state):
    found = {"name": "main", "restartCount": restarts, "state": state}
    assert api.patch(f"{path}/status", {"status": {"phase": "Running", "containerStatuses": [found]}}).code == 200


def test_logs_as_they_are(api, logged):
    path, write = logged
    write(lines("one", "two") + lines("bad", stream="stderr"))
    assert api.get(f"{path}/log").text == b"one\ntwo\nbad\n"
    assert api.get(f"{path}/log").headers["Content-Type"].startswith("text/plain")
    assert api.get(f"{path}/log", stream="Stderr").text == b"bad\n"
    assert api.get(f"{path}/log", tailLines="1", stream="Stdout").text == b"two\n"
    assert api.get(f"{path}/log", limitBytes="5").text == b"one\nt"
    assert api.get(f"{path}/log", timestamps="true", tailLines="1").text == b"2026-01-01T00:00:00.000000000Z bad\n"
    assert api.get(f"{path}/log", sinceSeconds="1").text == b""
    assert api.get(f"{path}/log", container="main").text == b"one\ntwo\nbad\n"


def test_logs_that_cannot_be_had(api, space, logged):
    path, _ = logged
    assert api.get(f"{space}/pods/none/log").code == 404
    waiting = api.get(f"{path}/log")
    assert (waiting.code, waiting.reason) == (400, "BadRequest")
    assert 'container "main" in pod "web" is waiting to start' in waiting.json["message"]
    assert api.get(f"{path}/log", container="x").code == 400
    assert api.get(f"{path}/log", previous="true").code == 400
    assert api.get(f"{path}/log", tailLines="-1").code == 422
    assert api.get(f"{path}/log", stream="Both").code == 422
    api.post(f"{space}/pods", pod("unbound"))
    nobody_to_ask = api.get(f"{space}/pods/unbound/log")
    assert (nobody_to_ask.code, nobody_to_ask.text) == (200, b"")
    two = [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]
    api.post(f"{space}/pods", pod("two", nodeName="n1", containers=two))
    assert "choose one of: [a b]" in api.get(f"{space}/pods/two/log").json["message"]


def test_following_ends_when_the_container_has_and_all_is_read(api, logged):
    path, write = logged
    state(api, path, running={})
    got = []
    done = threading.Event()

    def follow():
        connection = api.connection()
        connection.request("GET", f"{path}/log?follow=true")
        response = connection.getresponse()
        while line := response.readline():
            got.append(line)
        connection.close()
        done.set()

    thread = threading.Thread(target=follow)
    thread.start()
    write(lines("one"))
    eventually(lambda: got == [b"one\n"])
    write(lines("two"))
    eventually(lambda: len(got) == 2)
    assert not done.is_set()
    write(lines("last"))
    state(api, path, terminated={"exitCode": 0})
    assert done.wait(10)
    thread.join()
    assert got == [b"one\n", b"two\n", b"last\n"]


def test_following_over_a_rotation_with_a_tail(served, api, logged):
    path, write = logged
    write(lines("one", "two"))
    state(api, path, terminated={"exitCode": 0})
    assert api.get(f"{path}/log", follow="true", tailLines="1").text == b"two\n"
    meta = api.get(path).json["metadata"]
    file = f"{served[1].log_dir}/{meta['namespace']}_web_{meta['uid']}/main/0.log"
    os.rename(file, file + ".1")
    write(lines("three"))
    assert api.get(f"{path}/log", follow="true").text == b"one\ntwo\nthree\n"


def test_logs_of_the_run_before(api, logged):
    path, write = logged
    write(lines("first"))
    write(lines("second"), 1)
    state(api, path, 1, running={})
    assert api.get(f"{path}/log").text == b"second\n"
    assert api.get(f"{path}/log", previous="true").text == b"first\n"
