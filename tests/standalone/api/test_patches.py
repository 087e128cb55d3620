from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standalone.api.patches import PatchConflict, PatchError, json_patch, merge, strategic


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_as_the_rfc_shows(target, patch, result):
    assert merge(target, patch) == result


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [  # RFC 6902, appendix A
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
        ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
        ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        (
            {"foo": ["all", "grass", "cows", "eat"]},
            [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
            {"foo": ["all", "cows", "eat", "grass"]},
        ),
        ({"baz": "qux"}, [{"op": "test", "path": "/baz", "value": "qux"}], {"baz": "qux"}),
        ({"foo": "bar"}, [{"op": "add", "path": "/child", "value": {"a": {}}}], {"foo": "bar", "child": {"a": {}}}),
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}], {"foo": "bar", "baz": "qux"}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc"]}], {"foo": ["bar", ["abc"]]}),
        ({"a": 1}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": 1, "b": 1}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
        ({"a": None}, [{"op": "test", "path": "/a", "value": None}], {"a": None}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], {"a": 1}),
    ],
)
def test_json_patch_as_the_rfc_shows(target, operations, result):
    before = copy.deepcopy(target)
    assert json_patch(target, operations) == result
    assert target == before


@pytest.mark.parametrize(
    "operations",
    [
        [{"op": "test", "path": "/baz", "value": "bar"}],
        [{"op": "test", "path": "/one", "value": True}],
        [{"op": "add", "path": "/no/b", "value": 1}],
        [{"op": "remove", "path": "/no"}],
        [{"op": "replace", "path": "/no", "value": 1}],
        [{"op": "add", "path": "/list/3", "value": 1}],
        [{"op": "add", "path": "/list/01", "value": 1}],
        [{"op": "remove", "path": "/list/-"}],
    ],
)
def test_json_patch_that_does_not_fit(operations):
    with pytest.raises(PatchConflict):
        json_patch({"baz": "qux", "one": 1, "list": [1, 2]}, operations)


@pytest.mark.parametrize(
    "operations",
    [
        {},
        ["x"],
        [{}],
        [{"op": "add", "path": "/a"}],
        [{"op": "fly", "path": "/a"}],
        [{"op": "add", "path": "a", "value": 1}],
        [{"op": "move", "from": "/a", "path": "/a/b"}],
        [{"op": "move", "path": "/a"}],
    ],
)
def test_json_patch_that_cannot_be_read(operations):
    with pytest.raises(PatchError):
        json_patch({"a": {"b": 1}}, operations)


POD = {
    "metadata": {"finalizers": ["a", "b"], "labels": {"x": "1", "y": "2"}},
    "spec": {
        "containers": [
            {
                "name": "a",
                "image": "1",
                "env": [{"name": "E", "value": "1"}],
                "args": ["x"],
                "ports": [{"containerPort": 1}],
            },
            {"name": "b", "image": "2"},
        ],
        "tolerations": [{"key": "k"}],
    },
    "status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Mine", "status": "True"}]},
}


def after(patch):
    before = copy.deepcopy(POD)
    result = strategic(POD, patch)
    assert before == POD
    return result


def test_strategic_merges_containers_by_name():
    result = after({"spec": {"containers": [{"name": "b", "image": "3"}, {"name": "c", "image": "4"}]}})
    assert [(c["name"], c["image"]) for c in result["spec"]["containers"]] == [("a", "1"), ("b", "3"), ("c", "4")]
    assert result["spec"]["containers"][0] == POD["spec"]["containers"][0]


def test_strategic_merges_lists_inside_of_a_container():
    patch = {
        "name": "a",
        "env": [{"name": "F", "value": "2"}],
        "args": ["y"],
        "ports": [{"containerPort": 1, "name": "p"}],
    }
    found = after({"spec": {"containers": [patch]}})["spec"]["containers"][0]
    assert [e["name"] for e in found["env"]] == ["E", "F"]
    assert found["args"] == ["y"]
    assert found["ports"] == [{"containerPort": 1, "name": "p"}]


def test_strategic_merges_conditions_by_type():
    result = after({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    assert result["status"]["conditions"] == [{"type": "Ready", "status": "True"}, {"type": "Mine", "status": "True"}]


def test_strategic_replaces_lists_without_a_merge_key():
    assert after({"spec": {"tolerations": [{"key": "z"}]}})["spec"]["tolerations"] == [{"key": "z"}]


def test_strategic_directives():
    assert [
        c["name"] for c in after({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}})["spec"]["containers"]
    ] == ["b"]
    assert after({"spec": {"containers": [{"$patch": "replace"}, {"name": "n"}]}})["spec"]["containers"] == [
        {"name": "n"}
    ]
    assert after({"metadata": {"labels": {"$patch": "replace", "z": "3"}}})["metadata"]["labels"] == {"z": "3"}
    assert "labels" not in after({"metadata": {"labels": {"$patch": "delete"}}})["metadata"]
    assert after({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}})["metadata"]["finalizers"] == ["b"]
    assert after({"metadata": {"finalizers": ["b", "c"]}})["metadata"]["finalizers"] == ["a", "b", "c"]
    assert after({"metadata": {"labels": {"$retainKeys": ["x"], "x": "9"}}})["metadata"]["labels"] == {"x": "9"}
    assert after({"metadata": {"labels": None}})["metadata"].keys() == {"finalizers"}
    with pytest.raises(PatchError):
        after({"metadata": {"$patch": "explode"}})


def test_strategic_order_and_missing_key():
    order = {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "image": "5"}]}
    found = after({"spec": order})["spec"]
    assert [(c["name"], c["image"]) for c in found["containers"]] == [("b", "2"), ("a", "5")]
    assert not [key for key in found if key.startswith("$")]
    with pytest.raises(PatchError, match=r"spec.containers: .*name"):
        after({"spec": {"containers": [{"image": "5"}]}})


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=1), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain, plain)
def test_merge_holds_what_the_patch_says_and_is_stable(target, patch):
    once = merge(target, patch)
    assert merge(once, patch) == once


@given(
    st.dictionaries(st.text("abc", min_size=1), plain, max_size=3),
    st.dictionaries(st.text("abc", min_size=1), plain, max_size=3),
)
def test_strategic_is_merge_where_no_list_has_a_key(target, patch):
    assert strategic(target, patch) == merge(target, patch)
