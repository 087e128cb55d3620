"""Names that cross component borders: labels, annotations, resources, defaults."""

from typing import Final

BATCH_CPU: Final = "kubernetes.io/batch-cpu"
"""Extended CPU for best-effort pods, an integer count of millicores (4000 = 4 cores)."""

BATCH_MEMORY: Final = "kubernetes.io/batch-memory"
"""Extended memory for best-effort pods, in bytes."""

MID_CPU: Final = "kubernetes.io/mid-cpu"
"""CPU of Koordinator's mid tier, between LS and BE, in millicores: for pods that must not wait but may be moved."""

MID_MEMORY: Final = "kubernetes.io/mid-memory"
"""Memory of the mid tier, in bytes."""

TIER_LABEL: Final = "slacktide.io/tier"
"""Pod label that names the tier: ls, be or system."""

KOORDINATOR_QOS_LABEL: Final = "koordinator.sh/qosClass"
"""Koordinator's pod label, honoured so that a cluster can move over without relabelling."""

EVICTABLE_ANNOTATION: Final = "slacktide.io/evictable"
"""Pod annotation: any value but `true` keeps the agent from evicting, freezing or killing the pod."""

KOORDINATOR_EVICTION_LABEL: Final = "koordinator.sh/eviction-enabled"
"""Koordinator's pod label; here only `false` counts, as an opt-out, since a BE pod may be evicted without one."""

KOORDINATOR_PLACEMENT_ANNOTATION: Final = "scheduling.koordinator.sh/resource-status"
"""Koordinator's pod annotation that names the CPUs and NUMA zones that a pod was given."""

FORECAST_ANNOTATION: Final = "slacktide.io/forecast"
"""Node annotation that carries `slacktide.forecast.Forecast` as JSON."""

GPUS_ANNOTATION: Final = "slacktide.io/gpus"
"""Node annotation that carries `slacktide.gpus.Gpus` as JSON."""

EXPECTED_LIFE_ANNOTATION: Final = "slacktide.io/expected-life-seconds"
"""Pod annotation: how long the pod expects to run, in seconds."""

SCHEDULER_NAME: Final = "slacktide-scheduler"
"""Default `spec.schedulerName` of the second scheduler."""

EVICTED_BY_LABEL: Final = "slacktide.io/evicted-by"
"""Label of requests for an eviction, which leads those of agents to the policy that looks at the pod's node."""

PRIORITY_CLASS: Final = "slacktide-batch"
"""Default `spec.priorityClassName` of best-effort pods."""

HOST_PROCESS_IMAGE: Final = "slacktide.io/host-process"
"""Image field of pods made by `slacktide run`: processes of this machine are run, no image is pulled."""

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"

NODE_LEASE_NAMESPACE: Final = "kube-node-lease"
"""Namespace of the lease that each node renews."""

SYSTEM_NAMESPACE: Final = "kube-system"
"""Namespace of the leader leases of predictor and scheduler."""

WATCH_SILENCE_SECONDS: Final = 90.0
"""A watch that is silent this long is taken for dead: an API server's bookmarks come about once a minute."""
