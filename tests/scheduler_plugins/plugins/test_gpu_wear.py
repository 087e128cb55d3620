"""GpuWear: the chain of models goes before health, unknown is left out, bad annotations cost the node its score."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.plugins.gpu_wear import GpuModel, GpuWear, GpuWearArgs
from slacktide.errors import SettingsError
from slacktide.gpus import Card, Gpus, encode
from slacktide.names import GPUS_ANNOTATION
from slacktide.objects import Node
from tests.scheduler_plugins.build import GI, Clock, handle, info, node
from tests.scheduler_plugins.rating import reasons, scores, snapshot_for

NOW = 50_000.0
GPU_POD = info(requests={"nvidia.com/gpu": "1"})


def plugin(**args: Any) -> GpuWear:
    return GpuWear(GpuWearArgs(**args), handle(Clock(NOW)))


def cards(*many: Card, at: float = NOW, ttl: float = 60) -> str:
    return encode(Gpus(at=at, ttl_seconds=ttl, cards=many))


def card(model: str = "NVIDIA A100-SXM4-80GB", use: float | None = 0.0, **more: Any) -> Card:
    return Card(index=0, model=model, utilisation_percent=use, **more)


def gpu_node(name: str, text: str) -> Node:
    return node(name, annotations={GPUS_ANNOTATION: text})


def rated(judge: GpuWear, texts: dict[str, str | None]) -> dict[str, int]:
    nodes = [node(name) if text is None else gpu_node(name, text) for name, text in texts.items()]
    return scores(judge, GPU_POD, snapshot_for(judge, nodes))


V100 = "Tesla V100-SXM2-32GB"


def test_a100_first_v100_once_the_a100_is_over_80_percent() -> None:
    found = rated(
        plugin(),
        {
            "a100-idle": cards(card()),
            "a100-at-80": cards(card(use=80)),
            "v100-idle": cards(card(V100)),
            "v100-at-79": cards(card(V100, use=79)),
            "a100-over": cards(card(use=80.1)),
            "v100-over": cards(card(V100, use=99)),
            "t4": cards(card("Tesla T4")),
            "no-gpu": None,
        },
    )
    order = sorted(found, key=lambda name: -found[name])
    assert order == ["a100-idle", "a100-at-80", "v100-idle", "v100-at-79", "a100-over", "v100-over", "t4", "no-gpu"]
    assert len(set(found.values())) == len(found)


def test_models_and_thresholds_are_arguments() -> None:
    chain = (GpuModel(model="h200", busy_percent=50), GpuModel(model="A100"), GpuModel(model="V100"))
    found = rated(
        plugin(models=chain),
        {
            "h200": cards(card("NVIDIA H200", use=50)),
            "h200-busy": cards(card("NVIDIA H200", use=51)),
            "a100": cards(card(use=75)),
            "v100": cards(card(V100, use=10)),
        },
    )
    assert sorted(found, key=lambda name: -found[name]) == ["h200", "a100", "v100", "h200-busy"]
    assert rated(plugin(models=()), {"any": cards(card()), "worn": cards(card(use=50))}) == {"any": 99, "worn": 50}


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (card(use=10), card(use=20)),
        (card(temperature_celsius=50), card(temperature_celsius=60)),
        (card(temperature_celsius=20), card(temperature_celsius=300)),
        (card(errors=0), card(errors=1)),
        (card(errors=1), card(errors=1 << 50)),
        (
            card(memory_used_bytes=GI, memory_total_bytes=5 * GI, free_block_bytes=4 * GI),
            card(memory_used_bytes=GI, memory_total_bytes=5 * GI, free_block_bytes=GI),
        ),
    ],
)
def test_worn_cards_come_after_sound_ones(good: Card, bad: Card) -> None:
    found = rated(plugin(), {"good": cards(good), "bad": cards(bad)})
    assert found["good"] > found["bad"]


def test_what_a_card_does_not_tell_is_left_out_and_one_that_tells_nothing_has_no_health() -> None:
    quiet = card(use=40)
    found = rated(
        plugin(models=()),
        {
            "use-only": cards(quiet),
            "none": cards(card(use=None)),
            "full-memory": cards(card(use=40, memory_used_bytes=GI, memory_total_bytes=GI, free_block_bytes=0)),
            "two": cards(quiet, card(use=None)),
        },
    )
    assert found == {"use-only": 59, "none": 0, "full-memory": 59, "two": 59}


def test_a_card_that_does_not_say_how_busy_it_is_stands_with_the_busy_ones() -> None:
    found = rated(plugin(), {"silent": cards(card(use=None)), "v100": cards(card(V100, use=70))})
    assert found["silent"] < found["v100"]


def test_cards_of_one_model_count_together_and_the_best_model_of_a_node_counts() -> None:
    found = rated(
        plugin(),
        {
            "mixed": cards(card(use=95), card(V100, use=5)),
            "mean-over": cards(card(use=100), card(use=70)),
            "mean-under": cards(card(use=100), card(use=50)),
        },
    )
    assert found["mean-under"] >= 80
    assert 60 <= found["mixed"] < 80
    assert 40 <= found["mean-over"] < 60


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(cards(card())) | fields)


BAD = {
    "torn": ("{", "annotation has no GPUs"),
    "list": ("[]", "annotation has no GPUs"),
    "newer": (changed(version=2, cards={"other": "shape"}), "version 2 is not understood"),
    "nan": (changed(cards=[{"index": 0, "utilisation_percent": math.nan}]), "annotation has no GPUs"),
    "negative": (changed(cards=[{"index": 0, "utilisation_percent": -1}]), ">= 0"),
    "over": (changed(cards=[{"index": 0, "utilisation_percent": 100.5}]), "<= 100"),
    "huge": (changed(cards=[{"index": 0, "memory_used_bytes": 1 << 62}]), "annotation has no GPUs"),
    "hot": (changed(cards=[{"index": 0, "temperature_celsius": 1e30}]), "<= 1000"),
    "text": (changed(cards=[{"index": 0, "errors": "many"}]), "annotation has no GPUs"),
    "empty": (changed(cards=[]), "names no card"),
    "many": (changed(cards=[{"index": 0}] * 300), "length <= 256"),
    "for-ever": (changed(ttl_seconds=1e300), "<= 86400"),
    "no-ttl": (changed(ttl_seconds=0), "> 0"),
    "expired": (cards(card(), at=NOW - 181), "expired, 181 s old and good for 180 s"),
    "future": (cards(card(), at=NOW + 61), "from the future, 61 s ahead of this clock"),
    "far-future": (cards(card(), at=1e300), "from the future"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_annotation_costs_the_node_its_score_and_says_why(name: str) -> None:
    text, why = BAD[name]
    judge = plugin()
    snapshot = snapshot_for(judge, [gpu_node("bad", text), gpu_node("good", cards(card())), node("none")])
    found = scores(judge, GPU_POD, snapshot)
    assert (found["bad"], found["none"]) == (0, 0)
    assert found["good"] > 90
    said = reasons(judge, GPU_POD, snapshot)
    assert list(said) == ["bad"]
    assert said["bad"].startswith(f"annotation {GPUS_ANNOTATION}: ")
    assert why in said["bad"]


def test_ageing_numbers_still_count_and_clocks_may_differ_a_little() -> None:
    found = rated(plugin(), {"old": cards(card(), at=NOW - 179), "ahead": cards(card(), at=NOW + 59)})
    assert min(found.values()) > 90


def test_only_pods_that_ask_for_a_gpu_are_rated() -> None:
    judge = plugin()
    snapshot = snapshot_for(judge, [node("n")])
    assert judge.pre_score(CycleState(), info(requests={"cpu": "1"}), snapshot, snapshot.all()).skipped
    assert plugin(resource="").pre_score(CycleState(), info(), snapshot, snapshot.all()).ok


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"cool_celsius": 85.0}, "hotCelsius 85 must be above coolCelsius 85"),
        ({"models": (GpuModel(model="A100"), GpuModel(model="a100"))}, "models names 'a100' twice"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        plugin(**args)


MAYBE = st.none() | st.integers(0, 100)


@settings(max_examples=200, deadline=None)
@given(
    rank=st.integers(0, 1),
    wear=st.tuples(MAYBE, MAYBE, MAYBE),
    other=st.tuples(MAYBE, MAYBE, MAYBE),
    use=st.integers(0, 80),
)
def test_no_health_makes_up_for_a_place_in_the_chain(rank: int, wear: Any, other: Any, use: int) -> None:
    def one(model: str, use: int, parts: Any) -> str:
        heat, errors, block = parts
        return cards(
            card(
                model,
                use,
                temperature_celsius=heat,
                errors=errors,
                free_block_bytes=block,
                memory_used_bytes=0,
                memory_total_bytes=100,
            )
        )

    models = ("A100", "V100", "K80")
    found = rated(plugin(), {"better": one(models[rank], use, wear), "worse": one(models[rank + 1], 0, other)})
    assert found["better"] > found["worse"]
