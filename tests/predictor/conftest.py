from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from predictor.metrics import Metrics
from tests.predictor.support import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return Metrics(registry)
