"""The demo says why its best-effort pods are where they are, and what one is told that asks for too much."""

import pytest

from cli import demoplacement
from cli.cycles import CountedReason, Cycle, Refusal
from cli.demoplacement import NAME, diagnose, lines
from cli.podexplained import SchedulersRecord

REFUSED = [Refusal("BatchForecast", 1, [CountedReason("no forecast room for x", 1, "vm", "needs 2000m, room 900m")])]


@pytest.fixture
def judged(twin, monkeypatch):
    """A server whose scheduler refuses the demo's pod as soon as it is there."""
    create = twin.create

    def create_and_refuse(kind, body, namespace=None):
        create(kind, {**body, "metadata": {**body["metadata"], "namespace": namespace}}, namespace)
        twin.unschedulable(NAME, "0/1 nodes are available")
        return twin.get(kind, NAME, namespace)

    cycle = Cycle(f"default/{NAME}", f"uid-{NAME}", 1, 0.0, "unschedulable", "", "0/1", refusals=REFUSED)
    monkeypatch.setattr(twin, "create", create_and_refuse)
    monkeypatch.setattr(demoplacement, "kept_of", lambda _asked, _uid: SchedulersRecord(cycle=cycle))
    return twin


def test_pod_that_asks_for_everything_is_explained_and_removed(judged):
    (said,) = diagnose(None, judged, 2)
    assert (said.pod, said.tier, said.state) == (f"default/{NAME}", "BE", "pending")
    assert not judged.pods
    first, second, third = lines([said])
    assert first == "wants-every-cpu: pending, no node fits"
    assert second == "  BatchForecast refused 1: no forecast room for x; nearest vm: needs 2000m, room 900m"
    assert third.startswith("  -> ask for less x (needs 2000m, room 900m on vm)")


def test_it_is_removed_also_when_the_scheduler_is_silent(judged, monkeypatch):
    monkeypatch.setattr(demoplacement, "kept_of", lambda _asked, _uid: SchedulersRecord(cycle=None, heard=False))
    (said,) = diagnose(None, judged, 2)
    assert list(lines([said])) == ["wants-every-cpu: pending; Unschedulable: 0/1 nodes are available"]
    assert not judged.pods


def test_api_that_is_away_is_no_end_of_the_demo(twin):
    twin.go_away()
    assert diagnose(None, twin, 2) == []
