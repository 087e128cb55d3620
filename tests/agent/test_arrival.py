"""Pods and containers that come between two turns."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace

import pytest

from agent.act.executor import Executor
from agent.act.journal import Journal
from agent.arrival import LOOKS, UNKNOWN_SECONDS, part_of
from agent.beat import Beat
from agent.capabilities import Capabilities, Knob
from agent.host.cgroup import ContainerGroup, PodGroup
from agent.host.watch import Arrival, CgroupWatch
from agent.loop import Loop
from agent.pods import PodBook
from agent.policy.base import Context, Desired, Plan, Request
from agent.policy.batch_limits import BatchLimits
from agent.policy.weight import Weight
from agent.settings import AgentSettings
from agent.snapshot import PodIdentity
from slacktide.objects import Container, PodSpec, ResourceRequirements
from slacktide.settings import ResourceNames
from slacktide.tier import Tier
from tests.agent.trees import CID, UID_BE, UID_BE2, Tree
from tests.agent.twins import CAPABLE, FakeClock, FakeExecutor, FakeHost, FakePods, pod
from tests.patience import PATIENCE

NAMES = ResourceNames()


def be(uid, cpu="500"):
    resources = ResourceRequirements(limits={NAMES.cpu: cpu})
    return pod(uid, "be", spec=PodSpec(containers=[Container(name="main", resources=resources)]))


class Split:
    """An urgent policy that divides `limit` evenly over the BE pods of each picture; None is no limit."""

    name = "suppress"
    urgent = True
    limit = None

    def start(self, context):
        return None

    def decide(self, snapshot, state, settings, context):
        pods = snapshot.pods_of(Tier.BE)
        if self.limit is None:
            return Desired(), state
        wishes = tuple(
            Request(policy=self.name, group=one.group, knob=Knob.QUOTA, value=self.limit // len(pods), reason="")
            for one in pods
        )
        return Desired(requests=wishes, be_limit_millis=self.limit), state


class FakeWatch:
    """Says that things came."""

    def __init__(self):
        self.queue = deque()
        self.followed = 0

    @property
    def pending(self):
        return bool(self.queue)

    def fileno(self):
        return None

    def follow(self):
        self.followed += 1

    def take(self, at_most):
        return tuple(self.queue.popleft() for _ in range(min(at_most, len(self.queue))))


class Rig:
    """A loop on twins that has decided once; `come` makes a cgroup appear."""

    def __init__(self, *, capabilities=CAPABLE, settings=None, policies=None, turns=2):
        self.clock = FakeClock()
        self.host = FakeHost(self.clock, {"ls": 1.2, "be": 0.7})
        self.pods = FakePods(pod("ls", "ls"), pod("be", "be"))
        self.executor = FakeExecutor()
        self.watch = FakeWatch()
        self.took = []
        self.settings = settings or AgentSettings()
        self.loop = Loop(
            lambda: self.settings,
            self.host,
            Beat(self.host, capabilities, 0.25, 2),
            PodBook(self.pods, NAMES),
            policies or (BatchLimits(), Weight()),
            Context(capabilities=capabilities),
            self.executor,
            on_turn=lambda _turn: None,
            on_sample=lambda _sample: None,
            on_arrival=self.took.append,
            watch=self.watch,
            clock=self.clock,
            wall=lambda: 1e9 + self.clock(),
        )
        for _ in range(turns):
            self.turn()

    def turn(self):
        self.loop.turn()
        self.beats(20)

    def beats(self, count):
        for _ in range(count):
            self.host.move(0.05)
            self.loop.beat()

    def come(self, uid, *ids):
        group = f"kubepods/{uid}"
        containers = tuple(ContainerGroup(f"{group}/{one}", 9, one) for one in ids)
        self.host.rates.setdefault(uid, 0.0)
        self.watch.queue.append(Arrival(pod=PodGroup(group, 1, uid, containers), at=self.clock.now))

    def arrive(self, seconds=0.0):
        self.clock.pass_(seconds)
        self.loop.arrive()

    @property
    def wanted(self):
        """What the last round wanted: (group below kubepods, knob) -> value."""
        settings = self.executor.plans[-1].settings
        return {(group.removeprefix("kubepods/"), knob): wish.value for (group, knob), wish in settings.items()}


def test_a_newcomer_is_limited_without_a_turn_and_nobody_else_is_touched():
    rig = Rig()
    rounds = len(rig.executor.plans)
    rig.pods.pods.append(be("new"))
    rig.come("new", CID)
    rig.arrive(0.003)
    assert len(rig.executor.plans) == rounds + 1
    assert rig.executor.groups[-1] == {"kubepods/new"}
    assert {key: value for key, value in rig.wanted.items() if key[1] is not Knob.BVT} == {
        ("new", Knob.QUOTA): 500,
        ("new", Knob.IDLE): 1,
        (f"new/{CID}", Knob.QUOTA): 500,
        (f"new/{CID}", Knob.WEIGHT): 512,
    }
    assert rig.took == [pytest.approx(0.003)]
    assert rig.loop.counters["arrivals"] == 1
    assert rig.loop.counters["errors"] == 0


def test_a_pod_that_is_still_being_set_up_waits_for_its_first_container():
    """Made idle at once, it would get no weight from kubelet or systemd, and 100 would pass for what they gave it."""
    rig = Rig()
    rounds = len(rig.executor.plans)
    rig.pods.pods.append(be("new"))
    rig.come("new")
    rig.arrive()
    assert len(rig.executor.plans) == rounds
    rig.come("new", CID)
    rig.arrive()
    assert rig.wanted["new", Knob.IDLE] == 1


def test_nothing_came_nothing_is_done():
    rig = Rig()
    rounds = len(rig.executor.plans)
    rig.arrive()
    assert len(rig.executor.plans) == rounds
    assert rig.took == []


def test_the_turn_takes_over_what_arrived():
    rig = Rig()
    rig.pods.pods.append(be("new"))
    rig.come("new", CID)
    rig.arrive()
    rig.turn()
    assert rig.executor.groups[-1] == {"kubepods/ls", "kubepods/be", "kubepods/new"}
    assert rig.wanted["new", Knob.QUOTA] == 500
    assert rig.watch.followed == 3


def test_a_beat_after_an_arrival_knows_the_newcomer():
    split = Split()
    rig = Rig(policies=(BatchLimits(), split))
    rig.pods.pods.append(be("new"))
    rig.come("new", CID)
    rig.arrive()
    split.limit = 400
    rig.beats(1)
    assert rig.loop.counters["cuts"] == 1
    assert rig.executor.groups[-1] == {"kubepods/ls", "kubepods/be", "kubepods/new"}
    assert (rig.wanted["new", Knob.QUOTA], rig.wanted[f"new/{CID}", Knob.QUOTA]) == (200, 500)


def test_a_newcomer_is_looked_at_again_at_growing_distances():
    # A runtime makes the cgroup and writes its own values into it a moment later.
    rig = Rig()
    rig.pods.pods.append(be("new"))
    rig.come("new", CID)
    rounds, begin = len(rig.executor.plans), rig.clock.now
    looks = []
    for _ in range(200):
        rig.arrive(0.01)
        if len(rig.executor.plans) > rounds:
            rounds = len(rig.executor.plans)
            looks.append(rig.clock.now - begin - 0.01)
            assert rig.executor.groups[-1] == {"kubepods/new"}
            assert ("new", Knob.QUOTA) in rig.wanted
    assert looks == pytest.approx(LOOKS, abs=0.011)
    assert len(rig.took) == 1, "it arrived once"


def test_a_pod_that_the_api_does_not_have_yet_is_limited_as_soon_as_it_has():
    rig = Rig()
    rounds = len(rig.executor.plans)
    rig.come("new", CID)
    for _ in range(3):
        rig.arrive(0.05)
    assert len(rig.executor.plans) == rounds
    assert rig.loop.counters["arrivals_unknown"] == 1
    rig.pods.pods.append(be("new"))
    rig.loop.wake()
    rig.arrive(0.001)
    assert rig.wanted["new", Knob.QUOTA] == 500
    assert rig.took == [pytest.approx(0.151)]


def test_a_pod_that_the_api_never_has_is_left_to_the_turns():
    rig = Rig()
    rig.come("new", CID)
    rig.arrive(0.05)
    rig.arrive(UNKNOWN_SECONDS + 1)
    rig.pods.pods.append(be("new"))
    rounds = len(rig.executor.plans)
    rig.arrive(1.0)
    assert len(rig.executor.plans) == rounds
    rig.turn()
    assert rig.wanted["new", Knob.QUOTA] == 500


def test_a_restarted_container_of_a_known_pod_is_limited():
    # koordinator 972, 2055.
    rig = Rig()
    rig.pods.pods[1] = be("be")
    rig.come("be", CID)
    rig.arrive()
    rig.turn()
    rig.come("be", "d" * 64)
    rig.arrive(0.3)
    assert rig.executor.groups[-1] == {"kubepods/be"}
    assert rig.wanted["be/" + "d" * 64, Knob.QUOTA] == 500
    assert (f"be/{CID}", Knob.QUOTA) not in rig.wanted


def test_a_pod_with_ten_containers_has_all_of_them_limited():
    rig = Rig()
    ids = [f"{number:064x}" for number in range(10)]
    rig.pods.pods.append(be("new"))
    rig.come("new", *ids)
    rig.arrive()
    assert {group for group, knob in rig.wanted if knob is Knob.QUOTA} == {"new", *(f"new/{one}" for one in ids)}


def test_fifty_at_once_are_done_in_bounded_steps_with_rests_in_between():
    rig = Rig()
    uids = [f"n{number}" for number in range(50)]
    for uid in uids:
        rig.pods.pods.append(be(uid))
        rig.come(uid, CID)
    steps = 0
    while rig.loop.counters["arrivals"] < 50:
        rig.arrive()
        steps += 1
        assert len(rig.executor.groups[-1]) <= 8
        assert steps <= 7
    assert len(rig.took) == 50
    limited = {group for groups in rig.executor.groups for group in groups}
    assert limited >= {f"kubepods/{uid}" for uid in uids}


class Slow(FakeExecutor):
    """Takes its time."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock = clock
        self.seconds = seconds

    def apply(self, plan, groups, identities, *, whole=True):
        self.clock.pass_(self.seconds)
        return super().apply(plan, groups, identities, whole=whole)


