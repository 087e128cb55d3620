"""Places and records of drills on an API server in memory; on a real one: tests/cluster/test_drill_state.py."""

from __future__ import annotations

import copy
import json
import os
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.drillbudget import SETTINGS, Budget, at_once
from cli.drillrecords import (
    ALL_BYTES,
    KEPT,
    RECORD_BYTES,
    ClusterRecords,
    FileRecords,
    bounded,
    check_id,
    decoded,
    encoded,
    merged,
)
from cli.drillreport import Moment, Report, Victim, markdown
from cli.exits import CommandError
from slacktide.cluster.errors import AlreadyExists, Conflict, Forbidden, NotFound, Unreachable
from slacktide.objects import Lease

SPACE = "slacktide-system"


class Api:
    """Leases and ConfigMaps, guarded by resourceVersion as on a real server. `fail` is raised by each call."""

    def __init__(self):
        self.objects = {}
        self.version = 0
        self.fail = None
        self.before_write = lambda: None

    def _stored(self, key, body):
        self.version += 1
        stored = copy.deepcopy(body)
        stored["metadata"] |= {"resourceVersion": str(self.version)}
        self.objects[key] = stored
        return stored

    def _checked(self, key, body):
        if key not in self.objects:
            raise NotFound(404, "NotFound", key)
        if body["metadata"]["resourceVersion"] != self.objects[key]["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "the object has been modified")

    def get_dict(self, kind, name, namespace):
        if self.fail:
            raise self.fail
        if name not in self.objects:
            raise NotFound(404, "NotFound", name)
        return copy.deepcopy(self.objects[name])

    def create(self, kind, body, namespace):
        if body["metadata"]["name"] in self.objects:
            raise AlreadyExists(409, "AlreadyExists", "x")
        return msgspec.convert(self._stored(body["metadata"]["name"], body), Lease)

    def replace(self, kind, body, timeout_seconds=None):
        if self.fail:
            raise self.fail
        self.before_write()
        self._checked(body["metadata"]["name"], body)
        return msgspec.convert(self._stored(body["metadata"]["name"], body), Lease)

    def request(self, method, path, body=None):
        if self.fail:
            raise self.fail
        key = path.rpartition("/")[2]
        if method == "GET":
            if key not in self.objects:
                raise NotFound(404, "NotFound", key)
            return json.dumps(self.objects[key]).encode()
        self.before_write()
        content = json.loads(body)
        if method == "POST":
            if content["metadata"]["name"] in self.objects:
                raise AlreadyExists(409, "AlreadyExists", "x")
            key = content["metadata"]["name"]
        else:
            self._checked(key, content)
        return json.dumps(self._stored(key, content)).encode()


class Clock:
    def __init__(self):
        self.now = 0.0
        self.after = []

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds
        for action in self.after:
            action()


def budget(api, clock, holder, places=1):
    return Budget(api, SPACE, places, holder, clock=clock, wait=clock.wait)


@pytest.mark.parametrize(("data", "places"), [({}, 1), ({"at-once": "3"}, 3), ({"at-once": "0"}, 0)])
def test_how_many_at_once(data, places):
    api = Api()
    assert at_once(api, SPACE) == 1
    api.request("POST", "/x", json.dumps({"metadata": {"name": "slacktide-drill-policy"}, "data": data}).encode())
    assert at_once(api, SPACE) == places


@pytest.mark.parametrize("text", ["many", "-1", "101", "", "1.5"])
def test_a_policy_that_cannot_be_read_allows_nothing(text):
    api = Api()
    body = {"metadata": {"name": "slacktide-drill-policy"}, "data": {"at-once": text}}
    api.request("POST", "/x", json.dumps(body).encode())
    with pytest.raises(CommandError, match="a number from 0 to 100"):
        at_once(api, SPACE)


def test_none_at_all():
    with pytest.raises(CommandError, match="no drill is allowed now"):
        budget(Api(), Clock(), "a", places=0).take()


def test_a_place_is_held_given_back_and_had_again():
    api, clock = Api(), Clock()
    held = budget(api, clock, "a").take()
    assert api.objects["slacktide-drill-0"]["spec"]["holderIdentity"] == "a"
    held.release()
    assert api.objects["slacktide-drill-0"]["spec"]["holderIdentity"] == ""
    budget(api, clock, "b").take()
    assert (api.objects["slacktide-drill-0"]["spec"]["holderIdentity"], clock.now) == ("b", 0.0)


def test_all_places_are_used_and_one_more_is_refused_at_the_first_renewal():
    api, clock = Api(), Clock()
    held = [budget(api, clock, name, places=2).take() for name in ("a", "b")]
    assert {one.name for one in held} == {"slacktide-drill-0", "slacktide-drill-1"}
    clock.after = [one._renew for one in held]
    with pytest.raises(CommandError, match=r"2 drills run already.*slacktide-drill-0 by a; slacktide-drill-1 by b"):
        budget(api, clock, "c", places=2).take()
    assert clock.now < 5.0


def test_the_place_of_one_that_was_killed_is_taken_over_after_its_time_and_not_before():
    api, clock = Api(), Clock()
    killed = budget(api, clock, "a").take()
    clock.now += 1.0
    taken = budget(api, clock, "b").take()
    assert SETTINGS.lease_seconds <= clock.now - 1.0 <= SETTINGS.lease_seconds + 2.0
    assert taken.broken() == ""
    # One that was only stopped for long finds out, and does not write over the other.
    killed._renew()
    assert "somebody else has taken" in killed.broken()
    killed.release()
    assert api.objects["slacktide-drill-0"]["spec"]["holderIdentity"] == "b"


def test_two_that_try_at_the_same_time():
    api, clock = Api(), Clock()
    first = budget(api, clock, "a").take()
    first.release()
    rivals = []

    def rival():
        api.before_write = lambda: None
        rivals.append(budget(api, clock, "b").take())
        clock.after = [rivals[0]._renew]

    api.before_write = rival
    with pytest.raises(CommandError, match="1 drill runs already"):
        budget(api, clock, "c").take()
    assert api.objects["slacktide-drill-0"]["spec"]["holderIdentity"] == "b"


def test_a_place_that_cannot_be_renewed_is_lost_before_others_may_take_it():
    api, clock = Api(), Clock()
    held = budget(api, clock, "a").take()
    api.fail = Unreachable("connection refused")
    clock.now += SETTINGS.renew_seconds
    held._renew()
    assert held.broken() == ""
    clock.now += 1.0
    assert "could not be renewed for 21 s" in held.broken()
    assert clock.now < SETTINGS.lease_seconds
    api.fail = None
    held._renew()
    assert held.broken() == ""


def test_a_missing_right_is_said():
    api = Api()
    api.fail = Forbidden(403, "Forbidden", 'leases is forbidden: User "eve" cannot get resource "leases"')
    with pytest.raises(CommandError, match="needed to hold the number of drills at once"):
        budget(api, Clock(), "a").take()


def report(number=1, phase="recovered", **fields):
    known = {"node": "n1", "kind": "pressure", "started_unix_millis": number, "passed": True}
    return Report(**{"id": f"d{number:04}", "phase": phase, **known, **fields})


STORES = {
    "cluster": lambda tmp_path: ClusterRecords(Api(), SPACE, wait=lambda _: None),
    "files": lambda tmp_path: FileRecords(str(tmp_path / "drills")),
}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)


