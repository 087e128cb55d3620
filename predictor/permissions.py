"""What the predictor may do with the Kubernetes API, and why. The chart grants this and no more."""

from __future__ import annotations

from typing import Final

from slacktide.cluster.permissions import Permission, lease_permissions, permissions
from slacktide.names import SYSTEM_NAMESPACE

LEASE_NAME: Final = "slacktide-predictor"

PERMISSIONS: Final[tuple[Permission, ...]] = (
    *permissions("list watch", "nodes", "know capacity, and what stands on each node"),
    *permissions("patch", "nodes/status", "publish the forecast and the batch resources"),
    *permissions("list watch", "pods", "know what is sold, and which LS pods are new"),
    *permissions("create patch", "events", "tell that somebody else publishes batch resources"),
    *lease_permissions(LEASE_NAME, SYSTEM_NAMESPACE, "elect the replica that publishes"),
)

AUTH_PERMISSIONS: Final[tuple[Permission, ...]] = (
    *permissions("create", "tokenreviews", "know which agent calls, and of which node", group="authentication.k8s.io"),
    *permissions("create", "subjectaccessreviews", "know who may read forecasts", group="authorization.k8s.io"),
)
"""What is needed beside them where callers come over TLS with tokens."""