@pytest.mark.parametrize(("took", "rest"), [(0.004, 0.004), (0.2, 0.01)])
def test_arrivals_rest_for_as_long_as_they_took_but_not_for_long(took, rest):
    rig = Rig()
    rig.loop._hands._executor = Slow(rig.clock, took)
    rig.pods.pods.append(be("new"))
    rig.come("new", CID)
    rig.arrive()
    assert rig.loop._rest_until == pytest.approx(rig.clock.now + rest)


def test_a_limit_in_force_covers_the_newcomer_and_is_split_anew_in_the_same_step():
    split = Split()
    split.limit = 400
    rig = Rig(policies=(BatchLimits(), split))
    assert rig.wanted["be", Knob.QUOTA] == 400
    rig.pods.pods.append(be("new", cpu="2000"))
    rig.come("new", CID)
    rig.arrive()
    assert rig.executor.groups[-1] == {"kubepods/new", "kubepods/be"}
    assert (rig.wanted["new", Knob.QUOTA], rig.wanted["be", Knob.QUOTA]) == (200, 200)
    rig.arrive(0.06)
    assert rig.executor.groups[-1] == {"kubepods/new"}, "the others did not change again"


def test_an_ls_newcomer_is_known_and_not_limited():
    rig = Rig()
    rig.pods.pods.append(pod("new", "ls"))
    rig.come("new", CID)
    rig.arrive()
    assert all(not group.startswith("new") for group, _ in rig.wanted)
    assert rig.took == []
    assert rig.loop.counters["arrivals"] == 1


