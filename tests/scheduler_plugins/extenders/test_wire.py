"""Wire format of extenders: names as in Go, peers that write other cases, bodies that are no messages."""

import json
from typing import Any

import msgspec
import pytest

from scheduler_plugins.extenders import wire
from slacktide.objects import ObjectMeta, Pod

_POD = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u1"))


def _json(message: Any) -> Any:
    return json.loads(wire.encode(message))


def test_a_question_has_the_names_of_go_and_writes_null_for_what_is_not_sent() -> None:
    # kube-scheduling.md 2.1 [T]: field names are exactly as in Go.
    body = _json(wire.ExtenderArgs(pod=_POD, node_names=["a", "b"]))
    assert list(body) == ["Pod", "Nodes", "NodeNames"]
    assert body["Nodes"] is None
    assert body["NodeNames"] == ["a", "b"]
    assert body["Pod"]["metadata"] == {"name": "p", "namespace": "ns", "uid": "u1"}


@pytest.mark.parametrize(
    ("message", "names"),
    [
        (
            wire.ExtenderFilterResult(),
            ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"],
        ),
        (wire.HostPriority(host="a", score=3), ["Host", "Score"]),
        (wire.ExtenderBindingArgs(), ["PodName", "PodNamespace", "PodUID", "Node"]),
        (wire.ExtenderBindingResult(), ["Error"]),
        (wire.ExtenderPreemptionArgs(), ["Pod", "NodeNameToVictims", "NodeNameToMetaVictims"]),
        (wire.ExtenderPreemptionResult(), ["NodeNameToMetaVictims"]),
        (wire.WireVictims(), ["Pods", "NumPDBViolations"]),
        (wire.WireMetaVictims(), ["Pods", "NumPDBViolations"]),
        (wire.MetaPod(), ["UID"]),
    ],
)
def test_every_message_has_the_names_of_go(message: wire.Message, names: list[str]) -> None:
    assert list(_json(message)) == names


@pytest.mark.parametrize("change", [str, str.lower, str.upper])
def test_names_in_another_case_are_read_and_unknown_ones_dropped(change: Any) -> None:
    body = {
        change("NodeNames"): ["a"],
        change("FailedNodes"): {"UPPER": "Why", "lower": "why"},
        change("FailedAndUnresolvableNodes"): None,
        change("Error"): "",
        "somethingNew": {"x": 1},
    }
    result = wire.decode(json.dumps(body).encode(), wire.ExtenderFilterResult)
    assert result.node_names == ["a"]
    assert result.failed_nodes == {"UPPER": "Why", "lower": "why"}


def test_names_inside_lists_and_maps_are_read_in_any_case() -> None:
    scores = wire.decode(b'[{"host": "a", "score": 7}, {"Host": "B", "SCORE": -2}]', list[wire.HostPriority])
    assert [(one.host, one.score) for one in scores] == [("a", 7), ("B", -2)]
    body = b'{"nodenametometavictims": {"Node-1": {"pods": [{"uid": "u"}], "numPDBViolations": 2}}}'
    victims = wire.decode(body, wire.ExtenderPreemptionResult).node_name_to_meta_victims
    assert victims == {"Node-1": wire.WireMetaVictims(pods=[wire.MetaPod(uid="u")], pdb_violations=2)}


def test_null_stands_for_empty() -> None:
    # Go writes null for a nil map or list.
    body = b'{"Nodes":null,"NodeNames":null,"FailedNodes":null,"FailedAndUnresolvableNodes":null,"Error":null}'
    assert wire.decode(body, wire.ExtenderFilterResult) == wire.ExtenderFilterResult(error=None)


@pytest.mark.parametrize("names", ["Nodes", "nodes"])
def test_a_node_keeps_fields_that_we_do_not_know(names: str) -> None:
    node = {"metadata": {"name": "n1", "managedFields": [1]}, "status": {"strange": {"deep": [1.5, None]}}}
    body = json.dumps({"Pod": {"metadata": {"name": "p"}}, names: {"metadata": {}, "items": [node]}}).encode()
    nodes = wire.decode(body, wire.ExtenderArgs).nodes
    assert nodes is not None
    assert [wire.node_name(raw) for raw in nodes.items or ()] == ["n1"]
    assert _json(wire.ExtenderFilterResult(nodes=nodes))["Nodes"]["items"] == [node]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not JSON"),
        (b"nonsense", "not JSON"),
        (b'{"Pod": ', "not JSON"),
        (b'{"Pod": "\xff"}', "UTF-8"),
        (b"[]", "form of ExtenderArgs"),
        (b'{"NodeNames": "a"}', "NodeNames"),
        (b'{"nodenames": [1]}', "NodeNames"),
        (b'{"Pod": {"metadata": {"name": 5}}}', "metadata.name"),
        (b'{"Pod": ' + b"[" * 100_000, "body"),
    ],
)
def test_what_is_no_message_is_refused_with_the_place(body: bytes, text: str) -> None:
    with pytest.raises(wire.WireError, match="the body") as error:
        wire.decode(body, wire.ExtenderArgs)
    assert text in str(error.value)


def test_a_score_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(wire.WireError, match="list of HostPriority"):
        wire.decode(b'[{"Host": "a", "Score": 1.5}]', list[wire.HostPriority])


def test_a_node_without_a_name_has_an_empty_one() -> None:
    assert wire.node_name(msgspec.Raw(b"{}")) == ""
    with pytest.raises(wire.WireError):
        wire.node_name(msgspec.Raw(b"3"))