def test_what_is_kept_is_there_newest_first_and_replaced_by_id(store):
    assert store.all() == []
    store.put(report(1))
    store.put(report(3, "running", passed=None))
    store.put(report(2))
    store.put(report(3))
    assert store.all() == [report(3), report(2), report(1)]


def test_the_oldest_go_first(store):
    for number in range(1, KEPT + 4):
        store.put(report(number))
    kept = store.all()
    assert len(kept) == KEPT
    assert (kept[0].started_unix_millis, kept[-1].started_unix_millis) == (KEPT + 3, 4)


@pytest.mark.parametrize("bad", ["../x", "", "a/b", "x" * 65, "a b"])
def test_an_id_that_could_lead_elsewhere_is_none(store, bad):
    with pytest.raises(CommandError, match="is no id"):
        store.put(report(id=bad))
    with pytest.raises(CommandError, match="is no id"):
        check_id(bad)


def test_records_of_others_and_newer_ones_are_left_out_and_go_first():
    api = Api()
    newer = msgspec.json.encode(report(9)).decode().replace('"version":1', '"version":2')
    data = {"newer": newer, "torn": '{"id":', **{f"d{n}": encoded(report(n)) for n in range(KEPT)}}
    api.request("POST", "/x", json.dumps({"metadata": {"name": "slacktide-drills"}, "data": data}).encode())
    store = ClusterRecords(api, SPACE, wait=lambda _: None)
    assert len(store.all()) == KEPT
    store.put(report(KEPT))
    left = api.objects["slacktide-drills"]["data"]
    assert not {"newer", "torn", "d0"} & left.keys()


