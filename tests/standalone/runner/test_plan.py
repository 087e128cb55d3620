"""The plan as tables, and as a game: whatever the world does, acting on plans brings it to rest in the right state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standalone.runner import plan as planning
from standalone.runner.attempts import Attempt, Exit, Phase, Stopping
from standalone.runner.lifecycle import BackOff, progress
from standalone.runner.plan import Desired, Observed, Rules, StartFailure, plan
from tests.standalone.runner.twin import pod_dict, pod_view

RULES = Rules()
CID = "{:064x}"


def attempt(pod, number=0, container="main", phase=Phase.RUNNING, **fields):
    base = {
        "id": CID.format(abs(hash((pod.metadata.uid, container, number)))),
        "pod_uid": pod.metadata.uid,
        "namespace": "default",
        "pod": pod.metadata.name,
        "container": container,
        "number": number,
        "crashes": 0,
        "phase": phase,
        "created_at": 0.0,
        "started_at": 1.0,
    }
    return Attempt(**{**base, **fields})


def ended(pod, code=0, finished=0.0, ran=1.0, **fields):
    exit_ = Exit(code=code, finished_at=5.0, finished=finished, ran_seconds=ran)
    return attempt(pod, phase=Phase.EXITED, exit=exit_, **fields)


def pod_of(name="web", policy="Never", deleted=None, phase="Pending", **spec):
    body = pod_dict(name, restartPolicy=policy, **spec)
    body["status"]["phase"] = phase
    if deleted is not None:
        body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": deleted}
    return pod_view(body)


def names(actions):
    return [type(action).__name__ for action in actions]


def act(pods, attempts=(), now=100.0, groups=None, failures=None, synced=True):
    observed = Observed(attempts=tuple(attempts), groups=groups or {}, failures=failures or {})
    return plan(Desired(synced=synced, pods=tuple(pods)), observed, now, RULES)


def test_a_new_pod_is_started():
    found = act([pod_of()])
    assert names(found.actions) == ["Start"]
    assert found.actions[0].number == 0
    assert found.wake_at is None


def test_a_running_pod_is_left_alone():
    pod = pod_of()
    one = attempt(pod)
    assert act([pod], [one], groups={pod.metadata.uid: frozenset({one.id})}).actions == ()


@pytest.mark.parametrize(
    ("policy", "code", "restarts"),
    [("Never", 0, False), ("Never", 1, False), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Always", 0, True)],
)
def test_restart_policy(policy, code, restarts):
    pod = pod_of(policy=policy)
    assert ("Start" in names(act([pod], [ended(pod, code)]).actions)) is restarts


@pytest.mark.parametrize(
    ("crashes", "ran", "delay"),
    [
        (0, 1, 0),
        (1, 1, 10),
        (2, 1, 20),
        (3, 1, 40),
        (6, 1, 300),
        (60, 1, 300),
        (9999, 1, 300),
        (5, 600, 0),
        (5, 599, 160),
    ],
)
def test_back_off(crashes, ran, delay):
    pod = pod_of(policy="Always")
    one = ended(pod, 1, finished=100.0, ran=ran, crashes=crashes)
    if delay:
        early = act([pod], [one], now=100.0 + delay - 0.1)
        assert names(early.actions) == []
        assert early.wake_at == 100.0 + delay
    late = act([pod], [one], now=100.0 + delay)
    assert names(late.actions) == ["Start"]
    assert late.actions[0].number == 1


def test_an_end_before_this_boot_is_not_waited_for():
    pod = pod_of(policy="Always")
    assert names(act([pod], [ended(pod, 1, finished=None, crashes=9)], now=1.0).actions) == ["Start"]


def test_a_failed_start_is_retried_later():
    pod = pod_of()
    failure = StartFailure(reason="x", message="", count=1, retry_at=102.0)
    failures = {(pod.metadata.uid, "main"): failure}
    assert act([pod], failures=failures).wake_at == 102.0
    assert names(act([pod], failures=failures, now=102.0).actions) == ["Start"]


def test_deletion_signals_waits_kills_cleans_confirms():
    pod = pod_of(deleted=5)
    one = attempt(pod)
    groups = {pod.metadata.uid: frozenset({one.id})}
    assert names(act([pod], [one], groups=groups).actions) == ["Terminate"]
    stopped = replace(one, stopping=Stopping(signalled=100.0, grace_seconds=5))
    waiting = act([pod], [stopped], now=104.0, groups=groups)
    assert (waiting.actions, waiting.wake_at) == ((), 105.0)
    assert names(act([pod], [stopped], now=105.0, groups=groups).actions) == ["Kill"]
    gone = ended(pod, 137)
    assert names(act([pod], [gone], groups=groups).actions) == ["RemoveContainerGroup", "RemovePodGroup"]
    assert names(act([pod], [gone]).actions) == ["DeletePod"]


def test_a_shorter_grace_counts_from_the_first_signal():
    pod = pod_of(deleted=1)
    stopped = attempt(pod, stopping=Stopping(signalled=100.0, grace_seconds=60))
    assert names(act([pod], [stopped], now=101.0).actions) == ["Kill"]


def test_no_grace_is_a_kill():
    pod = pod_of(deleted=0)
    assert names(act([pod], [attempt(pod)]).actions) == ["Kill"]


def test_a_pod_that_never_ran_is_confirmed_at_once():
    assert names(act([pod_of(deleted=30)]).actions) == ["DeletePod"]


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_the_api_calls_ended_is_stopped(phase):
    pod = pod_of(phase=phase)
    assert names(act([pod], [attempt(pod)]).actions) == ["Terminate"]
    assert act([pod]).actions == ()


def test_no_list_is_not_no_pods():
    pod = pod_of()
    one = attempt(pod)
    assert act([], [one], synced=False, groups={pod.metadata.uid: frozenset({one.id})}).actions == ()
    assert names(act([], [one]).actions) == ["Terminate"]


def test_a_grace_period_that_began_ends_without_the_api():
    one = attempt(pod_of(), stopping=Stopping(signalled=0.0, grace_seconds=5))
    assert names(act([], [one], synced=False).actions) == ["Kill"]


def test_lost_is_buried_also_before_the_first_list():
    one = attempt(pod_of(), phase=Phase.LOST)
    assert names(act([], [one], synced=False).actions) == ["Bury"]


def test_an_orphan_is_ended_and_forgotten():
    pod = pod_of()
    assert names(act([], [attempt(pod)]).actions) == ["Terminate"]
    assert names(act([], [ended(pod)], groups={pod.metadata.uid: frozenset()}).actions) == ["RemovePodGroup"]
    assert names(act([], [ended(pod)]).actions) == ["ForgetPod"]


def test_a_group_without_a_record_is_removed():
    uid = pod_of().metadata.uid
    assert names(act([], groups={uid: frozenset({"a" * 64})}).actions) == ["RemoveContainerGroup", "RemovePodGroup"]


def test_old_attempts_are_forgotten():
    pod = pod_of(policy="Always")
    attempts = [ended(pod, 1, number=0), ended(pod, 1, number=1), attempt(pod, number=2)]
    found = act([pod], attempts)
    assert [action.attempt.number for action in found.actions] == [0]


def test_without_records_the_api_tells_the_restart_count():
    body = pod_dict(restartPolicy="Always")
    status = {"name": "main", "restartCount": 4, "containerID": "slacktide://x"}
    body["status"]["containerStatuses"] = [status]
    assert act([pod_view(body)]).actions[0].number == 5


def test_init_containers_and_sidecars():
    inits = [{"name": "one"}, {"name": "side", "restartPolicy": "Always"}, {"name": "two"}]
    pod = pod_of(initContainers=inits)
    steps = []
    attempts = []
    for name, kind in (("one", "init"), ("side", "side"), ("two", "init")):
        steps.append([action.container.name for action in act([pod], attempts).actions])
        attempts.append(attempt(pod, container=name) if kind == "side" else ended(pod, container=name))
    assert steps == [["one"], ["side"], ["two"]]
    assert [action.container.name for action in act([pod], attempts).actions] == ["main"]
    attempts.append(ended(pod))
    assert [
        action.attempt.container for action in act([pod], attempts).actions if names([action]) == ["Terminate"]
    ] == ["side"]


def test_a_failed_init_ends_the_pod():
    pod = pod_of(initContainers=[{"name": "one"}])
    one = ended(pod, 1, container="one")
    assert act([pod], [one]).actions == ()
    assert progress(pod, {"one": one}).failed


class World:
    """A model of the machine: applies actions, lets payloads end as the draw says."""

    def __init__(self):
        self.now = 0.0
        self.attempts = {}
        self.groups = {}
        self.count = 0

    def observed(self):
        groups = {uid: frozenset(ids) for uid, ids in self.groups.items()}
        return Observed(attempts=tuple(self.attempts.values()), groups=groups)

    def apply(self, action, pods):
        match action:
            case planning.Start():
                uid = action.pod.metadata.uid
                twins = [
                    one
                    for one in self.attempts.values()
                    if one.live and one.pod_uid == uid and one.container == action.container.name
                ]
                assert not twins, "a container was started twice"
                made = attempt(
                    action.pod, action.number, action.container.name, crashes=action.crashes, id=CID.format(self.count)
                )
                self.count += 1
                self.attempts[made.id] = made
                self.groups.setdefault(uid, set()).add(made.id)
            case planning.Terminate():
                one = action.attempt
                assert one.stopping is None
                stopping = Stopping(signalled=self.now, grace_seconds=action.grace_seconds)
                self.attempts[one.id] = replace(one, stopping=stopping)
            case planning.Kill() | planning.Bury():
                self.end(action.attempt.id, 137)
            case planning.RemoveContainerGroup():
                assert not (action.id in self.attempts and self.attempts[action.id].live)
                self.groups[action.pod_uid].discard(action.id)
            case planning.RemovePodGroup():
                assert not self.groups[action.pod_uid]
                del self.groups[action.pod_uid]
            case planning.Forget():
                assert not action.attempt.live
                del self.attempts[action.attempt.id]
            case planning.ForgetPod():
                for one in action.attempts:
                    assert not one.live
                    del self.attempts[one.id]
            case planning.DeletePod():
                uid = action.pod.metadata.uid
                assert not any(one.live and one.pod_uid == uid for one in self.attempts.values())
                pods.remove(action.pod)

    def end(self, one, code):
        found = self.attempts[one]
        exit_ = Exit(code=code, finished_at=self.now, finished=self.now, ran_seconds=1.0)
        self.attempts[one] = replace(found, phase=Phase.EXITED, exit=exit_)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["Never", "OnFailure", "Always"]), min_size=1, max_size=3),
    st.lists(st.sampled_from(["end0", "end1", "lose", "delete", "vanish", "tick", "leap"]), max_size=25),
    st.booleans(),
)
def test_the_world_comes_to_rest(policies, happenings, with_init):
    spec = {"initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]} if with_init else {}
    pods = [pod_of(f"p{index}", policy, **spec) for index, policy in enumerate(policies)]
    world = World()

    def step():
        wanted = Desired(synced=True, pods=tuple(pods))
        found = plan(wanted, world.observed(), world.now, RULES)
        assert plan(wanted, world.observed(), world.now, RULES) == found
        for action in found.actions:
            world.apply(action, pods)
        return found

    for happening in happenings:
        step()
        live = [one for one in world.attempts.values() if one.live]
        if happening.startswith("end") and live:
            world.end(live[0].id, int(happening[3:]))
        elif happening == "lose" and live:
            world.attempts[live[0].id] = replace(live[0], phase=Phase.LOST)
        elif happening == "delete" and pods:
            gone = pods[0].metadata.name
            fields = {"deletion_timestamp": "2026-01-01T00:00:00Z", "deletion_grace_period_seconds": 5}
            meta = {field: getattr(pods[0].metadata, field) for field in pods[0].metadata.__struct_fields__}
            pods[0] = type(pods[0])(metadata=type(pods[0].metadata)(**{**meta, **fields}), spec=pods[0].spec)
            assert pods[0].metadata.name == gone
        elif happening == "vanish" and pods:
            pods.pop()
        world.now += 1000.0 if happening == "leap" else 1.0
    _rest(world, pods, step)
    for pod in pods:
        mine = [one for one in world.attempts.values() if one.pod_uid == pod.metadata.uid]
        newest = planning.latest(mine)
        done = progress(pod, newest)
        if not done.finished:
            assert any(one.live for one in mine)
        else:
            assert not any(one.live for one in mine)
            assert pod.metadata.uid not in world.groups
        assert pod.metadata.deletion_timestamp is None
    known = {pod.metadata.uid for pod in pods}
    assert {one.pod_uid for one in world.attempts.values()} <= known
    assert set(world.groups) <= known


def _rest(world, pods, step):
    """Play on with nothing but time and ending init containers until nothing is left to do."""
    for _ in range(60):
        found = step()
        inits = [one for one in world.attempts.values() if one.live and one.container == "i"]
        for one in inits:
            world.end(one.id, 0)
        if inits:
            continue
        if found.wake_at is not None:
            world.now = max(world.now, found.wake_at)
        elif not found.actions:
            return
    raise AssertionError("no rest")


def test_back_off_never_overflows():
    assert BackOff().delay(10**6) == 300.0
