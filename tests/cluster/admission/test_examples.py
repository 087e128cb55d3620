"""docs/examples/ as people apply them: controllers make pods, the policies convert those, our scheduler places them."""

from __future__ import annotations

import contextlib
import time

import pytest
import yaml
from msgspec.structs import replace

from benchmarks.scheduler import node_body
from cli.converting import Rules, convert
from slacktide import names
from slacktide.forecast import decode, encode
from slacktide.names import BATCH_CPU, BATCH_MEMORY
from tests.cluster.admission.bodies import DRY, account, asked_of, both, pods
from tests.cluster.harness import ROOT
from tests.cluster.policies import until

EXAMPLES = {path.name: path for path in sorted((ROOT / "docs" / "examples").glob("*.yaml"))}
PLURALS = {
    "Namespace": ("/api/v1", "namespaces"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "Job": ("/apis/batch/v1", "jobs"),
    "CronJob": ("/apis/batch/v1", "cronjobs"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
}
CONTROLLERS = "job-controller,deployment-controller,replicaset-controller"
GI = 1 << 30

# Pods by application: how many, and what each container asks for.
BATCH_PODS = {
    "nightly-report": (1, [both(**{BATCH_CPU: "1000", BATCH_MEMORY: str(GI)})]),
    "report-executors": (6, [both(**{BATCH_CPU: "250", BATCH_MEMORY: str(GI // 2)}),
                             both(**{BATCH_CPU: "1500", BATCH_MEMORY: str(4 * GI)})]),
    "mpi": (4, [both(**{BATCH_CPU: "2000", BATCH_MEMORY: str(2 * GI)})]),
    "finetune": (1, [both(**{BATCH_CPU: "4000", BATCH_MEMORY: str(8 * GI), "nvidia.com/gpu": "1"})]),
}  # fmt: skip
NAMESPACES = ("reports", "simulation", "training")


def documents(name):
    return list(yaml.safe_load_all(EXAMPLES[name].read_text()))


def create(api, body):
    prefix, plural = PLURALS[body["kind"]]
    space = body["metadata"].get("namespace")
    api.do("POST", f"{prefix}/namespaces/{space}/{plural}" if space else f"{prefix}/{plural}", body)
    if body["kind"] == "CronJob":
        # Its time comes when its time comes: as `kubectl create job --from` makes one of it.
        job = {"metadata": {"name": body["metadata"]["name"]}, "spec": body["spec"]["jobTemplate"]["spec"]}
        api.do("POST", f"{prefix}/namespaces/{space}/jobs", job)


@pytest.fixture(scope="module")
def running(api):
    """All examples applied, with the controllers that make pods of them and our scheduler."""
    predictor = {"user": account("predictor")}
    made = []
    try:
        for index in range(2):
            body = node_body(index, time.time())
            for side in ("capacity", "allocatable"):
                body["status"][side] = {**body["status"][side], "nvidia.com/gpu": "1"}
            notes = body["metadata"]["annotations"]
            forecast = replace(decode(notes[names.FORECAST_ANNOTATION]), horizon_seconds=3600)
            notes[names.FORECAST_ANNOTATION] = encode(forecast)
            made.append(api.do("POST", "/api/v1/nodes", body, **predictor)["metadata"]["name"])
        with contextlib.ExitStack() as stack:
            stack.enter_context(api.plane.controllers(CONTROLLERS))
            stack.enter_context(api.plane.slacktide("scheduler_plugins"))
            for name in EXAMPLES:
                for body in documents(name):
                    create(api, body)
            yield
    finally:
        for name in made:
            api.do("DELETE", f"/api/v1/nodes/{name}")


def of(api, namespace, app):
    return api.do("GET", f"{pods(namespace)}?labelSelector=app%3D{app}")["items"]


def everywhere(api, app):
    return [one for namespace in NAMESPACES for one in of(api, namespace, app)]


@pytest.mark.parametrize("app", BATCH_PODS)
def test_best_effort_examples_become_batch_pods_and_are_placed(api, running, app):
    count, asked = BATCH_PODS[app]
    found = until(lambda: (every := everywhere(api, app)) and len(every) == count and every, f"{count} pods of {app}")
    for one in found:
        assert asked_of(one) == asked
        assert one["spec"]["schedulerName"] == names.SCHEDULER_NAME
        assert one["spec"]["priorityClassName"] == names.PRIORITY_CLASS
    until(lambda: all(one["spec"].get("nodeName") for one in everywhere(api, app)), f"place for {app}", 60.0)


def test_the_online_example_stays_as_it_is(api, running):
    found = until(lambda: (every := of(api, "shop", "web")) and len(every) == 2 and every, "2 pods of web")
    for one in found:
        assert asked_of(one) == [{"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}]
        assert one["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_command_makes_the_same_of_them_for_other_namespaces(api, name):
    for body in documents(name):
        if body["kind"] not in {"Job", "Deployment", "CronJob"}:
            continue
        template = convert(body, Rules()).manifest["spec"]
        template = template.get("jobTemplate", {}).get("spec", template)["template"]
        said = api.do("POST", pods("plain") + DRY, {**template, "metadata": {**template["metadata"], "name": "x"}})
        app = said["metadata"]["labels"]["app"]
        assert app == "web" or asked_of(said) == BATCH_PODS[app][1]


def test_every_example_is_here_and_named_on_the_page():
    page = (ROOT / "docs" / "admission.md").read_text()
    assert {"nightly-report.yaml", "web.yaml", "gang.yaml", "gpu.yaml"} == set(EXAMPLES)
    assert all(f"(examples/{name})" in page for name in EXAMPLES)
