"""Files of `kubectl get -o json`: what is read of them, and what is said of those that are none."""

from __future__ import annotations

import json

import pytest

from scheduler_plugins.dump import DumpError, read_dump

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d"}}
BUDGET = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}}


def read(tmp_path, *documents):
    paths = []
    for i, document in enumerate(documents):
        paths.append(str(tmp_path / f"{i}.json"))
        (tmp_path / f"{i}.json").write_text(json.dumps(document))
    return read_dump(paths)


def bare(item):
    return {key: value for key, value in item.items() if key not in {"apiVersion", "kind"}}


def test_lists_and_single_objects_are_put_together(tmp_path):
    dump = read(tmp_path, {"apiVersion": "v1", "kind": "List", "items": [NODE, BUDGET]}, POD)
    assert [one.metadata.name for one in dump.nodes] == ["n"]
    assert [one.metadata.name for one in dump.pods] == ["p"]
    assert [(one.api_version, one.kind, one.where) for one in dump.rest] == [
        ("policy/v1", "PodDisruptionBudget", f"{tmp_path}/0.json: item 1")
    ]
    assert dump.others == 1


def test_lists_of_one_kind_name_it_once(tmp_path):
    budgets = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudgetList", "items": [bare(BUDGET)]}
    dump = read(tmp_path, {"apiVersion": "v1", "kind": "PodList", "items": [bare(POD)]}, budgets)
    assert len(dump.pods) == 1
    assert [(one.api_version, one.kind) for one in dump.rest] == [("policy/v1", "PodDisruptionBudget")]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "not the JSON that kubectl get -o json writes"),
        ({"kind": "List", "items": [7]}, "item 0"),
        ({"kind": "List", "items": [{"kind": "Pod", "metadata": "x"}]}, "item 0 (Pod)"),
    ],
)
def test_what_is_no_dump_is_named_with_its_place(tmp_path, document, words):
    with pytest.raises(DumpError) as error:
        read(tmp_path, document)
    assert words in str(error.value)
    assert "0.json" in str(error.value)


def test_file_that_is_not_there(tmp_path):
    with pytest.raises(DumpError, match="No such file"):
        read_dump([str(tmp_path / "none.json")])
