"""Story: eight training pods are bound within one moment, or none is.

Four nodes of two GPUs. Seven workers of eight would compute nothing and keep seven GPUs from everybody else.
"""

from __future__ import annotations

from typing import Any

from slacktide.objects import Pod
from tests.scheduler_plugins.build import node, pod
from tests.scheduler_plugins.rig import Rig
from tests.stories.examples import story, table

SCHEDULER = "training"
GPU = "nvidia.com/gpu"


def cluster(nodes: int = 4) -> Rig:
    rig = story(SCHEDULER)
    for i in range(nodes):
        add_node(rig, i)
    return rig


def add_node(rig: Rig, number: int) -> None:
    rig.server.put_node(node(f"gpu{number}", {"cpu": "32", "memory": "128Gi", "pods": "50", GPU: "2"}))


def worker(number: int, job: str = "llm", **spec: Any) -> Pod:
    metadata = {
        "labels": {"slacktide.io/pod-group": job},
        "annotations": {"slacktide.io/min-members": "8"},
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return pod(f"{job}-{number}", {"cpu": "8", GPU: "1"}, schedulerName=SCHEDULER, metadata=metadata, **spec)


def watched(rig: Rig) -> list[tuple[str, float, int]]:
    """Each binding: the pod, when, and how many pods held places at that moment."""
    seen: list[tuple[str, float, int]] = []
    rig.server.before_bind = lambda one, where: seen.append(
        (one.metadata.name, rig.clock.now, rig.cache.size().pods),
    )
    return seen


def submit(rig: Rig, numbers: Any, job: str = "llm", every: float = 3.0) -> None:
    """Pods of a job come one by one, as its controller makes them."""
    for number in numbers:
        rig.server.put(worker(number, job))
        rig.settle()
        rig.later(every)


def test_eight_are_bound_within_one_moment_once_the_last_is_there() -> None:
    rig = cluster()
    seen = watched(rig)
    submit(rig, range(7))
    assert seen == []
    assert rig.cache.size().pods == 0, "pods of an incomplete gang hold no GPU"
    submit(rig, [7])
    assert len(seen) == 8
    assert len({when for _, when, _ in seen}) == 1
    assert {held for _, _, held in seen} == {8}
    assert sorted(rig.where(f"llm-{i}") for i in range(8)) == [f"gpu{i // 2}" for i in range(8)]


def test_none_is_bound_where_seven_fit_and_the_gpus_stay_free_for_others() -> None:
    rig = cluster()
    rig.server.put(pod("notebook", {GPU: "1"}, schedulerName=SCHEDULER))
    rig.settle()
    seen = watched(rig)
    submit(rig, range(8))
    assert seen == []
    assert rig.cache.size().assumed_pods == 0
    status, reason, message = rig.condition("llm-0")
    assert (status, reason) == ("False", "Unschedulable")
    assert "gang does not fit now (gang default/llm: 8 pods ask for 8 nvidia.com/gpu, all nodes have 7)" in message
    rig.server.put(pod("small", {GPU: "1"}, schedulerName=SCHEDULER))
    rig.settle()
    assert rig.where("small") != ""
    rig.server.remove("notebook")
    rig.server.remove("small")
    rig.later(11)
    assert [name for name, _, _ in seen[1:]] != []
    assert len(seen) == 9
    assert len({when for _, when, _ in seen[1:]}) == 1


def test_a_job_that_this_cluster_can_never_run_says_so_at_once() -> None:
    rig = cluster(nodes=3)
    submit(rig, range(8), every=0.0)
    assert table(rig, "llm-7")["attempt"] == 1
    assert (
        "gang can never fit (gang default/llm: 8 pods ask for 8 nvidia.com/gpu, all nodes have 6)"
        in (rig.condition("llm-7")[2])
    )
    add_node(rig, 3)
    rig.later(11)
    assert all(rig.where(f"llm-{i}") for i in range(8))


def test_of_two_jobs_that_come_mixed_one_runs_and_then_the_other() -> None:
    rig = cluster()
    for number in range(8):
        rig.server.put(worker(number, "llm"))
        rig.server.put(worker(number, "vision"))
    rig.settle()
    running = [sum(1 for i in range(8) if rig.where(f"{job}-{i}")) for job in ("llm", "vision")]
    assert running == [8, 0]
    for number in range(8):
        rig.server.finish(f"llm-{number}")
    rig.later(11)
    assert all(rig.where(f"vision-{i}") for i in range(8))


def test_a_job_that_is_deleted_half_way_leaves_nothing_behind() -> None:
    rig = cluster()
    submit(rig, range(6))
    for number in range(3):
        rig.server.remove(f"llm-{number}")
    rig.settle()
    submit(rig, range(8), "vision")
    assert all(rig.where(f"vision-{i}") for i in range(8))
    assert rig.cache.size().pods == 8
