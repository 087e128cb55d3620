"""How fast pods are placed: our scheduler alone at several sizes, and beside the stock one on the same API server.

Alone: the real cycle, queue, cache and binding code in this process, with an API that agrees at once; every node counts
for every pod, those that did not change since a pod like it by the earlier verdict. Beside the stock scheduler: a real
etcd and API server (`tests/cluster`), thousands of nodes that offer batch resources, pods that ask for them created
before each scheduler starts, and the time from the first to the last binding that a watch shows. API server, etcd and
scheduler share the machine, as in both runs.

    pods_per_second_N           ours at N nodes against the API server
    stock_pods_per_second_N     the stock kube-scheduler, likewise
    ratio_N                     the one by the other
    cycle_ms_p50_N, cycle_ms_p99_N   one cycle of ours, alone
    alone_pods_per_second_N     pods through the cycle and the binding code, alone
    rss_mib_N                   ours with N nodes, alone: what they add to the process

Quality: the same mixed arrivals on 100 uneven nodes, placed by each scheduler against the API server, then looked at by
`placement-check`:

    fullest_percent_WHO         share of batch CPU sold on the fullest node, by ours and by stock
    best_percent_WHO            the least that the fullest node could have, a bound unless `best_is_exact_WHO`
    deviation_percent_WHO       standard deviation of that share over the nodes
    oversold_nodes_WHO          nodes on which more is sold than their forecast leaves
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psutil

from benchmarks.report import emit, parser
from scheduler_plugins.placement.read import check_framework, problem_of
from scheduler_plugins.placement.solve import even
from slacktide import names
from slacktide.cluster import NAMESPACES, NODES, PODS, Client, Informer
from slacktide.errors import SlacktideError
from slacktide.forecast import Amount, Forecast, Terms, decode, encode
from slacktide.objects import Node, Pod
from slacktide.settings import ResourceNames
from tests.cluster.harness import ControlPlane, control_plane, missing
from tests.scheduler_plugins.rig import Rig
from tests.scheduler_plugins.twin import Api

STOCK: Final = "default-scheduler"
_ZONES: Final = 5
_CORES: Final = 32
_BATCH_MILLIS: Final = 20_000
_WRITERS: Final = 16
_WAIT_SECONDS: Final = 180.0
_WARM: Final = 20


def node_body(index: int, now: float) -> dict[str, Any]:
    """A node of 32 cores that offers 20 of them to batch work by a fresh forecast."""
    name = f"node-{index:05}"
    offered = {
        "cpu": str(_CORES),
        "memory": "128Gi",
        "pods": "110",
        names.BATCH_CPU: str(_BATCH_MILLIS),
        names.BATCH_MEMORY: str(64 << 30),
    }
    nothing = Amount()
    capacity = Amount(cpu_millis=1000 * _CORES, memory_bytes=128 << 30)
    forecast = Forecast(
        at=now,
        ttl_seconds=3600,
        peak=Amount(cpu_millis=8000, memory_bytes=32 << 30),
        reclaimable=Amount(cpu_millis=_BATCH_MILLIS, memory_bytes=64 << 30),
        terms=Terms(capacity=capacity, reserve=nothing, peak=nothing, now=nothing, sold=nothing),
    )
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{index % _ZONES}"}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": {names.FORECAST_ANNOTATION: encode(forecast)}},
        "status": {
            "capacity": offered,
            "allocatable": offered,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod_body(index: int, scheduler: str, cpu: int = 1000) -> dict[str, Any]:
    """A pod that asks for `cpu` millicores and 2 GiB of the batch resources."""
    asked = {names.BATCH_CPU: str(cpu), names.BATCH_MEMORY: "2Gi"}
    return {
        "metadata": {"name": f"pod-{index:05}", "labels": {"app": f"app-{index % 20}", names.TIER_LABEL: "be"}},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": asked, "limits": asked}}],
        },
    }


def all_at_once(count: int, work: Callable[[int], object]) -> None:
    """Call `work` for each index on some threads."""
    with concurrent.futures.ThreadPoolExecutor(_WRITERS) as pool:
        for _ in pool.map(work, range(count)):
            pass


class Bindings:
    """Watches the pods of a namespace, and keeps when each was first seen on a node."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._seen: dict[str, float] = {}
        self._news = threading.Condition()
        self._informer = Informer(
            client,
            PODS,
            field_selector=f"metadata.namespace={namespace}",
            on_add=self._look,
            on_update=lambda _old, new: self._look(new),
            name="bindings",
        )
        self._informer.start()
        if not self._informer.wait_synced(_WAIT_SECONDS):
            raise SlacktideError("the pods could not be listed")

    def _look(self, pod: Pod) -> None:
        if pod.spec.node_name and pod.metadata.name not in self._seen:
            with self._news:
                self._seen[pod.metadata.name] = time.monotonic()
                self._news.notify_all()

    def wait(self, count: int) -> float:
        """Pods per second between the first and the last of `count` bindings. Raises SlacktideError."""
        with self._news:
            if not self._news.wait_for(lambda: len(self._seen) >= count, _WAIT_SECONDS):
                raise SlacktideError(f"only {len(self._seen)} of {count} pods were bound in {_WAIT_SECONDS:.0f} s")
        times = sorted(self._seen.values())
        return (count - 1) / (times[-1] - times[0])

    def close(self) -> None:
        """End the watch."""
        self._informer.stop()


