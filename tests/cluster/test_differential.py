"""What the stock scheduler says of a pod, ours says too."""

from __future__ import annotations

import pytest

from tests.cluster.differential import compare
from tests.cluster.preempting import compare_preemptions


@pytest.mark.timeout(600)
def test_random_pods_get_the_verdict_of_the_stock_scheduler(plane):
    outcome = compare(plane, seed=1, cases=10, probes=30)
    assert not outcome.differences, "\n".join(outcome.differences)
    assert min(outcome.placed, outcome.unschedulable) > 50
    assert outcome.reused > 20


@pytest.mark.timeout(600)
def test_random_preemptions_take_the_node_and_the_victims_that_the_stock_scheduler_takes(plane):
    outcome = compare_preemptions(plane, seed=3, cases=30)
    assert not outcome.differences, "\n".join(outcome.differences)
    assert min(outcome.preempted, outcome.hopeless, outcome.placed) > 4
