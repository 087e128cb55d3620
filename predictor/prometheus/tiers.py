"""Tier of pods by what kube-state-metrics says of them. Pure.

The rules are those of `slacktide.tier`; a pod that neither a label nor a request speaks for is LS, and so is one about
which the time that is looked at says two things: the unknown must be protected. Priorities are not exported as numbers,
so that rule finds nothing here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from predictor.prometheus.queries import BATCH, QOS_LABELS, TIER_LABEL
from slacktide import names
from slacktide.objects import Container, ObjectMeta, Pod, PodSpec, ResourceRequirements
from slacktide.tier import Tier, tier_of


class PodName(NamedTuple):
    """A pod by name."""

    namespace: str
    name: str


def tiers(by_label: Iterable[Mapping[str, str]], by_request: Iterable[Mapping[str, str]]) -> dict[PodName, Tier]:
    """Tier of every pod that may not be LS.

    by_label    label sets of `queries.marks_by_label`: one for each set of labels that a pod had
    by_request  label sets of `queries.marks_by_request`: one for each batch resource of a pod
    """
    marks: defaultdict[PodName, list[dict[str, str]]] = defaultdict(list)
    for labels in by_label:
        marks[_name(labels)].append(_labels(labels))
    asked: defaultdict[PodName, dict[str, str | int | float]] = defaultdict(dict)
    for labels in by_request:
        asked[_name(labels)][BATCH[labels["resource"]]] = "1"
    found: dict[PodName, Tier] = {}
    for pod in {*marks, *asked}:
        said = {tier_of(_pod(labels, asked[pod])) for labels in marks[pod] or [{}]}
        found[pod] = said.pop() if len(said) == 1 else Tier.LS
    return found


def _name(labels: Mapping[str, str]) -> PodName:
    return PodName(labels.get("namespace", ""), labels.get("pod", ""))


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    qos = next((labels[name] for name in QOS_LABELS if labels.get(name)), "")
    return {names.TIER_LABEL: labels.get(TIER_LABEL, ""), names.KOORDINATOR_QOS_LABEL: qos}


def _pod(labels: dict[str, str], requests: dict[str, str | int | float]) -> Pod:
    container = Container(resources=ResourceRequirements(requests=requests))
    return Pod(metadata=ObjectMeta(labels=labels), spec=PodSpec(containers=[container]))
