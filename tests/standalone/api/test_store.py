from __future__ import annotations

import asyncio
import sqlite3
import threading

import pytest

from slacktide.errors import StateError
from standalone.api import database as database_module
from standalone.api.database import FORMAT, Database
from standalone.api.errors import ApiError
from standalone.api.records import ADDED, DELETED, MODIFIED, Key
from standalone.api.store import Store

A, B = Key("pods", "ns", "a"), Key("pods", "ns", "b")


def obj(**labels):
    return {"metadata": {"name": "x", "labels": labels}}


def run(path, body, limit=1 << 30):
    """Run `body(store)` against a database file, and close it."""

    async def main():
        store = Store(Database(str(path), limit))
        store.start(asyncio.get_running_loop())
        try:
            return await body(store)
        finally:
            await asyncio.to_thread(store.close)

    return asyncio.run(main())


def put(key, **labels):
    return lambda tx: tx.put(key, obj(**labels))


def test_what_is_committed_is_there_after_a_restart(tmp_path):
    async def first(store):
        await store.decide(put(A, n="1"))
        await store.decide(put(A, n="2"))
        await store.decide(put(B))
        await store.decide(lambda tx: tx.delete(B))
        return store.version

    async def second(store):
        assert store.version == version
        assert [found.key for found in store.items("pods")] == [A]
        assert store.get(A).object()["metadata"] == {"name": "x", "labels": {"n": "2"}, "resourceVersion": "2"}
        log = store.since(0)
        assert [(c.type, c.version, c.key) for c in log] == [
            (ADDED, 1, A),
            (MODIFIED, 2, A),
            (ADDED, 3, B),
            (DELETED, 4, B),
        ]
        assert log[1].old.object()["metadata"]["labels"] == {"n": "1"}
        return (await store.decide(put(B))).version

    version = run(tmp_path / "db", first)
    assert version == 4
    assert run(tmp_path / "db", second) == 5


def test_decisions_see_what_is_queued_and_readers_only_what_is_committed(tmp_path):
    async def body(store):
        seen = []
        store.listen(lambda change: seen.append((change.version, store.version, store.get(change.key) is not None)))
        one = asyncio.create_task(store.decide(put(A, n="1")))
        await asyncio.sleep(0)
        assert store.newest(A) is not None
        other = asyncio.create_task(store.decide(lambda tx: tx.get(A).object()["metadata"]["labels"]))
        await one
        assert await other == {"n": "1"}
        assert seen == [(1, 1, True)]

    run(tmp_path / "db", body)


def test_many_writers_are_committed_in_few_transactions_and_in_order(tmp_path, monkeypatch):
    groups = []
    write = Database.write
    monkeypatch.setattr(Database, "write", lambda self, changes: groups.append(len(changes)) or write(self, changes))

    async def body(store):
        versions = []
        store.listen(lambda change: versions.append(change.version))
        keys = [Key("pods", "ns", f"p{n:03}") for n in range(200)]
        records = await asyncio.gather(*(store.decide(put(key)) for key in keys))
        assert versions == list(range(1, 201)) == [found.version for found in records]
        assert [found.key for found in store.items("pods")] == keys
        assert sum(groups) == 200
        assert len(groups) < 200

    run(tmp_path / "db", body)


def test_a_refused_decision_and_a_dry_run_change_nothing(tmp_path):
    async def body(store):
        await store.decide(put(A))
        with pytest.raises(KeyError):
            await store.decide(lambda tx: (tx.put(B, obj()), tx.delete(Key("pods", "ns", "none"))))
        tried = await store.decide(put(B), dry_run=True)
        assert tried.version == 2
        assert store.get(B) is None
        assert (await store.decide(put(B))).version == 2

    run(tmp_path / "db", body)


def test_delete_and_create_again_while_queued(tmp_path):
    async def body(store):
        steps = [put(A, n="1"), lambda tx: tx.delete(A), put(A, n="2"), lambda tx: tx.delete(A), put(A, n="3")]
        await asyncio.gather(*(store.decide(step) for step in steps))
        assert store.get(A).object()["metadata"]["labels"] == {"n": "3"}
        assert [change.type for change in store.since(0)] == [ADDED, DELETED, ADDED, DELETED, ADDED]
        assert store._pending == {}

    run(tmp_path / "db", body)


