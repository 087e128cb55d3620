"""Our plugins against the stock kube-scheduler, on the same random clusters.

Each probe pod is judged by the stock scheduler of a real control plane, then taken away; ours judges the same cluster
from the objects as the API server holds them. A probe that one places and the other calls unschedulable is a failure;
so is a stock choice that ours filters out, or that does not score best here (clusters are small enough for the stock
scheduler to judge every node).

`python -m tests.cluster.differential [--cases N] [--probes N] [--seed N]` prints counts and every difference.
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

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.diagnosis import Diagnosis
from scheduler_plugins.framework.pod_info import PodReader
from scheduler_plugins.framework.runtime import Framework
from scheduler_plugins.framework.state import CycleState
from slacktide.cluster import NAMESPACES, NODES, PODS, Client
from slacktide.objects import Node, Pod
from slacktide.settings import ResourceNames
from tests.cluster.harness import ControlPlane, control_plane, missing
from tests.cluster.random_cases import Case, Json, case
from tests.cluster.stock_profile import stock_framework
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
    differences: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """What ours says of a probe: total score by feasible node, or why there is none."""

    totals: dict[str, int]
    message: str
    table: dict[str, dict[str, int]] = field(default_factory=dict)


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
    names = [snapshot.names[row] for row in table.rows]
    by_plugin = {plugin: dict(zip(names, scores.tolist(), strict=True)) for plugin, scores in table.by_plugin.items()}
    return Verdict(dict(zip(names, table.totals.tolist(), strict=True)), "", by_plugin)


class Comparison:
    """One namespace of one control plane, with the stock scheduler running."""

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
            framework = stock_framework(list(self._client.list(NAMESPACES).items))
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
        where = f"{title}, {created.metadata.name}"
        if not chosen:
            self.outcome.unschedulable += 1
            if ours.totals:
                self.outcome.differences.append(f"{where}: stock: {words}; ours fits {sorted(ours.totals)}")
            return
        self.outcome.placed += 1
        if chosen not in ours.totals:
            self.outcome.differences.append(f"{where}: stock: {chosen}; ours: {ours.message or sorted(ours.totals)}")
        elif ours.totals[chosen] < max(ours.totals.values()):
            best = max(ours.totals, key=lambda name: ours.totals[name])
            parts = {plugin: (scores[chosen], scores[best]) for plugin, scores in ours.table.items()}
            self.outcome.differences.append(f"{where}: stock: {chosen}; ours prefers {best} (chosen, best): {parts}")

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
            comparison.run(case(draw, nodes, draw.randint(0, 3 * nodes), probes), f"seed {seed} case {index}")
    return comparison.outcome


def main() -> int:
    """Run by hand: prints counts and differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.differential", description=__doc__)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--probes", type=int, default=40)
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
    for difference in outcome.differences:
        print(difference)
    total = outcome.placed + outcome.unschedulable
    print(
        f"seed {chosen.seed}: {total} pods judged, {outcome.placed} placed, {outcome.unschedulable} unschedulable,"
        f" {len(outcome.differences)} differences"
    )
    return 1 if outcome.differences else 0


if __name__ == "__main__":
    sys.exit(main())
