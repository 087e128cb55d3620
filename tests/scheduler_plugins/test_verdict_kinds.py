"""Thousands of refused nodes are told in words once a kind, with the nearest node's numbers."""

from __future__ import annotations

import numpy as np

from scheduler_plugins.framework.diagnosis import Diagnosis, Refusals
from scheduler_plugins.framework.status import Code, Reason
from scheduler_plugins.framework.verdicts import Verdicts


def _diagnosis(explained: list[int], *, grouped: bool) -> Diagnosis:
    refused = np.array([True, True, False, True, True])
    free = np.array([3, 7, 9, 0, 5])

    def explain(i: int) -> tuple[Reason, ...]:
        explained.append(i)
        if i == 3:
            return (Reason("node is cordoned"),)
        return (Reason("Insufficient cpu", f"needs 8, free {free[i]}", float(8 - free[i])),)

    kinds = np.array([0, 0, 0, 1, 0]) if grouped else None
    verdicts = Verdicts.where(refused, Code.UNSCHEDULABLE, explain, kinds, 8.0 - free if grouped else None)
    rows = np.flatnonzero(refused)
    return Diagnosis(names=tuple("abcde"), refusals=[Refusals("Fit", rows, rows, verdicts)])


def test_one_node_of_a_kind_is_explained_and_the_words_are_the_same():
    all_explained: list[int] = []
    few_explained: list[int] = []
    slow = _diagnosis(all_explained, grouped=False).message()
    fast = _diagnosis(few_explained, grouped=True).message()
    assert fast == slow
    assert fast == "0/5 nodes are available: 1 node is cordoned, 3 Insufficient cpu (nearest b: needs 8, free 7)."
    assert (sorted(set(all_explained)), sorted(set(few_explained))) == ([0, 1, 3, 4], [1, 3])
