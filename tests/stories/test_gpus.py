"""Stories about GPUs: the least worn card first, and A100 first, V100 once the A100s are over 80 % busy."""

from __future__ import annotations

from typing import Any

import pytest

from agent.gpu import Gpu
from agent.gpu_note import note_of
from slacktide.gpus import encode
from slacktide.names import GPUS_ANNOTATION
from tests.scheduler_plugins.build import node, pod
from tests.scheduler_plugins.rig import Rig
from tests.stories.examples import story, table

KEY = "gpu.example.com/wear"
OFFERED = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}


def training(name: str, scheduler: str) -> Any:
    return pod(name, {"cpu": "1", "nvidia.com/gpu": "1"}, schedulerName=scheduler)


def worn(rig: Rig, name: str, level: str | None) -> None:
    annotations = {} if level is None else {KEY: level}
    rig.server.put_node(node(name, OFFERED, annotations=annotations))


def test_the_least_worn_node_is_taken_and_one_without_the_annotation_counts_as_worn_out() -> None:
    rig = story("wear-scheduler")
    for name, level in (("new", "10"), ("old", "90"), ("unknown", None)):
        worn(rig, name, level)
    rig.server.put(training("p", "wear-scheduler"))
    rig.settle()
    assert rig.where("p") == "new"
    by_node = table(rig, "p")["by_node"]
    given = {name: row["plugins"]["GPUWearLevel"]["normalised"] for name, row in by_node.items()}
    assert given == {"new": 90, "old": 10, "unknown": 0}


@pytest.mark.parametrize("level", ["worn", "nan", "-1", "101", "1e300", ""])
def test_a_malformed_value_costs_that_node_its_score_with_a_reason_and_not_the_cycle(level: str) -> None:
    rig = story("wear-scheduler")
    worn(rig, "broken", level)
    worn(rig, "old", "90")
    rig.server.put(training("p", "wear-scheduler"))
    rig.settle()
    assert rig.where("p") == "old"
    shown = table(rig, "p")
    assert shown["by_node"]["broken"]["plugins"]["GPUWearLevel"]["normalised"] == 0
    (why,) = shown["unrated"]["GPUWearLevel"].items()
    assert why[0] == "broken"
    assert f"annotation {KEY} is {level!r}; it must be a number from 0 to 100 (scale percent)" in why[1]


def test_a_cluster_in_which_every_value_is_malformed_still_places_its_pods() -> None:
    rig = story("wear-scheduler")
    for i in range(3):
        worn(rig, f"n{i}", "?")
    rig.server.put(training("p", "wear-scheduler"))
    rig.settle()
    assert rig.where("p")


def busy(rig: Rig, name: str, model: str, percent: float) -> None:
    """What the agent of a node publishes of its two cards."""
    cards = [Gpu(index=i, uuid=f"{name}-{i}", name=model, utilisation_percent=percent) for i in range(2)]
    text = encode(note_of(cards, rig.wall.now, 30.0))
    rig.server.put_node(node(name, OFFERED, annotations={GPUS_ANNOTATION: text}))


def test_a100_first_then_v100_then_the_busy_a100() -> None:
    rig = story("gpu-scheduler")
    models = {"a1": "NVIDIA A100-SXM4-80GB", "a2": "NVIDIA A100-SXM4-80GB", "v1": "Tesla V100-SXM2-32GB"}
    use = dict.fromkeys(models, 10.0)
    placed = []
    # The first A100 fills up, the second, then the V100; then the A100 cools down.
    for step, change in enumerate(({}, {"a1": 95.0}, {"a2": 81.0}, {"v1": 99.0}, {"a2": 80.0})):
        use |= change
        for name, model in models.items():
            busy(rig, name, model, use[name])
        rig.server.put(training(f"p{step}", "gpu-scheduler"))
        rig.settle()
        placed.append(rig.where(f"p{step}"))
    assert placed[0] in {"a1", "a2"}
    assert placed[1:] == ["a2", "v1", "a2", "a2"]


def test_cards_of_which_nothing_was_heard_lately_come_last() -> None:
    rig = story("gpu-scheduler")
    busy(rig, "a1", "NVIDIA A100", 0.0)
    rig.wall.forward(901)
    busy(rig, "v1", "Tesla V100", 95.0)
    rig.server.put(training("p", "gpu-scheduler"))
    rig.settle()
    assert rig.where("p") == "v1"
    assert "expired, 901 s old and good for 900 s" in table(rig, "p")["unrated"]["GpuWear"]["a1"]


def test_pods_without_a_gpu_do_not_care() -> None:
    rig = story("gpu-scheduler")
    busy(rig, "a1", "NVIDIA A100", 0.0)
    busy(rig, "v1", "Tesla V100", 0.0)
    rig.server.put(pod("p", {"cpu": "1"}, schedulerName="gpu-scheduler"))
    rig.settle()
    assert "GpuWear" not in table(rig, "p")["weights"]
