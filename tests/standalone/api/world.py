"""A store in memory whose decisions run at once, with a clock and names that tests choose."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

from standalone.api import bootstrap, handlers, settle, writes
from standalone.api.database import Database
from standalone.api.kinds import NAMESPACES, PODS
from standalone.api.records import Key
from standalone.api.store import Store, Transaction


class Cluster:
    """Decisions applied directly, without writer thread: for tests of what is decided."""

    def __init__(self):
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        uids = itertools.count(1)
        self.tails = iter(())
        self.world = writes.World(lambda: self.now, lambda: f"uid-{next(uids)}", lambda: next(self.tails))
        database = Database(":memory:", 1 << 30)
        self.store = Store(database)
        # Read at the start; what is decided here is never written.
        database.close()
        self.changes = []
        self.decide(lambda transaction: bootstrap.first_objects(transaction, self.world))

    def decide(self, decision):
        before = self.store._head
        transaction = Transaction(self.store)
        try:
            result = decision(transaction)
            settle.settle(transaction, self.world)
        except BaseException:
            self.store._head = before
            raise
        for change in transaction.changes:
            self.store._show(change)
        self.changes += transaction.changes
        return result

    def later(self, seconds):
        self.now += timedelta(seconds=seconds)

    def create(self, kind, body, namespace="default"):
        where = namespace if kind.namespaced else ""
        obj = writes.decode_body(kind, body)
        return self.decide(lambda tx: writes.create(tx, self.world, kind, where, obj)).object()

    def record(self, kind, name, namespace="default"):
        return self.store.get(Key(kind.resource, namespace if kind.namespaced else "", name))

    def get(self, kind, name, namespace="default"):
        found = self.record(kind, name, namespace)
        return None if found is None else found.object()

    def update(self, kind, name, change, *, status=False, namespace="default"):
        """Apply a merge patch as the server does, without preconditions of its own."""
        old = self.record(kind, name, namespace)
        before = old.object()
        before["metadata"].pop("resourceVersion")
        obj = writes.decode_body(kind, handlers.patches.merge(before, change))
        return self.decide(lambda tx: writes.update(tx, kind, old, obj, status=status)).object()

    def delete(self, kind, name, namespace="default", **options):
        def decision(tx):
            record = tx.get(Key(kind.resource, namespace if kind.namespaced else "", name))
            if kind is NAMESPACES:
                return settle.delete_namespace(tx, self.world, record), False
            return writes.delete(tx, self.world, kind, record, writes.DeleteOptions(**options))

        return self.decide(decision)

    def bound(self, name="web", node="n1", **body):
        """A pod on a node."""
        made = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i"}]}}
        return self.create(PODS, handlers.patches.merge(made, body))