def beside_stock(nodes: int, pods: int, rounds: int) -> dict[str, Any]:
    """Both schedulers in turn, `rounds` times, on one API server; the median of each."""
    with (
        tempfile.TemporaryDirectory(prefix="slacktide-benchmark-") as directory,
        control_plane(Path(directory), throughput=True) as plane,
        contextlib.closing(plane.client()) as client,
    ):
        now = time.time()
        all_at_once(nodes, lambda index: client.create(NODES, node_body(index, now)))
        rates: dict[str, list[float]] = {"ours": [], "stock": []}
        for turn in range(rounds):
            for name, scheduler in (("stock", STOCK), ("ours", names.SCHEDULER_NAME)):
                bodies = [pod_body(index, scheduler) for index in range(pods)]
                running = plane.scheduler() if name == "stock" else plane.slacktide("scheduler_plugins")
                rates[name].append(_one_run(plane, client, f"{name}-{turn}", bodies, running)[0])
        middle = {name: sorted(values)[len(values) // 2] for name, values in rates.items()}
        return {
            f"pods_per_second_{nodes}": middle["ours"],
            f"stock_pods_per_second_{nodes}": middle["stock"],
            f"ratio_{nodes}": middle["ours"] / middle["stock"],
            "rates": rates,
        }


def _one_run(
    plane: ControlPlane,
    client: Client,
    namespace: str,
    bodies: list[dict[str, Any]],
    running: contextlib.AbstractContextManager[object],
) -> tuple[float, list[Pod]]:
    """(pods per second, the pods as they were placed); the namespace is empty again afterwards."""
    client.create(NAMESPACES, {"metadata": {"name": namespace}})
    all_at_once(len(bodies), lambda index: client.create(PODS, bodies[index], namespace))
    with contextlib.closing(plane.client()) as watching:
        bindings = Bindings(watching, namespace)
        try:
            with running:
                rate = bindings.wait(len(bodies))
        finally:
            bindings.close()
    placed = list(client.list(PODS, namespace=namespace).items)
    all_at_once(
        len(placed), lambda index: client.delete(PODS, placed[index].metadata.name, namespace, grace_period_seconds=0)
    )
    return rate, placed


def mixed_node(index: int, now: float, draw: random.Random) -> dict[str, Any]:
    """A node whose forecast leaves it 4 to 24 cores, half of them bound to be published as allocatable too late."""
    body = node_body(index, now)
    reclaimable = draw.randint(4, 24) * 1000
    text = body["metadata"]["annotations"][names.FORECAST_ANNOTATION]
    forecast = msgspec.structs.replace(decode(text), reclaimable=Amount(cpu_millis=reclaimable, memory_bytes=96 << 30))
    body["metadata"]["annotations"][names.FORECAST_ANNOTATION] = encode(forecast)
    # What a kubelet shows may be older than the forecast, and higher.
    shown = reclaimable + draw.choice([0, 2000])
    for part in ("capacity", "allocatable"):
        body["status"][part] = {**body["status"][part], names.BATCH_CPU: str(shown), names.BATCH_MEMORY: str(96 << 30)}
    return body


def quality(nodes: int, seed: int) -> dict[str, Any]:
    """Both schedulers place the same arrivals, one after the other; how good each placement is."""
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="slacktide-benchmark-") as directory,
        control_plane(Path(directory), throughput=True) as plane,
        contextlib.closing(plane.client()) as client,
    ):
        draw, now = random.Random(seed), time.time()
        made = [client.create(NODES, mixed_node(index, now, draw)) for index in range(nodes)]
        room = sum(
            decode(node.metadata.annotations[names.FORECAST_ANNOTATION]).reclaimable.cpu_millis or 0 for node in made
        )
        sizes: list[int] = []
        while sum(sizes) < 0.7 * room:
            sizes.append(draw.choice([250, 500, 1000, 2000, 3000]))
        for name, scheduler in (("stock", STOCK), ("ours", names.SCHEDULER_NAME)):
            bodies = [pod_body(index, scheduler, cpu=size) for index, size in enumerate(sizes)]
            running = plane.scheduler() if name == "stock" else plane.slacktide("scheduler_plugins")
            _, pods = _one_run(plane, client, name, bodies, running)
            found[name] = _judged(made, pods, now)
    return found


def _judged(nodes: list[Node], pods: list[Pod], now: float) -> dict[str, Any]:
    problem = problem_of(nodes, pods, lambda _pod: True, check_framework(), ResourceNames(), (), now)
    best = even(problem, names.BATCH_CPU)
    index = list(problem.resources).index(names.BATCH_CPU)
    share = problem.used(problem.now())[:, index] / np.maximum(problem.capacity[:, index], 1)
    return {
        "fullest_percent": 100 * float(share.max()),
        "best_percent": 100 * best.value,
        "best_is_exact": best.exact,
        "deviation_percent": 100 * float(share.std()),
        "oversold_nodes": int(np.count_nonzero(share > 1)),
        "pods": len(pods),
    }


