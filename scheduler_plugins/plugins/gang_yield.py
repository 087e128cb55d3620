"""Whether a gang that holds places stands in the way of a pod of another."""

from __future__ import annotations

import numpy as np

from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.snapshot import Snapshot
from scheduler_plugins.framework.status import Code
from scheduler_plugins.plugins.gang_state import GangNow


def in_the_way(other: GangNow, snapshot: Snapshot, diagnosis: Diagnosis) -> bool:
    """Whether some node that refused the pod for what is on it has waiting pods of `other`."""
    names = {one.node_name for one in other.waiting}
    rows = np.array(sorted(snapshot.index[name] for name in names if name in snapshot.index), dtype=np.intp)
    for refusals in diagnosis.refusals:
        there = np.isin(refusals.rows, rows)
        if bool((refusals.verdicts.codes[refusals.positions[there]] == Code.UNSCHEDULABLE).any()):
            return True
    return False
