"""Core scheduling cookies over a twin of the kernel's rules: made for oneself, shared by the caller, inherited."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading

import pytest

from agent.act.coresched import CREATE, FILE_NAME, GET, SHARE_FROM, SHARE_TO, CoreScheduler, prctl
from slacktide.tier import Tier

LS, BE, ELSE = (11, 12), (21, 22, 23), 99


class Kernel:
    """Cookies by thread; the caller is the thread that calls."""

    def __init__(self):
        self.cookies = dict.fromkeys((*LS, *BE, ELSE), 0)
        self.next = itertools.count(1000)
        self.refused = set()
        self.absent = False

    def prctl(self, command, tid):
        me = threading.get_native_id()
        for thread in threading.enumerate():
            self.cookies.setdefault(thread.native_id, 0)
        if self.absent:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        if tid and tid not in self.cookies:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if tid in self.refused:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        if command == GET:
            return self.cookies[tid or me]
        if command == CREATE:
            assert tid == 0
            self.cookies[me] = next(self.next)
        elif command == SHARE_TO:
            self.cookies[tid] = self.cookies[me]
        elif command == SHARE_FROM:
            self.cookies[me] = self.cookies[tid]
        return 0

    def of(self, *tids):
        return {self.cookies[tid] for tid in tids}


def threads():
    return {Tier.LS: LS, Tier.BE: (*BE, 404), Tier.SYSTEM: (ELSE,)}


@pytest.fixture
def kernel():
    return Kernel()


@pytest.fixture
def make(kernel, tmp_path):
    made = []

    def one():
        made.append(CoreScheduler(str(tmp_path), kernel.prctl))
        return made[-1]

    yield one
    for scheduler in made:
        scheduler.close()


def test_each_tier_has_one_cookie_and_system_and_we_ourselves_none(kernel, make):
    scheduler = make()
    assert scheduler.want(True, threads) == []
    (ls,), (be,) = kernel.of(*LS), kernel.of(*BE)
    assert 0 not in {ls, be}
    assert ls != be
    assert kernel.of(ELSE, threading.get_native_id()) == {0}
    assert scheduler.want(True, threads) == []
    assert scheduler.counters == {"core_shared": 5}, "a second look shares nothing"


def test_switched_off_nothing_is_asked_and_switched_off_later_all_is_taken_back(kernel, make, tmp_path):
    scheduler = make()
    assert scheduler.want(False, lambda: pytest.fail("asked")) == []
    assert kernel.of(*LS, *BE) == {0}
    scheduler.want(True, threads)
    assert (tmp_path / FILE_NAME).exists()
    assert scheduler.want(False, threads) == []
    assert kernel.of(*LS, *BE) == {0}
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize("on", [True, False])
def test_a_restart_knows_the_cookies_that_a_killed_agent_left(kernel, make, on):
    make().want(True, threads)
    left = kernel.of(*LS, *BE)
    again = make()
    assert again.want(on, threads) == []
    now = kernel.of(*LS, *BE)
    assert len(now) == 2 and not now & left if on else now == {0}
    assert again.counters["core_foreign"] == 0


def test_cookies_of_others_are_left_alone(kernel, make):
    kernel.cookies[21] = 7
    scheduler = make()
    scheduler.want(True, threads)
    scheduler.want(False, threads)
    assert kernel.cookies[21] == 7
    assert scheduler.counters["core_foreign"] == 2


def test_a_refused_thread_is_told_and_the_others_get_theirs(kernel, make):
    kernel.refused = {21}
    (said,) = make().want(True, threads)
    assert "thread 21" in said
    assert kernel.of(22, 23) != {0}


def test_without_core_scheduling_it_says_so(kernel, make):
    kernel.absent = True
    (said,) = make().want(True, threads)
    assert said.startswith("no core scheduling: ")


def test_the_real_kernel_answers_or_says_no():
    with contextlib.suppress(OSError):
        assert prctl(GET, 0) >= 0
    with pytest.raises(OSError, match=r"Invalid argument|No such device"):
        prctl(99, 0)
