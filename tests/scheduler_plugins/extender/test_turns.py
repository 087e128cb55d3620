"""Turns are taken one at a time and in order, and are never lost."""

from __future__ import annotations

import threading

from scheduler_plugins.extender.turns import Turns
from tests.scheduler_plugins.extender.support import until


def test_turns_come_in_the_order_of_asking() -> None:
    turns, order = Turns(), []
    assert turns.take(0)

    def run(number: int) -> None:
        assert turns.take(60)
        order.append(number)
        turns.give()

    threads = []
    for number in range(8):
        threads.append(threading.Thread(target=run, args=(number,)))
        threads[-1].start()
        until("it waits", lambda number=number: turns.waiting == number + 1)
    turns.give()
    for thread in threads:
        thread.join(60)
    assert order == list(range(8))
    assert turns.take(0)


def test_one_that_gave_up_is_passed_over() -> None:
    turns = Turns()
    assert turns.take(0)
    assert not turns.take(0.01)
    turns.give()
    assert turns.take(0)
    turns.give()


def test_never_two_at_a_time_and_none_lost() -> None:
    turns = Turns()
    inside, most, done = 0, 0, []

    def run() -> None:
        nonlocal inside, most
        for i in range(200):
            if turns.take(0.0001 if i % 3 else 60):
                inside += 1
                most = max(most, inside)
                inside -= 1
                turns.give()
        done.append(True)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert (most, len(done), turns.waiting) == (1, 8, 0)
    assert turns.take(0)
