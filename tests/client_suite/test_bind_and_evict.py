"""Pods get a node, and lose it: bindings, and evictions under disruption budgets."""

from __future__ import annotations

import pytest

from slacktide.cluster import PODS, Outcome, errors
from tests.client_suite.objects import budget, make, ready, with_grace_zero


def test_bind(client, ns, node):
    pod = make(client, ns, "a")
    client.bind(pod, node.metadata.name, {"slacktide.io/device": "0"})
    bound = client.get(PODS, "a", ns)
    assert bound.spec.node_name == node.metadata.name
    assert bound.metadata.annotations["slacktide.io/device"] == "0"
    assert [c.status for c in bound.status.conditions if c.type == "PodScheduled"] == ["True"]
    with pytest.raises(errors.Conflict, match="already assigned"):
        client.bind(pod, "elsewhere")


def test_bind_of_what_is_not_there(client, ns):
    first = make(client, ns, "a")
    with_grace_zero(client, first)
    with pytest.raises(errors.NotFound):
        client.bind(first, "n")
    make(client, ns, "a")
    with pytest.raises(errors.Conflict, match="UID"):
        client.bind(first, "n")


def test_gated_pod_is_not_bound(client, ns):
    gated = make(client, ns, "a", schedulingGates=[{"name": "slacktide.io/wait"}])
    with pytest.raises((errors.Conflict, errors.Invalid, errors.BadRequest)):
        client.bind(gated, "n")


def test_evict(client, ns):
    pod = make(client, ns, "a")
    assert client.evict(pod, dry_run=True).evicted
    assert client.get(PODS, "a", ns).metadata.deletion_timestamp is None
    assert client.evict(pod, grace_period_seconds=0).evicted
    gone = client.evict(pod)
    assert (gone.outcome, gone.gone) == (Outcome.GONE, True)
    make(client, ns, "a")
    assert client.evict(pod).outcome is Outcome.UID_MISMATCH
    assert client.get(PODS, "a", ns).metadata.deletion_timestamp is None


def test_evict_under_a_budget(client, ns, node):
    pods = [make(client, ns, name, {"app": "web"}) for name in ("a", "b")]
    for pod in pods:
        client.bind(pod, node.metadata.name)
        ready(client, pod)
    found = budget(client, ns, "one", {"app": "web"}, minAvailable=1)
    assert found.status.disruptions_allowed == 1
    assert client.evict(pods[0], dry_run=True).evicted, "a dry run uses nothing up"
    assert client.evict(pods[0], grace_period_seconds=0).evicted
    blocked = client.evict(pods[1])
    assert blocked.outcome is Outcome.BLOCKED
    assert "disruption budget" in blocked.message
    assert client.get(PODS, "b", ns).metadata.deletion_timestamp is None


def test_evict_under_two_budgets_and_of_a_pod_that_disrupts_nobody(client, ns, node):
    pod, pending = make(client, ns, "a", {"app": "web"}), make(client, ns, "pending", {"app": "web"})
    client.bind(pod, node.metadata.name)
    ready(client, pod)
    for name in ("one", "two"):
        budget(client, ns, name, {"app": "web"}, minAvailable=5)
    assert client.evict(pod).outcome is Outcome.SEVERAL_BUDGETS
    assert client.evict(pending, grace_period_seconds=0).evicted
