from __future__ import annotations

import errno
import os
import threading
import time

import pytest

from agent.act.reclaim import PIECE_BYTES, Reclaimer
from agent.host.cgroup import PodGroup
from agent.host.reclaim import ReclaimFile
from agent.policy.base import Reclaim
from agent.reclaim import Result
from slacktide.errors import Gone, Refused, Unsupported
from slacktide.kernel.hierarchy import Version
from tests.agent.trees import UID_BE, Tree
from tests.patience import PATIENCE

GROUP = f"kubepods/besteffort/pod{UID_BE}"


def groups(*names, inode=7):
    return [PodGroup(name, inode, name) for name in names]


def ask(group, size, at=1.0):
    return Reclaim(group=group, bytes=size, reason="because", at=at)


class Kernel:
    """Takes pieces; `fail` raises for a group, `gate` makes a write wait."""

    def __init__(self):
        self.taken = []
        self.fail = {}
        self.gate = None
        self.inside = threading.Event()

    def __call__(self, group, inode, size):
        self.inside.set()
        if self.gate is not None:
            assert self.gate.wait(10 * PATIENCE)
        if group in self.fail:
            raise self.fail[group]
        self.taken.append((group, inode, size))


@pytest.fixture
def kernel():
    return Kernel()


@pytest.fixture
def reclaimer(kernel):
    made = Reclaimer(kernel)
    made.start()
    yield made
    if kernel.gate is not None:
        kernel.gate.set()
    assert made.stop(10 * PATIENCE)


def wait_for(condition):
    deadline = time.monotonic() + 10 * PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_an_ask_is_done_in_pieces_and_told(reclaimer, kernel):
    reclaimer.want([ask("a", 2 * PIECE_BYTES + 5)], groups("a"))
    wait_for(lambda: "a" in reclaimer.view().last)
    assert kernel.taken == [("a", 7, PIECE_BYTES), ("a", 7, PIECE_BYTES), ("a", 7, 5)]
    view = reclaimer.view()
    assert (view.last["a"].result, view.last["a"].done_bytes) == (Result.DONE, 2 * PIECE_BYTES + 5)
    assert (view.asks, view.done_bytes, view.busy_since) == (1, 2 * PIECE_BYTES + 5, None)


def test_the_same_ask_in_a_later_plan_is_the_same_act(reclaimer, kernel):
    for _ in range(3):
        reclaimer.want([ask("a", 10)], groups("a"))
        wait_for(lambda: "a" in reclaimer.view().last)
    reclaimer.want([ask("a", 11, at=2.0)], groups("a"))
    wait_for(lambda: len(kernel.taken) == 2)
    assert [size for _, _, size in kernel.taken] == [10, 11]


def test_a_group_that_is_not_listed_is_left_alone(reclaimer, kernel):
    reclaimer.want([ask("gone", 10), ask("a", 10)], groups("a"))
    wait_for(lambda: "a" in reclaimer.view().last)
    assert [group for group, _, _ in kernel.taken] == ["a"]


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (Refused("memory.reclaim", errno.EAGAIN, "Resource temporarily unavailable"), Result.SHORT),
        (Refused("memory.reclaim", errno.EINVAL, "Invalid argument"), Result.REFUSED),
        (Gone("memory.reclaim", errno.ENODEV, "No such device"), Result.GONE),
        (RuntimeError("broken"), Result.REFUSED),
    ],
)
def test_an_ask_that_fails_ends_and_the_next_goes_on(reclaimer, kernel, error, result):
    kernel.fail["a"] = error
    reclaimer.want([ask("a", 3 * PIECE_BYTES), ask("b", 10)], groups("a", "b"))
    wait_for(lambda: "b" in reclaimer.view().last)
    view = reclaimer.view()
    assert view.last["a"].result is result
    assert view.last["b"].result is Result.DONE
    assert (view.short, view.failed) == (result is Result.SHORT, result is Result.REFUSED)


def test_newer_asks_win_and_wanting_never_waits_for_a_kernel_that_hangs(reclaimer, kernel):
    kernel.gate = threading.Event()
    reclaimer.want([ask("a", 10 * PIECE_BYTES), ask("b", 10)], groups("a", "b"))
    assert kernel.inside.wait(10 * PATIENCE)
    assert reclaimer.view().busy_since is not None
    reclaimer.want([ask("c", 10, at=2.0)], groups("c"))
    kernel.gate.set()
    wait_for(lambda: "c" in reclaimer.view().last)
    view = reclaimer.view()
    assert view.last["a"].result is Result.DROPPED
    assert view.last["a"].done_bytes == PIECE_BYTES
    assert ("c", 7, 10) in kernel.taken
    assert len(kernel.taken) < 5


def test_a_stop_does_not_wait_for_what_is_left(kernel):
    made = Reclaimer(kernel)
    made.start()
    kernel.gate = threading.Event()
    made.want([ask("a", 100 * PIECE_BYTES)], groups("a"))
    assert kernel.inside.wait(10 * PATIENCE)
    assert not made.stop(0.01)
    kernel.gate.set()
    assert made.stop(10 * PATIENCE)
    assert len(kernel.taken) == 1


@pytest.fixture
def tree(tmp_path):
    made = Tree(tmp_path, Version.V2)
    made.group(GROUP)
    made.put(GROUP, "memory.reclaim", "")
    return made


def inode_of(tree):
    return os.stat(tree.path(GROUP, "")).st_ino


def test_the_file_takes_the_bytes_of_the_very_group(tree):
    file = ReclaimFile(tree.hierarchy)
    file.reclaim(GROUP, inode_of(tree), 12_345)
    assert tree.read(GROUP, "memory.reclaim") == "12345"
    with pytest.raises(Gone):
        file.reclaim(GROUP, inode_of(tree) + 1, 1)
    with pytest.raises(Gone):
        file.reclaim(f"{GROUP}x", 1, 1)
    assert tree.read(GROUP, "memory.reclaim") == "12345"


@pytest.mark.parametrize("group", ["../etc", "/etc", "", "a/../../b"])
def test_no_path_leaves_the_mount(tree, group):
    with pytest.raises(ValueError, match="cgroup"):
        ReclaimFile(tree.hierarchy).reclaim(group, 1, 1)


def test_v1_has_no_reclaim(tmp_path):
    tree = Tree(tmp_path)
    tree.group(GROUP)
    with pytest.raises(Unsupported):
        ReclaimFile(tree.hierarchy).reclaim(GROUP, inode_of(tree), 1)