def test_older_versions_can_be_listed_while_the_log_reaches_back(tmp_path, monkeypatch):
    async def body(store):
        await store.decide(put(A, n="1"))
        await store.decide(put(B, n="1"))
        await store.decide(put(A, n="2"))
        await store.decide(lambda tx: tx.delete(B))

        def at(version):
            return {
                found.key.name: found.object()["metadata"]["labels"]["n"]
                for found in store.items_at("pods", "ns", version)
            }

        assert [at(n) for n in range(5)] == [{}, {"a": "1"}, {"a": "1", "b": "1"}, {"a": "2", "b": "1"}, {"a": "2"}]
        assert store.items_at("pods", "other", 2) == []

    run(tmp_path / "db", body)


def test_the_log_is_bounded_also_over_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr("standalone.api.store.LOG_LENGTH", 50)
    monkeypatch.setattr(database_module, "LOG_LENGTH", 50)

    async def first(store):
        for number in range(200):
            await store.decide(put(A, n=str(number)))
        assert 50 <= len(store.since(store.floor)) <= 60
        assert store.floor >= 140
        return store.floor

    async def second(store):
        assert store.version == 200
        # The file is cut less often than the memory.
        assert 100 < store.floor <= floor
        with pytest.raises(ApiError) as gone:
            store.since(store.floor - 1)
        assert (gone.value.code, gone.value.reason) == (410, "Expired")
        with pytest.raises(ApiError):
            store.items_at("pods", None, store.floor - 1)

    floor = run(tmp_path / "db", first)
    run(tmp_path / "db", second)


def test_a_full_database_refuses_writes_and_goes_on(tmp_path):
    async def body(store):
        await store.decide(put(A, n="kept"))
        big = "x" * 100_000
        written = 0

        async def fill():
            nonlocal written
            for number in range(100):
                await store.decide(put(Key("pods", "ns", f"big{number}"), big=big))
                written += 1

        with pytest.raises(ApiError) as full:
            await fill()
        assert (full.value.code, full.value.reason) == (500, "InternalError")
        assert "the database cannot be written" in full.value.message
        assert store.get(A) is not None
        assert len(store.items("pods")) == written + 1
        for number in range(written):
            await store.decide(lambda tx, n=number: tx.delete(Key("pods", "ns", f"big{n}")))
        await store.decide(put(B, n="again"))
        return store.version

    async def again(store):
        assert [found.key for found in store.items("pods")] == [A, B]
        assert store.version == version

    version = run(tmp_path / "db", body, limit=2 << 20)
    run(tmp_path / "db", again)


def test_what_was_decided_on_top_of_a_failed_write_fails_with_it(tmp_path, monkeypatch):
    async def body(store):
        await store.decide(put(A))
        gate, taken, write = threading.Event(), threading.Event(), store._database.write

        def failing(changes):
            taken.set()
            gate.wait(5)
            monkeypatch.setattr(store._database, "write", write)
            raise sqlite3.OperationalError("disk I/O error")

        monkeypatch.setattr(store._database, "write", failing)
        first = asyncio.create_task(store.decide(put(B)))
        await asyncio.sleep(0)
        # The writer is held in its first group, so this one comes in a later group.
        await asyncio.to_thread(taken.wait, 5)
        second = asyncio.create_task(store.decide(lambda tx: tx.put(Key("pods", "ns", "c"), tx.get(B).object())))
        await asyncio.sleep(0)
        gate.set()
        for task in (first, second):
            with pytest.raises(ApiError):
                await task
        assert store.newest(B) is None
        found = await store.decide(put(B))
        assert [item.key for item in store.items("pods")] == [A, B]
        assert found.version > 2

    run(tmp_path / "db", body)


def test_databases_that_cannot_be_used(tmp_path):
    newer = tmp_path / "newer"
    connection = sqlite3.connect(newer)
    connection.execute(f"PRAGMA user_version={FORMAT + 1}")
    connection.close()
    with pytest.raises(StateError, match=f"format {FORMAT + 1}"):
        Database(str(newer), 1 << 30)
    torn = tmp_path / "torn"
    torn.write_bytes(b"no database at all" * 1000)
    with pytest.raises(StateError, match="cannot be opened"):
        Database(str(torn), 1 << 30)
    with pytest.raises(StateError):
        Database(str(tmp_path / "no" / "folder" / "db"), 1 << 30)


def test_the_file_is_private_and_used_by_one_server_only(tmp_path, monkeypatch):
    path = tmp_path / "db"
    first = Database(str(path), 1 << 30)
    try:
        assert path.stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr(database_module, "LOCK_SECONDS", 0.05)
        with pytest.raises(StateError, match="locked"):
            Database(str(path), 1 << 30)
    finally:
        first.close()
    Database(str(path), 1 << 30).close()
