from __future__ import annotations

import asyncio

import pytest

from standalone.api.kinds import PODS
from standalone.api.records import ADDED, DELETED, MODIFIED, Change, Key, record
from standalone.api.selectors import parse
from standalone.api.watchhub import QUEUE_LIMIT, Interest, WatchHub

KEY = Key("pods", "ns", "a")


def version(number, label="", key=KEY):
    return record(key, number, {"metadata": {"name": key.name, "namespace": key.namespace, "labels": {"l": label}}})


def change(kind, new, old=None):
    return Change(kind, new, old)


def interest(labels="", namespace=None):
    return Interest("pods", namespace, parse(PODS, labels, ""))


@pytest.mark.parametrize(
    ("made", "type_", "label"),
    [
        (change(ADDED, version(1, "x")), ADDED, "x"),
        (change(ADDED, version(1, "y")), None, None),
        (change(MODIFIED, version(2, "x"), version(1, "x")), MODIFIED, "x"),
        (change(MODIFIED, version(2, "x"), version(1, "y")), ADDED, "x"),
        (change(MODIFIED, version(2, "y"), version(1, "x")), DELETED, "x"),
        (change(MODIFIED, version(2, "y"), version(1, "z")), None, None),
        (change(DELETED, version(3, "x"), version(2, "x")), DELETED, "x"),
        (change(DELETED, version(3, "y"), version(2, "y")), None, None),
    ],
)
def test_what_a_change_is_to_a_selecting_watcher(made, type_, label):
    event = interest("l=x").event(made)
    assert (event and event[0]) == type_
    if event:
        assert event[1].object()["metadata"]["labels"] == {"l": label}
        assert event[1].version == made.version
        assert event[1].object()["metadata"]["resourceVersion"] == str(made.version)


def test_other_kinds_and_namespaces_are_not_seen():
    assert interest(namespace="other").event(change(ADDED, version(1))) is None
    assert interest().event(change(ADDED, version(1, key=Key("nodes", "", "a")))) is None


async def taken(watcher):
    return [(name, found.version) for name, found in await watcher.next(0)]


def test_a_watcher_sees_history_and_then_what_comes_once_each():
    async def run():
        hub = WatchHub()
        watcher = hub.add(interest(), 1, [change(ADDED, version(2)), change(MODIFIED, version(3), version(2))])
        hub.publish(change(MODIFIED, version(3), version(2)))
        hub.publish(change(MODIFIED, version(4), version(3)))
        assert await taken(watcher) == [(ADDED, 2), (MODIFIED, 3), (MODIFIED, 4)]
        assert await taken(watcher) == []
        hub.remove(watcher)
        assert len(hub) == 0

    asyncio.run(run())


def test_a_slow_watcher_is_cut_and_gets_what_was_queued():
    async def run():
        cut = []
        hub = WatchHub(lambda: cut.append(1))
        slow = hub.add(interest(), 0, [change(ADDED, version(n)) for n in range(1, 2 * QUEUE_LIMIT)])
        other = hub.add(interest(namespace="none"), 0, [])
        first = 2 * QUEUE_LIMIT
        for number in range(first, first + QUEUE_LIMIT):
            hub.publish(change(ADDED, version(number)))
        assert not slow.closed
        hub.publish(change(ADDED, version(first + QUEUE_LIMIT)))
        assert slow.closed
        assert slow.cut
        assert cut == [1]
        assert not other.closed
        assert len(hub) == 1
        assert len(await taken(slow)) == 3 * QUEUE_LIMIT - 1

    asyncio.run(run())


def test_closing_the_hub_ends_all_watches_and_those_to_come():
    async def run():
        hub = WatchHub()
        waiting = hub.add(interest(), 0, [])
        task = asyncio.create_task(waiting.next(60))
        await asyncio.sleep(0)
        hub.close()
        assert await task == []
        assert waiting.closed
        assert hub.add(interest(), 0, []).closed

    asyncio.run(run())
