from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standalone.api import pdb
from standalone.api.errors import Target

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pod(name, *, ready=True, phase="Running", deleting=False):
    meta = {"name": name} | ({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {})
    return {"metadata": meta, "status": {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}]}}


def pods(ready, unready=0):
    return [pod(f"r{i}") for i in range(ready)] + [pod(f"u{i}", ready=False) for i in range(unready)]


@pytest.mark.parametrize(
    ("spec", "ready", "unready", "expected", "desired", "allowed"),
    [
        ({"minAvailable": 2}, 3, 0, 3, 2, 1),
        ({"minAvailable": 2}, 2, 1, 3, 2, 0),
        ({"minAvailable": 0}, 2, 0, 2, 0, 2),
        ({"minAvailable": 5}, 2, 0, 2, 5, 0),
        ({}, 3, 0, 3, 1, 2),
        ({"minAvailable": "50%"}, 3, 0, 3, 2, 1),
        ({"minAvailable": "28%"}, 7, 0, 7, 2, 5),
        ({"minAvailable": "100%"}, 3, 0, 3, 3, 0),
        ({"maxUnavailable": 1}, 3, 0, 3, 2, 1),
        ({"maxUnavailable": 1}, 2, 1, 3, 2, 0),
        ({"maxUnavailable": 5}, 2, 0, 2, 0, 2),
        ({"maxUnavailable": "10%"}, 3, 0, 3, 2, 1),
        ({"maxUnavailable": 0}, 3, 0, 3, 3, 0),
        ({"minAvailable": 0}, 0, 0, 0, 0, 0),
    ],
)
def test_budget_table(spec, ready, unready, expected, desired, allowed):
    found = pdb.budget(spec, {}, pods(ready, unready), NOW)
    assert (found.expected, found.healthy, found.desired, found.allowed) == (expected, ready, desired, allowed)


def test_pods_that_are_going_are_not_healthy():
    found = pdb.budget({"minAvailable": 1}, {}, [pod("a"), pod("b", deleting=True)], NOW)
    assert (found.healthy, found.allowed) == (1, 0)


def test_granted_eviction_counts_until_it_shows_or_times_out():
    def granted(ago, name="r0"):
        since = (NOW - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return pdb.budget({"minAvailable": 1}, {name: since}, pods(3), NOW)

    assert (granted(10).healthy, granted(10).allowed, list(granted(10).disrupted)) == (2, 1, ["r0"])
    assert (granted(121).healthy, dict(granted(121).disrupted)) == (3, {})
    assert granted(10, "gone").disrupted == {}


def test_status_keeps_the_condition_time_while_it_does_not_change():
    found = pdb.budget({"minAvailable": 1}, {}, pods(2), NOW)
    first = pdb.status({}, found, 1, "2026-01-01T00:00:00Z")
    again = pdb.status(first, found, 1, "2026-01-02T00:00:00Z")
    assert again == first
    none = pdb.status(first, pdb.budget({"minAvailable": 2}, {}, pods(2), NOW), 1, "2026-01-02T00:00:00Z")
    assert none["conditions"][0]["status"] == "False"
    assert none["conditions"][0]["lastTransitionTime"] == "2026-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("state", "generation", "code", "retry"),
    [
        ({"observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 2, "currentHealthy": 1}, 1, 429, 0),
        ({"observedGeneration": 1, "disruptionsAllowed": 5}, 2, 429, 10),
        ({"observedGeneration": 1, "disruptionsAllowed": -1}, 1, 403, None),
        (
            {"observedGeneration": 1, "disruptionsAllowed": 1, "disruptedPods": {str(i): "" for i in range(2001)}},
            1,
            403,
            None,
        ),
    ],
)
def test_refusals(state, generation, code, retry):
    refused = pdb.refusal(Target("", "pods", "web"), "budget", generation, state)
    assert (refused.code, refused.retry_after_seconds) == (code, retry)
    if code == 429:
        assert refused.causes[0].reason == "DisruptionBudget"
        assert "budget" in refused.causes[0].message


def test_no_refusal():
    assert pdb.refusal(Target("", "pods", "web"), "b", 1, {"observedGeneration": 1, "disruptionsAllowed": 1}) is None


def test_pods_that_need_no_budget():
    assert pdb.skips_budget(pod("a", phase="Pending"))
    assert pdb.skips_budget(pod("a", phase="Failed"))
    assert pdb.skips_budget(pod("a", deleting=True))
    assert not pdb.skips_budget(pod("a"))


def test_unready_pods_under_the_two_policies():
    unready, enough, short = (
        pod("a", ready=False),
        {"desiredHealthy": 1, "currentHealthy": 1},
        {"desiredHealthy": 2, "currentHealthy": 1},
    )
    assert pdb.unready_is_free(unready, {}, enough)
    assert not pdb.unready_is_free(unready, {}, short)
    assert pdb.unready_is_free(unready, {"unhealthyPodEvictionPolicy": "AlwaysAllow"}, short)
    assert not pdb.unready_is_free(pod("a"), {"unhealthyPodEvictionPolicy": "AlwaysAllow"}, enough)


bound = st.integers(0, 12) | st.integers(0, 100).map(lambda n: f"{n}%")


@given(st.sampled_from(["minAvailable", "maxUnavailable"]), bound, st.integers(0, 10), st.integers(0, 5))
def test_what_is_allowed_never_takes_the_healthy_below_the_desired(field, value, ready, unready):
    found = pdb.budget({field: value}, {}, pods(ready, unready), NOW)
    assert 0 <= found.allowed <= found.healthy
    assert found.allowed == 0 or found.healthy - found.allowed >= found.desired
