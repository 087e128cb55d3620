"""One client of the Kubernetes API, so that no component can tell where it runs.

```python
client = connect(settings.cluster, user_agent="slacktide-agent")
pods = Informer(client, PODS, field_selector="spec.nodeName=n1", on_add=print)
pods.start()
pods.wait_synced(30)
```

Layers, from the wire up: transport (bytes), codec and watch (JSON to views), client (verbs), informer, event
recorder and leader elector (threads with a loop).
"""

from slacktide.cluster import errors
from slacktide.cluster.client import Client, Listing, Version, Watch, connect
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
    "errors",
]