def test_two_callers_at_once_lose_nobodys_record():
    api = Api()
    store = ClusterRecords(api, SPACE, wait=lambda _: None)
    store.put(report(1))

    def other():
        api.before_write = lambda: None
        ClusterRecords(api, SPACE, wait=lambda _: None).put(report(2))

    api.before_write = other
    store.put(report(3))
    assert [one.id for one in store.all()] == ["d0003", "d0002", "d0001"]


def test_one_that_can_never_write_gives_up_in_words():
    api = Api()
    store = ClusterRecords(api, SPACE, wait=lambda _: None)
    store.put(report(1))

    def other():
        api.objects["slacktide-drills"]["metadata"]["resourceVersion"] += "0"

    api.before_write = other
    with pytest.raises(CommandError, match="written by others all the time"):
        store.put(report(2))


def test_a_directory_that_cannot_be_had_is_said(tmp_path):
    (tmp_path / "drills").write_text("a file")
    with pytest.raises(CommandError, match="cannot be kept"):
        FileRecords(str(tmp_path / "drills")).put(report(1))
    with pytest.raises(CommandError, match="cannot be read"):
        FileRecords(str(tmp_path / "drills")).all()


def test_files_are_private(tmp_path):
    FileRecords(str(tmp_path / "drills")).put(report(1))
    assert os.stat(tmp_path / "drills" / "d0001.json").st_mode & 0o777 == 0o600


TEXT = st.text(max_size=3000)


@given(
    st.lists(st.builds(Moment, step=TEXT, elapsed_millis=st.integers(0, 1 << 31), detail=TEXT), max_size=30),
    st.lists(st.builds(Victim, namespace=TEXT, name=TEXT, reason=TEXT), max_size=10),
    st.lists(TEXT, max_size=10),
    TEXT,
)
def test_a_record_is_bounded_and_can_be_read_again_whatever_it_holds(timeline, victims, misses, message):
    made = report(timeline=tuple(timeline), victims=tuple(victims), misses=tuple(misses), message=message)
    text = encoded(made)
    assert len(text.encode()) <= RECORD_BYTES
    again = decoded(text)
    assert (again.id, again.passed) == (made.id, made.passed)
    if len(msgspec.json.encode(made)) <= RECORD_BYTES:
        assert again == made
    # A cell of the report never breaks its table.
    rows = [line for line in markdown(made).splitlines() if re.match(r"\| \+\d+\.\d\d s \|", line)]
    assert len(rows) == len(timeline)


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, RECORD_BYTES), max_size=80))
def test_all_records_are_bounded(sizes):
    data = {key: encoded(report(number)).ljust(size) for number, (key, size) in enumerate(sizes.items())}
    kept = bounded(data)
    assert kept.items() <= data.items()
    assert len(kept) <= KEPT
    assert sum(len(text.encode()) for text in kept.values()) <= ALL_BYTES


def test_the_first_source_that_knows_the_end_wins():
    ours = [report(1, "running", passed=None, skew_millis=5), report(2)]
    theirs = [report(1, "aborted", passed=False), report(2, "failed", passed=False), report(3)]
    found = merged(ours, theirs)
    assert [(one.id, one.phase, one.skew_millis) for one in found] == [
        ("d0003", "recovered", None),
        ("d0002", "recovered", None),
        ("d0001", "aborted", 5),
    ]