def alone(nodes: int, pods: int) -> dict[str, float]:
    """Our cycle and binding code over an API in memory; times in ms, memory in MiB beyond what was there before."""
    process = psutil.Process()
    before = process.memory_info().rss
    server, now = Api(), 50_000.0
    for index in range(nodes):
        server.put_node(msgspec.convert(node_body(index, now), Node))
    rig = Rig(server, bind_now=False)
    gc.collect()
    gc.freeze()
    cycles, bindings = [], []
    for index in range(pods + _WARM):
        body = pod_body(index, names.SCHEDULER_NAME)
        body["metadata"].update(namespace="default", uid=f"uid-{index}")
        server.put(msgspec.convert(body, Pod))
        start = time.perf_counter()
        rig.scheduler.attempt(0)
        middle = time.perf_counter()
        rig.run_bindings()
        if index >= _WARM:
            cycles.append(1000 * (middle - start))
            bindings.append(1000 * (time.perf_counter() - middle))
        if not server.pods["default", f"pod-{index:05}"].spec.node_name:
            raise SlacktideError(f"pod {index} was not placed: {rig.condition(f'pod-{index:05}')}")
    return {
        "cycle_ms_p50": float(np.quantile(cycles, 0.5)),
        "cycle_ms_p99": float(np.quantile(cycles, 0.99)),
        "binding_ms_p50": float(np.quantile(bindings, 0.5)),
        "pods_per_second": 1000 * len(cycles) / (sum(cycles) + sum(bindings)),
        "rss_mib": (process.memory_info().rss - before) / 2**20,
    }


def _apart(nodes: int, pods: int) -> dict[str, float]:
    """`alone` in a process of its own, so that memory is that of one size."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(alone, nodes, pods).result()


def table(results: dict[str, Any], sizes: list[int]) -> list[list[str]]:
    """Rows for people."""
    keys = ("cycle_ms_p50", "cycle_ms_p99", "binding_ms_p50", "pods_per_second", "rss_mib")
    rows = [
        ["nodes", "cycle p50 ms", "cycle p99 ms", "binding ms", "pods/s alone", "RSS MiB", "pods/s", "stock", "ratio"]
    ]
    for size in sizes:
        measured = results["alone"].get(str(size), {})
        figures = [f"{measured[key]:.2f}" if measured else "" for key in keys]
        beside = [results.get(f"{key}_{size}") for key in ("pods_per_second", "stock_pods_per_second", "ratio")]
        rows.append([str(size), *figures, *("" if value is None else f"{value:.2f}" for value in beside)])
    return rows


def main() -> int:
    """Run the benchmark."""
    arguments = parser("scheduler", __doc__)
    arguments.add_argument(
        "--sizes", type=int, nargs="*", help="numbers of nodes, alone (default: 100 1000 5000 20000)"
    )
    arguments.add_argument("--beside", type=int, nargs="*", help="sizes beside the stock scheduler (default: 5000)")
    arguments.add_argument("--pods", type=int, help="pods a run (default: 2000)")
    arguments.add_argument("--rounds", type=int, help="runs of each scheduler (default: 3)")
    chosen = arguments.parse_args()
    sizes = chosen.sizes if chosen.sizes is not None else [100, 300] if chosen.quick else [100, 1000, 5000, 20000]
    besides = chosen.beside if chosen.beside is not None else [100] if chosen.quick else [5000]
    pods = chosen.pods or (200 if chosen.quick else 2000)
    rounds = chosen.rounds or (1 if chosen.quick else 3)
    results: dict[str, Any] = {"alone": {str(size): _apart(size, min(pods, 10 * size)) for size in sizes}}
    for size in sizes:
        results |= {
            f"{key}_{size}": results["alone"][str(size)][key] for key in ("cycle_ms_p50", "cycle_ms_p99", "rss_mib")
        }
    reason = missing()
    if reason is not None:
        print(f"not beside the stock scheduler: {reason}", file=sys.stderr)
    else:
        for size in besides:
            results |= beside_stock(size, pods, rounds)
        placed = quality(20 if chosen.quick else 100, seed=7)
        results |= {f"{figure}_{who}": value for who, found in placed.items() for figure, value in found.items()}
    emit("scheduler", results, chosen.output, rows=table(results, sorted({*sizes, *besides})), save=chosen.save)
    if chosen.output == "table":
        for figure in ("fullest_percent", "best_percent", "deviation_percent", "oversold_nodes"):
            both = {
                who: round(results[f"{figure}_{who}"], 1) for who in ("ours", "stock") if f"{figure}_{who}" in results
            }
            print(figure, both)
    return 0


if __name__ == "__main__":
    sys.exit(main())
