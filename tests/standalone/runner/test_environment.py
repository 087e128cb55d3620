from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.errors import ManifestError
from standalone.runner.environment import command_line, environment, expand
from tests.standalone.runner.twin import pod_dict, pod_view


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(NO)", "$(NO)"),
        ("$A $ $", "$A $ $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("$$", "$"),
        ("a$$b", "a$b"),
    ],
)
def test_references_as_kubernetes_expands_them(text, result):
    assert expand(text, {"A": "1", "B": "2"}) == result


@given(st.text())
def test_doubling_dollars_protects_any_text(text):
    assert expand(text.replace("$", "$$"), {"A": "1"}) == text


def built(env, inherited=None, **container):
    pod = pod_dict()
    pod["metadata"]["labels"] = {"app": "x"}
    pod["spec"]["containers"][0] |= {"env": env, **container}
    view = pod_view(pod)
    return view, environment(view, view.spec.containers[0], "id1", inherited or {}, "10.0.0.1")


def test_only_what_an_image_would_bring_is_inherited():
    _, values = built([], {"PATH": "/p", "SECRET": "s", "HOME": "/h"})
    assert values == {"PATH": "/p", "HOME": "/h", "HOSTNAME": "web", "SLACKTIDE_CONTAINER": "id1"}


def test_a_path_is_always_there():
    assert built([])[1]["PATH"].endswith(":/bin")


def test_variables_refer_to_earlier_ones_and_arguments_to_all():
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)2$(C)"}, {"name": "C", "value": "3"}]
    pod, values = built(env, command=["run", "$(B)"], args=["$(C)"])
    assert values["B"] == "12$(C)"
    assert command_line(pod.spec.containers[0], values) == ["run", "12$(C)", "3"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "default"),
        ("spec.nodeName", "n1"),
        ("status.hostIP", "10.0.0.1"),
        ("metadata.labels['app']", "x"),
        ("metadata.labels['none']", ""),
    ],
)
def test_field_references(path, value):
    assert built([{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}])[1]["V"] == value


@pytest.mark.parametrize(
    "source", [{"fieldRef": {"fieldPath": "spec.nope"}}, {"secretKeyRef": {"name": "s", "key": "k"}}, {}]
)
def test_what_cannot_be_served_is_an_error_with_the_place(source):
    with pytest.raises(ManifestError, match=r"container main"):
        built([{"name": "V", "valueFrom": source}])
