"""Places and records of drills on a real API server: what its optimistic locks let through. In memory: tests/cli."""

from __future__ import annotations

import threading
import time

import pytest

from cli.drillbudget import Budget
from cli.drillrecords import ClusterRecords
from cli.drillreport import Report
from cli.exits import CommandError
from slacktide.cluster import LEASES
from slacktide.cluster.election import ElectionSettings
from tests.cluster.product import wait_for
from tests.patience import PATIENCE

QUICK = ElectionSettings(lease_seconds=4.0 * PATIENCE, renew_seconds=3.0 * PATIENCE, retry_seconds=0.2)


@pytest.fixture
def leases(client, namespace):
    yield namespace
    for lease in client.list(LEASES, namespace).items:
        client.delete(LEASES, lease.metadata.name, namespace)


def budget(client, namespace, holder, places=1):
    return Budget(client, namespace, places, holder, settings=QUICK)


def test_places_are_held_by_one_each_and_pass_on(client, leases):
    with budget(client, leases, "a", 2).take() as first, budget(client, leases, "b", 2).take() as second:
        assert {first.name, second.name} == {"slacktide-drill-0", "slacktide-drill-1"}
        with pytest.raises(CommandError, match=r"2 drills run already"):
            budget(client, leases, "c", 2).take()
        assert first.broken() == second.broken() == ""
    with budget(client, leases, "c", 2).take() as third:
        assert client.get(LEASES, third.name, leases).spec.holder_identity == "c"
    # One whose caller was killed: nobody renews, nobody gives back.
    killed = budget(client, leases, "d").take()
    began = time.monotonic()
    with budget(client, leases, "e").take() as taken:
        assert time.monotonic() - began > QUICK.lease_seconds
        assert taken.name == killed.name
        killed._renew()
        assert "somebody else" in killed.broken()
        wait_for(lambda: client.get(LEASES, taken.name, leases).spec.holder_identity == "e", "holder")


def test_callers_that_write_at_once_lose_nobodys_record(plane, client, namespace):
    def write(caller):
        own = plane.client()
        try:
            for number in range(5):
                drill = Report(id=f"{caller}{number}", phase="recovered", passed=True, started_unix_millis=number)
                ClusterRecords(own, namespace).put(drill)
        finally:
            own.close()

    threads = [threading.Thread(target=write, args=(caller,)) for caller in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.id for one in ClusterRecords(client, namespace).all()} == {
        f"{caller}{number}" for caller in "abc" for number in range(5)
    }
