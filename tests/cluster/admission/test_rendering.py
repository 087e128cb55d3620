"""What the values of the chart make of the admission policies."""

from __future__ import annotations

import json

import pytest

from tests.cluster.policies import rendered
from tests.deploy.tools import ToolsMissing


@pytest.fixture
def render():
    """Policies by kind and name, for values given as `--set-json`."""

    def made(version="1.36.0", apis=(), **values):
        flags = [flag for path, value in values.items() for flag in ("--set-json", f"{path}={json.dumps(value)}")]
        flags += [flag for one in apis for flag in ("--api-versions", one)]
        try:
            return {(one["kind"], one["metadata"]["name"]): one for one in rendered(*flags, version=version)}
        except ToolsMissing as error:
            pytest.skip(str(error))

    return made


ALL = {"slacktide-batch-pods", "slacktide-conversion", "slacktide-batch-namespaces", "slacktide-writers"}
AGENTS = {"slacktide-agents", "slacktide-agent-evictions", "slacktide-agent-victims"}


@pytest.mark.parametrize(
    ("value", "gone"),
    [("pods.enabled", {"slacktide-batch-pods"}), ("conversion.enabled", {"slacktide-conversion"}),
     ("conversion.required", {"slacktide-batch-namespaces"}), ("writers.enabled", {"slacktide-writers"}),
     ("agents.enabled", AGENTS), ("", set())],
)  # fmt: skip
def test_each_switch_takes_its_policies_with_their_bindings(render, value, gone):
    found = render(**({f"admission.{value}": False} if value else {}))
    for is_binding in (True, False):
        assert {name for kind, name in found if kind.endswith("Binding") is is_binding} == (ALL | AGENTS) - gone
    policies = {name for kind, name in found if not kind.endswith("Binding")}
    assert {one["spec"]["policyName"] for (kind, _), one in found.items() if kind.endswith("Binding")} == policies


BETA = "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"


@pytest.mark.parametrize(
    ("version", "apis", "chosen", "served"),
    [("1.36.0", (), "", "v1"), ("1.37.2-gke.1", (), "", "v1"), ("1.34.0", (BETA,), "", "v1beta1"),
     ("1.33.0", (), "", None), ("1.35.0", (), "", None), ("1.35.0", (), "v1beta1", "v1beta1")],
)  # fmt: skip
def test_the_conversion_is_of_the_version_that_the_api_server_serves(render, version, apis, chosen, served):
    found = render(version, apis, **{"admission.conversion.apiVersion": chosen})
    versions = {one["apiVersion"] for (kind, _), one in found.items() if kind.startswith("Mutating")}
    assert versions == (set() if served is None else {f"admissionregistration.k8s.io/{served}"})
    assert {name for kind, name in found if kind.startswith("Validating")} == (ALL | AGENTS) - {"slacktide-conversion"}


def text(found, name):
    return "".join(json.dumps(one) for (_, called), one in found.items() if called == name)


def test_names_of_the_operator_reach_the_expressions(render):
    found = render(
        **{
            "resourceNames": {"cpu": "example.com/cpu", "memory": "example.com/memory"},
            "priorityClass.name": "mine",
            "scheduler.name": "ours",
            "admission.conversion.keptPriorityClasses": ["night", "day"],
            "admission.writers.users": ["alice@example.com"],
        }
    )
    conversion = text(found, "slacktide-conversion")
    assert "in ['mine', 'night', 'day']" in conversion
    assert "value: 'ours'" in conversion
    assert "'alice@example.com'" in text(found, "slacktide-writers")
    for name in ("slacktide-batch-pods", "slacktide-writers", "slacktide-conversion"):
        assert "example.com/cpu" in text(found, name)
        assert "kubernetes.io/batch" not in text(found, name)


@pytest.mark.parametrize(
    ("values", "name"),
    [({"scheduler.enabled": False}, None),
     ({"scheduler.enabled": False, "admission.conversion.schedulerName": "x"}, "x"),
     ({"admission.conversion.schedulerName": "x"}, "x"), ({}, "slacktide-scheduler")],
)  # fmt: skip
def test_no_pod_is_given_a_scheduler_that_does_not_run(render, values, name):
    found = text(render(**values), "slacktide-conversion")
    assert ("/spec/schedulerName" in found) is (name is not None)
    assert name is None or f"value: '{name}'" in found


def test_a_name_that_would_end_an_expression_is_refused(render):
    with pytest.raises(AssertionError, match="writers"):
        render(**{"admission.writers.users": ["' || true || '"]})
