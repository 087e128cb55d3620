"""Objects of the suite."""

from __future__ import annotations

import contextlib

from slacktide.cluster import PDBS, PODS, errors
from tests.patience import PATIENCE
from tests.slacktide.cluster.fakeapi import wait_for


def with_grace_zero(client, pod):
    with contextlib.suppress(errors.NotFound):
        client.delete(PODS, pod.metadata.name, pod.metadata.namespace, grace_period_seconds=0)


def body(name, labels=None, **spec):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": [{"name": "main", "image": "slacktide.io/host-process"}], **spec},
    }


def make(client, ns, name, labels=None, **spec):
    return client.create(PODS, body(name, labels, **spec), ns)


def names(items):
    return sorted(item.metadata.name for item in items)


def ready(client, pod):
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"status": {"phase": "Running", "conditions": conditions}}
    return client.patch(PODS, pod.metadata.name, pod.metadata.namespace, status, "status", "strategic")


def budget(client, ns, name, labels, **spec):
    """A budget whose status the server's controller has filled."""
    client.create(PDBS, {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, **spec}}, ns)

    def observed():
        found = client.get(PDBS, name, ns)
        return found if found.status.observed_generation >= 1 and found.status.expected_pods >= 1 else None

    return wait_for(observed, "the budget's status", 30.0 * PATIENCE)
