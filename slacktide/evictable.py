"""Whether a pod may be made to go at all: its own opt-outs, and pods that the API cannot end."""

from __future__ import annotations

from typing import Final

from slacktide.names import EVICTABLE_ANNOTATION, KOORDINATOR_EVICTION_LABEL
from slacktide.objects import Pod

CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the mirror of a static pod, which the kubelet runs from a file."""


def is_evictable(pod: Pod) -> bool:
    """False for a pod that opted out, and for a static pod, which deleting its mirror in the API does not end."""
    meta = pod.metadata
    if CONFIG_MIRROR in meta.annotations or meta.labels.get(KOORDINATOR_EVICTION_LABEL) == "false":
        return False
    return meta.annotations.get(EVICTABLE_ANNOTATION, "true") == "true"
