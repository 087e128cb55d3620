"""What the stock scheduler says of a pod, ours says too."""

from __future__ import annotations

import pytest

from tests.cluster.differential import compare


@pytest.mark.timeout(600)
def test_random_pods_get_the_verdict_of_the_stock_scheduler(plane):
    outcome = compare(plane, seed=1, cases=10, probes=30)
    assert not outcome.differences, "\n".join(outcome.differences)
    assert min(outcome.placed, outcome.unschedulable) > 50
