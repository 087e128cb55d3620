"""One client of the Kubernetes API, so that no component can tell where it runs.

```python
client = connect(settings.cluster, user_agent="slacktide-agent")
pods = Informer(client, PODS, field_selector="spec.nodeName=n1", on_add=print)
pods.start()
pods.wait_synced(30)
```

Layers, from the wire up: transport (bytes), codec and watch (JSON to views), client (verbs), informer, event
recorder and leader elector (threads with a loop).

Each part is imported when it is first asked for: a command that lists pods needs no informer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from slacktide.cluster import errors
    from slacktide.cluster.client import Client, Listing, Version, Watch, connect, connect_unix
    from slacktide.cluster.election import LeaderElector
    from slacktide.cluster.events import EventRecorder
    from slacktide.cluster.evict import Eviction, Outcome
    from slacktide.cluster.informer import Informer
    from slacktide.cluster.kinds import EVENTS, LEASES, NAMESPACES, NODES, PDBS, PODS, Kind, PodDisruptionBudget
    from slacktide.cluster.metrics import ClusterMetrics
    from slacktide.cluster.permissions import Permission, Rights
    from slacktide.cluster.watch import WatchEvent

__all__ = [
    "EVENTS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PDBS",
    "PODS",
    "Client",
    "ClusterMetrics",
    "EventRecorder",
    "Eviction",
    "Informer",
    "Kind",
    "LeaderElector",
    "Listing",
    "Outcome",
    "Permission",
    "PodDisruptionBudget",
    "Rights",
    "Version",
    "Watch",
    "WatchEvent",
    "connect",
    "connect_unix",
    "errors",
]

_WHERE: Final = {
    "Client": "client",
    "ClusterMetrics": "metrics",
    "EVENTS": "kinds",
    "EventRecorder": "events",
    "Eviction": "evict",
    "Informer": "informer",
    "Kind": "kinds",
    "LEASES": "kinds",
    "LeaderElector": "election",
    "Listing": "client",
    "NAMESPACES": "kinds",
    "NODES": "kinds",
    "Outcome": "evict",
    "PDBS": "kinds",
    "PODS": "kinds",
    "Permission": "permissions",
    "PodDisruptionBudget": "kinds",
    "Rights": "permissions",
    "Version": "client",
    "Watch": "client",
    "WatchEvent": "watch",
    "connect": "client",
    "connect_unix": "client",
}


def __getattr__(name: str) -> object:
    """Import the module of a public name (PEP 562)."""
    if name == "errors":
        return importlib.import_module(f"{__name__}.errors")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = found
    return found