@pytest.mark.parametrize("turns", [0, 1])
def test_before_the_first_decision_newcomers_wait_for_the_turn(turns):
    rig = Rig(turns=turns)
    rig.pods.pods.append(be("new"))
    rig.come("new", CID)
    rig.arrive()
    assert rig.executor.plans == []
    assert not rig.watch.pending, "or the descriptor would stay readable"
    for _ in range(2):
        rig.turn()
    assert rig.wanted["new", Knob.QUOTA] == 500


def test_observe_only_writes_nothing():
    for rig in (
        Rig(settings=AgentSettings(observe_only=True)),
        Rig(capabilities=Capabilities(mode="v1", cpu_version=1, run_delay=True)),
    ):
        rig.pods.pods.append(be("new"))
        rig.come("new", CID)
        rig.arrive()
        assert rig.executor.plans == []
        assert rig.loop.counters["errors"] == 0


def test_a_round_that_fails_is_tried_again_with_the_next_look():
    rig = Rig()
    rig.pods.pods.append(be("new"))
    rig.come("new", CID)
    rig.executor.fail = RuntimeError("broken")
    with pytest.raises(RuntimeError):
        rig.arrive()
    rig.executor.fail = None
    rig.arrive(0.06)
    assert rig.wanted["new", Knob.QUOTA] == 500


