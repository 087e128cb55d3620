from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slacktide.resources import requests_of
from standalone.runner.admission import admit
from tests.standalone.runner.twin import pod_dict, pod_view


def asking(name, cpu="1", phase="Pending", created="2026-01-01T00:00:00Z", resource="cpu"):
    pod = pod_dict(name)
    pod["spec"]["containers"][0]["resources"] = {"requests": {resource: cpu}}
    pod["status"]["phase"] = phase
    pod["metadata"]["creationTimestamp"] = created
    return pod_view(pod)


NONE = frozenset()


def test_the_first_that_does_not_fit_is_refused_with_the_sums():
    pods = [asking("a", "1500m"), asking("b", "3")]
    verdict = admit(pods, NONE, {}, {"cpu": 4000, "pods": 10})
    assert verdict.admitted == {pods[0].metadata.uid}
    refusal = verdict.rejected[pods[1].metadata.uid]
    assert refusal.reason == "OutOfcpu"
    assert refusal.message == "Node didn't have enough resource: cpu, requested: 3000, used: 1500, capacity: 4000"


def test_oldest_first():
    young, old = asking("a", "1", created="2026-01-02T00:00:00Z"), asking("b", "1", created="2026-01-01T00:00:00Z")
    verdict = admit([young, old], NONE, {}, {"cpu": 1000, "pods": 10})
    assert verdict.admitted == {old.metadata.uid}


def test_what_was_taken_is_never_judged_again():
    pod = asking("a", "4000", resource="kubernetes.io/batch-cpu")
    verdict = admit([pod], frozenset({pod.metadata.uid}), {}, {"pods": 10, "kubernetes.io/batch-cpu": 0})
    assert verdict.admitted == {pod.metadata.uid}
    assert not verdict.rejected


def test_ended_pods_hold_nothing():
    ended, new = asking("a", "1", "Succeeded"), asking("b", "1")
    verdict = admit([ended, new], frozenset({ended.metadata.uid}), {}, {"cpu": 1000, "pods": 1})
    assert new.metadata.uid in verdict.admitted


def test_pod_count():
    pods = [asking("a", "0"), asking("b", "0")]
    verdict = admit(pods, NONE, {}, {"pods": 1})
    assert [why.reason for why in verdict.rejected.values()] == ["OutOfpods"]


def test_a_refusal_stays_while_the_pod_exists():
    pod = asking("a", "2")
    first = admit([pod], NONE, {}, {"cpu": 1000, "pods": 1})
    second = admit([pod], NONE, first.rejected, {"cpu": 9000, "pods": 1})
    assert second.rejected == first.rejected
    assert admit([], NONE, first.rejected, {}).rejected == {}


@given(st.lists(st.integers(0, 3000), max_size=8), st.integers(0, 6000))
def test_the_admitted_always_fit(requests, capacity):
    pods = [asking(f"p{index}", f"{millis}m") for index, millis in enumerate(requests)]
    verdict = admit(pods, NONE, {}, {"cpu": capacity, "pods": 100})
    taken = [pod for pod in pods if pod.metadata.uid in verdict.admitted]
    assert sum(requests_of(pod).get("cpu", 0) for pod in taken) <= capacity
    assert verdict.admitted.isdisjoint(verdict.rejected)
    assert len(verdict.admitted) + len(verdict.rejected) == len(pods)


def test_an_amount_that_cannot_be_read_concerns_its_own_pod_only():
    bad, good = asking("a", "1.5.2"), asking("b", "1")
    verdict = admit([bad, good], NONE, {}, {"cpu": 1000, "pods": 9})
    assert verdict.admitted == {good.metadata.uid}
    refusal = verdict.rejected[bad.metadata.uid]
    assert refusal.reason == "UnexpectedAdmissionError"
    assert "1.5.2" in refusal.message
