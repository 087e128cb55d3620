"""Pods of gangs and their groups, for tests."""

from __future__ import annotations

from typing import Any

from scheduler_plugins.plugins.kinds import (
    POD_GROUPS,
    SIGS_POD_GROUPS,
    GangPolicy,
    PodGroup,
    PodGroupPolicy,
    PodGroupSpec,
    SigsPodGroup,
    SigsPodGroupSpec,
)
from slacktide.objects import ObjectMeta, Pod
from tests.scheduler_plugins.build import pod

GATED = {"schedulingGates": [{"name": "later"}]}
LEAVING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def member(name: str, gang: str = "g", minimum: object = 2, cpu: str = "1", **spec: Any) -> Pod:
    """A pod that names its gang by our label and states the minimum."""
    given = spec.pop("metadata", {})
    metadata = {
        "labels": {"slacktide.io/pod-group": gang, **given.pop("labels", {})},
        "annotations": {"slacktide.io/min-members": str(minimum), **given.pop("annotations", {})},
        **given,
    }
    return pod(name, {"cpu": cpu}, metadata=metadata, **spec)


def sigs(name: str, gang: str = "g", cpu: str = "1", **spec: Any) -> Pod:
    """A pod of a group of scheduler-plugins."""
    metadata = {"labels": {"scheduling.x-k8s.io/pod-group": gang}, **spec.pop("metadata", {})}
    return pod(name, {"cpu": cpu}, metadata=metadata, **spec)


def stock(name: str, gang: str = "g", cpu: str = "1", **spec: Any) -> Pod:
    """A pod of a group of Kubernetes."""
    return pod(name, {"cpu": cpu}, schedulingGroup={"podGroupName": gang}, **spec)


def sigs_group(name: str = "g", minimum: int = 2, created: str | None = None, **spec: Any) -> SigsPodGroup:
    metadata = ObjectMeta(name=name, namespace="default", creation_timestamp=created)
    return SigsPodGroup(metadata=metadata, spec=SigsPodGroupSpec(min_member=minimum, **spec))


def stock_group(name: str = "g", minimum: int | None = 2) -> PodGroup:
    """`minimum` None is the policy that places each pod for itself."""
    policy = PodGroupPolicy(gang=None if minimum is None else GangPolicy(min_count=minimum))
    metadata = ObjectMeta(name=name, namespace="default")
    return PodGroup(metadata=metadata, spec=PodGroupSpec(scheduling_policy=policy))


__all__ = ["GATED", "LEAVING", "POD_GROUPS", "SIGS_POD_GROUPS", "member", "sigs", "sigs_group", "stock", "stock_group"]