def test_a_round_for_some_pods_forgets_nothing_of_the_others(tmp_path):
    tree = Tree(tmp_path)
    for group in ("kubepods/besteffort/pod" + UID_BE, "kubepods/besteffort/pod" + UID_BE2):
        tree.group(group)
    journal = Journal(str(tmp_path), "boot")
    executor = Executor(tree.lister(), journal, CAPABLE)
    groups = {one.group: one for one in tree.lister().pods()}
    first, second = sorted(groups)
    identities = {
        group: PodIdentity(namespace="d", name="p", uid=one.uid, tier=Tier.BE) for group, one in groups.items()
    }
    wishes = {
        (group, Knob.QUOTA): Request(policy="x", group=group, knob=Knob.QUOTA, value=500, reason="") for group in groups
    }
    executor.apply(Plan(settings=wishes), groups, identities)
    assert {entry.group for entry in journal.entries()} == {first, second}
    tree.remove(first)
    journal.lost = True
    part = part_of(Plan(settings=wishes), {second})
    executor.apply(part, {second: groups[second]}, identities, whole=False)
    assert {entry.group for entry in journal.entries()} == {first, second}
    assert journal.lost
    executor.apply(part, {second: groups[second]}, identities)
    assert {entry.group for entry in journal.entries()} == {second}
    assert not journal.lost


class Named:
    """Remembers what it was asked with; `urgent` and `prompt` as told."""

    def __init__(self, name, *, urgent, prompt=None):
        self.name, self.urgent, self.seen = name, urgent, []
        if prompt is not None:
            self.prompt = prompt

    def start(self, context):
        return None

    def decide(self, snapshot, state, settings, context):
        self.seen.append(snapshot)
        wishes = [
            Request(policy=self.name, group=one.group, knob=Knob.QUOTA, value=100, reason="x")
            for one in snapshot.pods_of(Tier.BE)
        ]
        return Desired(requests=tuple(wishes)), state


def test_only_urgent_and_prompt_policies_are_asked_with_all_pods_and_the_newcomers():
    urgent = Named("suppress", urgent=True)
    prompt = Named("weight", urgent=False, prompt=True)
    slow = Named("spread", urgent=False)
    rig = Rig(policies=(urgent, prompt, slow))
    asked = [len(one.seen) for one in (urgent, prompt, slow)]
    rig.pods.pods.append(be("new"))
    rig.come("new", CID)
    rig.arrive()
    assert [len(one.seen) for one in (urgent, prompt, slow)] == [asked[0] + 1, asked[1] + 1, asked[2]]
    snapshot = prompt.seen[-1]
    assert snapshot.urgent
    assert [one.identity.uid for one in snapshot.pods] == ["ls", "be", "new"]
    assert snapshot.pods[0] == replace(snapshot.pods[0], identity=snapshot.pods[0].identity)
    assert [leaf.id for leaf in snapshot.pods[-1].containers] == [CID]


class Live:
    """The loop's own thread, with rhythms so slow that only an arrival or a wake can end its sleep."""

    def __init__(self, tmp_path):
        self.tree = Tree(tmp_path)
        self.tree.group("kubepods/besteffort")
        self.rig = rig = Rig(settings=AgentSettings(beat_seconds=10, turn_seconds=60))
        lister = self.tree.lister()
        lister.pods()
        rig.watch = CgroupWatch(lister, time.monotonic)
        rig.watch.follow()
        rig.loop._watch = rig.watch
        rig.loop._clock = time.monotonic
        rig.host.clock.now = time.monotonic()
        rig.loop.start()

    def close(self):
        ended = self.rig.loop.stop(5 * PATIENCE)
        self.rig.watch.close()
        return ended


def until(condition):
    end = time.monotonic() + 5 * PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_the_sleeping_thread_is_woken_by_a_new_cgroup_by_the_api_and_by_stop(tmp_path):
    live = Live(tmp_path)
    counters = live.rig.loop.counters
    try:
        until(lambda: counters["turns"] == 3)
        live.tree.group(f"kubepods/besteffort/pod{UID_BE}/{CID}")
        until(lambda: counters["arrivals_unknown"] == 1)
        live.rig.pods.pods.append(be(UID_BE))
        live.rig.loop.wake()
        until(lambda: live.rig.took)
        assert live.rig.wanted[f"besteffort/pod{UID_BE}/{CID}", Knob.QUOTA] == 500
        begin = time.monotonic()
    finally:
        assert live.close()
    assert time.monotonic() - begin < 5 * PATIENCE
    assert (counters["turns"], counters["errors"]) == (3, 0)
