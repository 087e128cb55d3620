"""Our plugins against the stock kube-scheduler, on the same random clusters.

Each probe pod is judged by the stock scheduler of a real control plane, then taken away; ours judges the same cluster
from the objects as the API server holds them. A probe that one places and the other calls unschedulable is a failure;
so is a stock choice that ours filters out, or that does not score best here (clusters are small enough for the stock
scheduler to judge every node). Ours judges each probe twice: over all nodes, and with what it found out about a pod
like it when the cluster was a little different. `preempting` does the same for pods that others have to give way to.

`python -m tests.cluster.differential [--cases N] [--probes N] [--preemptions N] [--seed N]` prints counts and every
difference.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from scheduler_plugins.cycle import place
from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.diagnosis import Diagnosis, FitError
from scheduler_plugins.framework.kept import SHOWN_NODES, Kept
from scheduler_plugins.framework.pod_info import PodReader
from scheduler_plugins.framework.runtime import Framework, ScoreTable
from scheduler_plugins.framework.state import CycleState
from slacktide.cluster import NAMESPACES, NODES, PODS, Client
from slacktide.objects import Node, Pod
from slacktide.settings import ResourceNames
from tests.cluster.harness import ControlPlane, control_plane, missing
from tests.cluster.random_cases import Case, Json, case
from tests.cluster.stock_profile import Objects, stock_framework, stock_handle
from tests.patience import PATIENCE

_DECISION_SECONDS: Final = 20.0 * PATIENCE
_CANARY: Final = "slacktide.io/canary"
_MISMATCH: Final = re.compile(
    r"0/(?P<all>\d+) nodes.* (?P<some>\d+) node\(s\) didn't match Pod's node affinity/selector"
)


@dataclass(slots=True)
class Outcome:
    """What came of one run. `differences` says each in one line."""

    placed: int = 0
    unschedulable: int = 0
    reused: int = 0
    differences: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """What ours says of a probe: total score by feasible node, or why there is none.

    `some` says that only some of the best nodes are in `totals`; `reused` that an earlier cycle was of use.
    """

    totals: dict[str, int]
    message: str
    table: dict[str, dict[str, int]] = field(default_factory=dict)
    some: bool = False
    reused: bool = False

    def difference(self, chosen: str, words: str) -> str:
        """What the stock scheduler, which chose a node or none, sees otherwise; empty when nothing."""
        if not chosen:
            return f"stock: {words}; ours fits {sorted(self.totals)}" if self.totals else ""
        best = max(self.totals, key=lambda name: self.totals[name], default="")
        if chosen not in self.totals:
            if self.some and min(self.totals.values()) == self.totals[best]:
                return ""
            return f"stock: {chosen}; ours: {self.message or sorted(self.totals)}"
        if self.totals[chosen] == self.totals[best]:
            return ""
        parts = {plugin: (scores[chosen], scores[best]) for plugin, scores in self.table.items()}
        return f"stock: {chosen}; ours prefers {best} (chosen, best): {parts}"


def judge(framework: Framework, nodes: list[Node], pods: list[Pod], probe: Pod) -> Verdict:
    """Filter and score one pod against a cluster; preemption is left out on both sides."""
    reader, cache = PodReader(ResourceNames()), Cache()
    for node in nodes:
        cache.set_node(node)
    for pod in pods:
        cache.add_pod(reader.read(pod))
    snapshot = framework.new_snapshot()
    cache.refresh(snapshot)
    info, state, diagnosis = reader.read(probe), CycleState(), Diagnosis(names=tuple(snapshot.names))
    filtered = framework.run_pre_filter(state, info, snapshot, diagnosis)
    if not filtered.status.ok:
        assert filtered.status.rejected, filtered.status.message
        return Verdict({}, filtered.status.message)
    status, rows = framework.run_filter(state, info, snapshot, filtered.rows, diagnosis)
    assert status.ok, status.message
    if not len(rows):
        return Verdict({}, diagnosis.message())
    status, table = framework.run_score(state, info, snapshot, rows)
    assert status.ok, status.message
    return _rated([snapshot.names[row] for row in table.rows], table)


def _rated(names: list[str], table: ScoreTable) -> Verdict:
    by_plugin = {plugin: dict(zip(names, scores.tolist(), strict=True)) for plugin, scores in table.by_plugin.items()}
    return Verdict(dict(zip(names, table.totals.tolist(), strict=True)), "", by_plugin)


def judge_again(framework: Framework, nodes: list[Node], pods: list[Pod], probe: Pod, draw: random.Random) -> Verdict:
    """The same by a cycle that reuses an earlier one, for a pod like `probe`, of when some pods were not there yet."""
    reader, cache, kept = PodReader(ResourceNames()), Cache(), Kept()
    for node in nodes:
        cache.set_node(node)
    later = {node.metadata.name for node in draw.sample(nodes, len(nodes) // 4)}
    for pod in pods:
        if pod.spec.node_name not in later:
            cache.add_pod(reader.read(pod))
    snapshot, info = framework.new_snapshot(), reader.read(probe)
    cache.refresh(snapshot)
    with contextlib.suppress(FitError):
        place(framework, CycleState(), info, snapshot, lambda _: 0, kept)
    for pod in pods:
        if pod.spec.node_name in later:
            cache.add_pod(reader.read(pod))
    cache.refresh(snapshot)
    try:
        placement = place(framework, CycleState(), info, snapshot, lambda _: 0, kept)
    except FitError as error:
        return Verdict({}, str(error))
    if placement.scores is None:
        return Verdict({placement.node: 0}, "", reused=placement.reused)
    verdict = _rated([snapshot.names[row] for row in placement.scores.rows], placement.scores)
    verdict.reused, verdict.some = placement.reused, placement.feasible > SHOWN_NODES
    return verdict


class Comparison:
    """One namespace of one control plane, with the stock scheduler running."""

    canary_class = ""
    """Priority class of the pods that only see whether the stock scheduler is up to date."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self.outcome = Outcome()

    def run(self, drawn: Case, title: str) -> None:
        """Judge all probes of a case; the cluster is empty again afterwards."""
        try:
            for node in drawn.nodes:
                self._add_node(node)
            for pod in drawn.placed:
                self._client.create(PODS, pod, self._namespace)
            self._wait_seen(drawn.nodes[-1]["metadata"]["name"])
            framework = stock_framework(stock_handle(Objects(self._client.list(NAMESPACES).items)))
            for probe in drawn.probes:
                self._compare(framework, probe, title)
        finally:
            self._clear()

    def _compare(self, framework: Framework, probe: Json, title: str) -> None:
        nodes = list(self._client.list(NODES).items)
        pods = list(self._client.list(PODS).items)
        created = self._client.create(PODS, probe, self._namespace)
        chosen, words = self._decision(created.metadata.name)
        self._remove(created.metadata.name)
        ours = judge(framework, nodes, pods, created)
        again = judge_again(framework, nodes, pods, created, random.Random(f"{title} {created.metadata.name}"))
        self.outcome.reused += again.reused
        if chosen:
            self.outcome.placed += 1
        else:
            self.outcome.unschedulable += 1
        for verdict, how in ((ours, ""), (again, " by an earlier cycle")):
            difference = verdict.difference(chosen, words)
            if difference:
                self.outcome.differences.append(f"{title}, {created.metadata.name}{how}: {difference}")

    def _add_node(self, node: Json) -> None:
        self._client.create(
            NODES, {**node, "status": {**node["status"], "conditions": [{"type": "Ready", "status": "True"}]}}
        )

    def _wait_seen(self, name: str) -> None:
        """Until the stock scheduler has seen the last change of the last node: a pod for it alone is placed."""
        self._client.patch(NODES, name, None, {"metadata": {"labels": {_CANARY: "seen"}}})
        spec = {
            "containers": [{"name": "c", "image": "canary"}],
            "nodeSelector": {_CANARY: "seen"},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "priorityClassName": self.canary_class,
        }
        self._client.create(PODS, {"metadata": {"name": "canary"}, "spec": spec}, self._namespace)
        # Whether there is room for it does not matter: that it was judged by the label says that the node was seen.
        deadline = time.monotonic() + _DECISION_SECONDS
        while not self._seen(*self._decision("canary")):
            assert time.monotonic() < deadline, f"the stock scheduler did not see {name}"
            time.sleep(0.01)
        self._remove("canary")

    @staticmethod
    def _seen(chosen: str, words: str) -> bool:
        mismatched = _MISMATCH.search(words)
        return bool(chosen) or mismatched is None or mismatched["all"] != mismatched["some"]

    def _decision(self, name: str) -> tuple[str, str]:
        """(node, "") or ("", the stock scheduler's words)."""
        deadline = time.monotonic() + _DECISION_SECONDS
        while time.monotonic() < deadline:
            pod = self._client.get(PODS, name, self._namespace)
            if pod.spec.node_name:
                return pod.spec.node_name, ""
            for condition in pod.status.conditions:
                if condition.type == "PodScheduled" and condition.status == "False":
                    return "", condition.message
            time.sleep(0.004)
        raise AssertionError(f"the stock scheduler did not decide on {name} within {_DECISION_SECONDS:.0f} s")

    def _remove(self, name: str) -> None:
        self._client.delete(PODS, name, self._namespace, grace_period_seconds=0)

    def _clear(self) -> None:
        for pod in self._client.list(PODS, namespace=self._namespace).items:
            self._remove(pod.metadata.name)
        for node in self._client.list(NODES).items:
            self._client.delete(NODES, node.metadata.name)


