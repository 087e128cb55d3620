"""The watch on plain directory trees: inotify sees them as it sees cgroups."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.host.inotify import IN_CREATE, IN_ISDIR, IN_Q_OVERFLOW, Event, Inotify
from agent.host.wake import Waker
from agent.host.watch import CgroupWatch
from slacktide.kernel.hierarchy import Version
from tests.agent.trees import CID, CID2, UID_BE, UID_BE2, UID_LS, Tree
from tests.agent.twins import FakeClock

BE = f"kubepods/besteffort/pod{UID_BE}"
KIND = "kubelet.slice/kubelet-kubepods.slice"
LAYOUTS = {
    "cgroupfs": ("kubepods", f"kubepods/burstable/pod{UID_LS}", CID),
    "guaranteed": ("kubepods", f"kubepods/pod{UID_LS}", CID),
    "systemd": (
        "kubepods.slice",
        f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_BE.replace('-', '_')}.slice",
        f"cri-containerd-{CID}.scope",
    ),
    "kind": (
        KIND,
        f"{KIND}/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{UID_BE.replace('-', '_')}.slice",
        f"crio-{CID}.scope",
    ),
}


class Watched:
    """A tree, its lister and the watch on it; `turn` does what a turn does."""

    def __init__(self, tree, make=Inotify):
        self.tree = tree
        self.clock = FakeClock()
        self.lister = tree.lister()
        self.watch = CgroupWatch(self.lister, self.clock, make)
        self.turn()

    def turn(self):
        self.listed = self.lister.pods()
        self.watch.follow()

    def taken(self, at_most=100):
        return {arrival.pod.group: len(arrival.pod.containers) for arrival in self.watch.take(at_most)}


@pytest.fixture(params=[Version.V1, Version.V2], ids=["v1", "v2"])
def tree(request, tmp_path):
    return Tree(tmp_path, request.param)


@pytest.fixture
def watched(tree):
    tree.group("kubepods/besteffort")
    made = Watched(tree)
    yield made
    made.watch.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pod_and_its_containers_are_seen_in_every_layout(tree, layout):
    top, pod, leaf = LAYOUTS[layout]
    tree.group(top)
    watched = Watched(tree)
    try:
        assert watched.taken() == {}
        tree.group(pod)
        assert watched.taken() == {pod: 0}
        tree.group(f"{pod}/{leaf}")
        (arrival,) = watched.watch.take(10)
        assert [container.id for container in arrival.pod.containers] == [CID]
        assert arrival.pod == watched.lister.pods()[0]
        assert arrival.at == watched.clock.now
        assert watched.taken() == {}
    finally:
        watched.watch.close()


def test_a_pod_made_with_all_its_containers_at_once_is_seen_with_all_of_them(watched):
    for number in range(10):
        watched.tree.group(f"{BE}/{number:x}{'0' * 63}")
    assert watched.taken() == {BE: 10}


def test_kubepods_that_is_made_after_the_agent_began(tree):
    watched = Watched(tree)
    try:
        tree.group(BE)
        assert watched.taken() == {BE: 0}
        watched.turn()
        assert watched.taken() == {}
        assert watched.watch.why_not == ""
    finally:
        watched.watch.close()


def test_a_root_of_ones_own_that_is_made_later(tree):
    watched = Watched(tree)
    watched.watch.close()
    watched.lister = tree.lister("slacktide-1")
    watched.watch = CgroupWatch(watched.lister, watched.clock)
    try:
        watched.turn()
        assert watched.watch.watches == 0
        tree.group("slacktide-1")
        watched.turn()
        tree.group("slacktide-1/kubepods")
        watched.taken()
        tree.group(f"slacktide-1/{BE}")
        assert watched.taken() == {f"slacktide-1/{BE}": 0}
    finally:
        watched.watch.close()


def test_what_was_there_at_the_start_comes_once(tree):
    tree.group(f"{BE}/{CID}")
    watched = Watched(tree)
    try:
        assert watched.taken() == {BE: 1}
        watched.turn()
        assert watched.taken() == {}
    finally:
        watched.watch.close()


def test_a_container_that_restarts_is_new_and_a_pod_that_goes_is_let_go(watched):
    # koordinator 972, 2055: a restarted container has a new id and stayed unlimited.
    watched.tree.group(f"{BE}/{CID}")
    assert watched.taken() == {BE: 1}
    watched.tree.remove(f"{BE}/{CID}")
    watched.tree.group(f"{BE}/{CID2}")
    (arrival,) = watched.watch.take(10)
    assert [container.id for container in arrival.pod.containers] == [CID2]
    watches = watched.watch.watches
    watched.tree.remove(BE)
    assert watched.taken() == {}
    assert watched.watch.watches == watches - 1
    watched.tree.group(BE)
    assert watched.taken() == {BE: 0}, "the same path again is another pod"


def test_a_pod_that_goes_before_it_is_looked_at_is_left_out(watched):
    watched.tree.group(BE)
    watched.watch.take_changed()
    assert watched.watch.pending
    watched.tree.remove(BE)
    assert watched.taken() == {}


def test_other_directories_are_no_pods_and_no_containers(watched):
    for name in ("besteffort/system.slice", "besteffort/podx", f"besteffort/pod{UID_BE}/crio-conmon-{CID}.scope"):
        watched.tree.group(f"kubepods/{name}")
    assert watched.taken() == {BE: 0}
    watched.tree.group(f"{BE}/{CID}/inner")
    assert watched.taken() == {BE: 1}
    watched.tree.group(f"{BE}/{CID}/inner/{CID2}")
    assert watched.taken() == {}


def test_changed_says_whether_a_listing_would_show_anything_new(watched):
    watched.watch.take_changed()
    assert not watched.watch.take_changed()
    watched.tree.put("kubepods/besteffort", "cpu.idle", 1)
    assert not watched.watch.take_changed(), "a value is no change of the tree"
    watched.tree.group(BE)
    assert watched.watch.take_changed()
    assert not watched.watch.take_changed()
    watched.tree.remove(BE)
    assert watched.watch.take_changed()


def test_at_most_so_many_are_taken_the_earliest_first(watched):
    pods = [f"kubepods/besteffort/pod{number:08x}-0000-4000-8000-000000000000" for number in range(5)]
    for pod in pods:
        watched.tree.group(pod)
        watched.watch.take_changed()
        watched.clock.pass_(1.0)
    assert list(watched.taken(2)) == pods[:2]
    assert watched.watch.pending
    assert list(watched.taken(10)) == pods[2:]


class Lossy(Inotify):
    """Loses what it is told to, as the kernel does when its queue is full."""

    lose = False

    def read(self):
        events = super().read()
        if self.lose and events:
            self.lose = False
            return [Event(-1, IN_Q_OVERFLOW, "")]
        return events


def test_an_overflow_is_made_good_by_walking_everything(tree):
    tree.group(f"{BE}/{CID}")
    gone = f"kubepods/besteffort/pod{UID_BE2}"
    tree.group(gone)
    made = []
    watched = Watched(tree, lambda: made.append(Lossy()) or made[0])
    try:
        watched.taken()
        made[0].lose = True
        tree.group(f"{BE}/{CID2}")
        tree.group(f"kubepods/burstable/pod{UID_LS}")
        tree.remove(gone)
        assert watched.taken() == {BE: 2, f"kubepods/burstable/pod{UID_LS}": 0}
        assert watched.watch.counters["overflows"] == 1
        tree.group(f"kubepods/burstable/pod{UID_LS}/{CID}")
        assert watched.taken() == {f"kubepods/burstable/pod{UID_LS}": 1}, "what the walk found is watched"
    finally:
        watched.watch.close()


class Short:
    """An inotify whose user has nothing left, or has so after some watches."""

    def __init__(self, code, watches=None):
        self.code, self.left, self.opened = code, watches, 0

    def __call__(self):
        if self.left is None:
            raise OSError(self.code, os.strerror(self.code))
        self.opened += 1
        short = self

        class Limited(Inotify):
            def add(self, directory):
                if short.left == 0:
                    raise OSError(short.code, os.strerror(short.code))
                short.left -= 1
                return super().add(directory)

        return Limited()


@pytest.mark.parametrize(("code", "watches"), [(errno.EMFILE, None), (errno.ENOSPC, 2), (errno.ENOSPC, 0)])
def test_without_instances_or_watches_the_turn_sees_and_it_is_said_why(tree, code, watches):
    # kernel.md 5: the limit of inotify instances is EMFILE, too.
    tree.group(f"{BE}/{CID}")
    watched = Watched(tree, Short(code, watches))
    watch = watched.watch
    assert watch.fileno() is None
    assert os.strerror(code) in watch.why_not
    assert "next turn" in watch.why_not
    assert watch.take_changed()
    assert watch.take_changed(), "nobody can say that nothing changed"
    assert watch.take(10) == ()
    assert watch.watches == 0


def test_inotify_is_tried_again_later(tree):
    tree.group(BE)
    short = Short(errno.EMFILE)
    watched = Watched(tree, short)
    assert watched.watch.fileno() is None
    short.left = 100
    for _ in range(60):
        watched.turn()
    try:
        assert watched.watch.fileno() is not None
        assert watched.watch.why_not == ""
        assert watched.taken() == {BE: 0}
    finally:
        watched.watch.close()


def test_an_inotify_that_gives_way_leaves_no_descriptor_behind(tree):
    tree.group(f"{BE}/{CID}")
    before = len(os.listdir("/proc/self/fd"))
    Watched(tree, Short(errno.ENOSPC, 1))
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_cpu_controller_nothing_is_watched(tree):
    tree.hierarchy.controllers.clear()
    watched = Watched(tree)
    assert watched.watch.fileno() is None
    assert "no cgroup cpu controller" in watched.watch.why_not


def test_events_of_watches_that_ended_are_ignored(watched):
    watched.watch._handle(Event(999, IN_CREATE | IN_ISDIR, f"pod{UID_BE}"), 1.0)
    assert not watched.watch.pending


def test_hostile_names_are_passed_over(watched):
    directory = watched.tree.path("kubepods/besteffort", "")
    for name in (b"pod\xff\xfe", b"pod" + UID_BE.encode() + b"\n", b"pod..", b"-", b"a b"):
        os.mkdir(os.fsencode(str(directory)) + b"/" + name)
    assert watched.taken() == {}
    watched.tree.group(BE)
    assert watched.taken() == {BE: 0}


def test_a_waiter_is_woken_by_another_thread_by_the_watch_and_by_time(watched):
    waker = Waker()
    try:
        assert not waker.wait(0.0)
        waker.wake()
        waker.wake()
        assert waker.wait(60.0)
        assert not waker.wait(0.0), "a wake counts once"
        watched.tree.group(BE)
        assert waker.wait(60.0, watched.watch.fileno())
        watched.taken()
        assert not waker.wait(0.0, watched.watch.fileno())
    finally:
        waker.close()
    waker.wake()


PODS = [f"kubepods/besteffort/pod{number:08x}-0000-4000-8000-000000000000" for number in range(3)]
steps = st.lists(
    st.tuples(st.sampled_from(["pod", "container", "remove", "take", "turn", "lose"]), st.integers(0, 2)), max_size=25
)


@settings(deadline=None, max_examples=60)
@given(steps=steps)
def test_whatever_comes_and_goes_everything_there_is_watched_and_everything_new_is_told_once(tmp_path_factory, steps):
    tree = Tree(tmp_path_factory.mktemp("tree"), Version.V2)
    tree.group("kubepods/besteffort")
    made = []
    watched = Watched(tree, lambda: made.append(Lossy()) or made[0])
    told, due, number = {}, {}, 0
    try:
        for what, which in [*steps, ("turn", 0), ("take", 0)]:
            pod = PODS[which]
            if what in {"pod", "container"}:
                number += 1
                leaf = f"/{number:064x}" if what == "container" else ""
                new = leaf or not tree.path(pod, "").exists()
                tree.group(pod + leaf)
                due |= {pod: True} if new else {}
            elif what == "remove" and tree.path(pod, "").exists():
                tree.remove(pod)
                due.pop(pod, None)
            elif what == "lose":
                made[0].lose = True
            elif what == "turn":
                watched.turn()
            elif what == "take":
                told = watched.taken()
                assert set(told) >= set(due)
                due.clear()
        there = {pod.group: len(pod.containers) for pod in watched.lister.pods()}
        assert {group: there[group] for group in told} == told
        assert set(watched.watch._by_group) == {"", "kubepods", "kubepods/besteffort", *there}
        assert watched.watch.watches == 3 + len(there)
        assert watched.taken() == {}
    finally:
        watched.watch.close()
