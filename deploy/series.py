"""How many series a daemon has at most: each label has so many values, and two labels grow with the cluster.

`SIZES` states every label of agent and predictor: one that is not stated here is a mistake, for nobody knows what it
costs. Scheduler and extender have figures by plugin and extension point, where the product says far too much: their
bounds are `MOST`, and tests hold real ones to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import Metric

from agent.drill import Kind
from agent.drill_metrics import STEPS
from agent.given import NAMESPACES_MAX
from agent.policy.registry import POLICIES
from predictor.models import known
from slacktide.tier import Tier

NODE: Final = "node"
"""The label that grows with the cluster, on the predictor alone."""

MOST: Final[Mapping[str, int]] = {"scheduler": 4000, "extender": 400}
"""Series of these daemons at most."""

_DRILL_OUTCOMES: Final = 4
_SKIPPED: Final = 40
"""Things that a node may lack, each with one reason."""

SIZES: Final[Mapping[str, int]] = {
    # Every daemon.
    "result": 5,
    "component": 1,
    "level": 3,
    "version": 1,
    "python": 1,
    # Client of the API: an agent watches pods, a predictor pods and nodes.
    "verb": 7,
    "code": 10,
    "informer": 2,
    "type": 4,
    "lease": 1,
    "setting": 2,
    "part": 2,
    # Agent.
    "rung": len(POLICIES),
    "tier": len(Tier),
    "namespace": NAMESPACES_MAX + 1,
    "what": _SKIPPED,
    "step": len(STEPS),
    "outcome": _DRILL_OUTCOMES,
    # Predictor: two resources, nine ways to a peak, the models, eight causes and reasons at most.
    "resource": 2,
    "path": 9,
    "model": len(known()),
    "cause": 8,
    "table": 3,
    "term": 6,
    NODE: 1,
}
"""Values of a label, at most."""

_OTHER_SIZES: Final[Mapping[tuple[str, str], int]] = {
    ("slacktide_agent_ls_pressure", "kind"): 1,
    ("slacktide_agent_skipped_info", "reason"): 1,
    ("slacktide_predictor_peaks", "model"): 2,
    ("slacktide_predictor_refused_samples", "reason"): 8,
    ("slacktide_predictor_refused_calls", "kind"): 8,
    ("slacktide_informer_failures", "reason"): 8,
    ("slacktide_api_unreadable_objects", "kind"): 2,
    **{
        (f"slacktide_drill_{name}", "kind"): len(Kind)
        for name in (
            *("active", "raised", "ended", "victims", "step_seconds", "target_seconds", "ls_pressure_max"),
            "last_passed_timestamp_seconds",
        )
    },
}
"""The same for labels of one name that mean something else in one metric."""


def size(metric: str, label: str) -> int:
    """How many values a label has at most. Raises KeyError for one that nobody has stated."""
    return _OTHER_SIZES[metric, label] if (metric, label) in _OTHER_SIZES else SIZES[label]


def at_most(families: Iterable[tuple[Metric, tuple[str, ...]]], buckets: Mapping[str, int]) -> tuple[int, int]:
    """(series of a daemon at most, those by node left out; series for each node).

    `families` are its metrics with their labels, `buckets` how many buckets each histogram has.
    """
    fixed = each = 0
    for family, labels in families:
        children = math.prod(size(family.name, label) for label in labels)
        # A histogram has a sum and a count beside its buckets.
        series = children * (buckets[family.name] + 2 if family.type == "histogram" else 1)
        if NODE in labels:
            each += series
        else:
            fixed += series
    return fixed, each