def compare(plane: ControlPlane, seed: int, cases: int, probes: int) -> Outcome:
    """Run `cases` random clusters with `probes` pods each."""
    namespace = f"differential-{seed}"
    # Preemption is on by default and would only cost time: no pod here has a priority.
    with contextlib.closing(plane.client()) as client, plane.scheduler():
        client.create(NAMESPACES, {"metadata": {"name": namespace}})
        comparison = Comparison(client, namespace)
        for index in range(cases):
            draw = random.Random(seed * 10_000 + index)
            nodes = draw.randint(3, 30)
            # Where pods ask about other pods, no cycle is of use to the next.
            drawn = case(draw, nodes, draw.randint(0, 3 * nodes), probes, apart=index % 3 == 1)
            comparison.run(drawn, f"seed {seed} case {index}")
    return comparison.outcome


def main() -> int:
    """Run by hand: prints counts and differences."""
    # Only here: it builds on what stands above.
    from tests.cluster.preempting import compare_preemptions

    parser = argparse.ArgumentParser(prog="python -m tests.cluster.differential", description=__doc__)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--probes", type=int, default=40)
    parser.add_argument("--preemptions", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(np.random.default_rng().integers(1, 100_000)))
    chosen = parser.parse_args()
    reason = missing()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory(prefix="slacktide-cluster-") as directory,
        control_plane(Path(directory), throughput=True) as plane,
    ):
        outcome = compare(plane, chosen.seed, chosen.cases, chosen.probes)
        preemptions = compare_preemptions(plane, chosen.seed, chosen.preemptions)
    for difference in (*outcome.differences, *preemptions.differences):
        print(difference)
    total = outcome.placed + outcome.unschedulable
    print(
        f"seed {chosen.seed}: {total} pods judged, {outcome.placed} placed, {outcome.unschedulable} unschedulable,"
        f" {outcome.reused} by an earlier cycle, {len(outcome.differences)} differences"
    )
    print(
        f"seed {chosen.seed}: {chosen.preemptions} clusters, {preemptions.preempted} pods preempted"
        f" {preemptions.victims} others, {preemptions.hopeless} could not, {preemptions.placed} fitted,"
        f" {preemptions.ties} ties, {len(preemptions.differences)} differences"
    )
    return 1 if outcome.differences or preemptions.differences else 0


if __name__ == "__main__":
    sys.exit(main())
