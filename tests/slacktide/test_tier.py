from __future__ import annotations

import itertools

import msgspec
import pytest

from slacktide.names import BATCH_CPU, BATCH_MEMORY, KOORDINATOR_QOS_LABEL, TIER_LABEL
from slacktide.objects import Pod
from slacktide.tier import Tier, tier_of

LS, BE, SYSTEM = Tier.LS, Tier.BE, Tier.SYSTEM


def make_pod(own=None, koordinator=None, resource=None, priority=None, *, kind="requests", init=False) -> Pod:
    labels = {}
    if own is not None:
        labels[TIER_LABEL] = own
    if koordinator is not None:
        labels[KOORDINATOR_QOS_LABEL] = koordinator
    container = {"name": "c", "resources": {kind: {resource: "1"}} if resource else {}}
    plain = {"name": "plain", "resources": {"requests": {"cpu": "1"}}}
    spec = {"containers": [plain] if init else [plain, container], "initContainers": [container] if init else []}
    if priority is not None:
        spec["priority"] = priority
    return msgspec.convert({"metadata": {"labels": labels}, "spec": spec}, Pod)


# What each rule says for a value: None is silence, and the next rule is asked.
OWN = {None: None, "ls": LS, "LS": LS, "be": BE, "Be": BE, "system": SYSTEM, "SYSTEM": SYSTEM, "": None, "batch": None}
KOORDINATOR = {
    None: None,
    "LSE": LS,
    "LSR": LS,
    "LS": LS,
    "BE": BE,
    "SYSTEM": SYSTEM,
    "": None,
    "be": None,
    "Gold": None,
}
RESOURCE = {None: None, BATCH_CPU: BE, BATCH_MEMORY: BE, "example.com/gpu": None, "memory": None}
PRIORITY = {None: None, 4999: None, 5000: BE, 5500: BE, 5999: BE, 6000: None, 0: None, -5500: None, 2000001000: None}


def test_the_whole_table_first_rule_that_speaks_decides():
    for values in itertools.product(OWN, KOORDINATOR, RESOURCE, PRIORITY):
        said = [rule[value] for rule, value in zip((OWN, KOORDINATOR, RESOURCE, PRIORITY), values, strict=True)]
        expected = next((tier for tier in said if tier is not None), LS)
        assert tier_of(make_pod(*values)) is expected, values


@pytest.mark.parametrize("kind", ["requests", "limits"])
@pytest.mark.parametrize("init", [False, True])
def test_a_request_or_limit_of_any_container_speaks(kind, init):
    assert tier_of(make_pod(resource=BATCH_CPU, kind=kind, init=init)) is BE


def test_quantity_zero_is_a_request_too():
    pod = msgspec.convert({"spec": {"containers": [{"resources": {"requests": {BATCH_CPU: "0"}}}]}}, Pod)
    assert tier_of(pod) is BE


def test_the_batch_resources_are_a_setting():
    mine = frozenset({"example.com/gpu"})
    assert tier_of(make_pod(resource="example.com/gpu"), mine) is BE
    assert tier_of(make_pod(resource=BATCH_CPU), mine) is LS


def test_neither_the_qos_class_nor_the_name_of_the_pod_decides():
    pod = msgspec.convert({"metadata": {"name": "be-batch"}, "status": {"qosClass": "BestEffort"}}, Pod)
    assert tier_of(pod) is LS


def test_an_empty_pod_is_protected():
    assert tier_of(Pod()) is LS
