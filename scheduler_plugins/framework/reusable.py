"""What makes the work of one cycle good for the next pod that is alike: plugins that judge a node by that node alone.

Most pods of a queue come from a few templates, and between two cycles few nodes change. Where every plugin of a profile
that takes part in PreFilter, Filter, PreScore and Score is reusable for a pod, a cycle for a pod with the same keys
asks again about the nodes that changed only; the choice is the one that a cycle over all nodes would make.
Source of the idea: KEP-5598, opportunistic batching.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

from scheduler_plugins.framework.pod_info import PodInfo
from scheduler_plugins.framework.snapshot import Snapshot


class Reusable(ABC):
    """A plugin that promises: with equal keys, a node that did not change gets the same verdict and raw score.

    The promise is about PreFilter (its answer, and what it writes to the cycle state), Filter, PreScore and Score, and
    includes that PreScore asks nothing of which nodes fit. Normalisation is done anew, so it may look at all scores,
    but at nothing else. What the plugin writes to the cycle state is shared by the pods, so that no later extension
    point may change it.
    """

    @abstractmethod
    def reuse_key(self, pod: PodInfo) -> Hashable | None:
        """What the plugin reads of the pod; None when its answers about this pod depend on more than single nodes.

        Asked once a pod: depends on the pod alone.
        """

    def reuse_now(self, pod: PodInfo, snapshot: Snapshot) -> Hashable | None:  # noqa: ARG002  # for those that need it
        """What else the answers depend on at this moment, such as the time in steps; None as in `reuse_key`.

        Asked each cycle, so it must be quick. For most plugins there is nothing.
        """
        return ()
