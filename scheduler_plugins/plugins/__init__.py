"""Scheduling plugins, one a file; `default_registry` knows them all."""

from __future__ import annotations

from scheduler_plugins.framework.registry import Registry
from scheduler_plugins.plugins import (
    actual_load,
    balanced_allocation,
    batch_forecast,
    default_binder,
    default_preemption,
    domain_limit,
    gang,
    gpu_wear,
    gpu_wear_level,
    image_locality,
    inter_pod_affinity,
    node_affinity,
    node_name,
    node_ports,
    node_resources_fit,
    node_unschedulable,
    node_volume_limits,
    packing,
    pod_topology_spread,
    priority_sort,
    scheduling_gates,
    taint_toleration,
    unsupported_pods,
    volume_binding,
    volume_restrictions,
    volume_zone,
)

_MODULES = (
    scheduling_gates,
    priority_sort,
    unsupported_pods,
    node_unschedulable,
    node_name,
    taint_toleration,
    node_affinity,
    node_ports,
    batch_forecast,
    node_resources_fit,
    volume_restrictions,
    node_volume_limits,
    volume_binding,
    volume_zone,
    pod_topology_spread,
    inter_pod_affinity,
    domain_limit,
    gang,
    default_preemption,
    balanced_allocation,
    image_locality,
    actual_load,
    packing,
    gpu_wear,
    gpu_wear_level,
    default_binder,
)


def default_registry() -> Registry:
    """A registry with every plugin of this package, in the order in which the default profile runs them."""
    registry = Registry()
    for module in _MODULES:
        module.register(registry)
    return registry
