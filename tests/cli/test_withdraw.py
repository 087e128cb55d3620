"""`slacktide withdraw`: what is ours goes from the nodes, what is not stays. On the real API server: tests/deploy."""

from __future__ import annotations

import pytest

from cli.withdrawing import LOOKS, PAUSE_SECONDS, Withdrawn, patch_of, withdraw
from slacktide.cluster import Listing
from slacktide.cluster.errors import Forbidden, NotFound
from slacktide.names import BATCH_CPU, BATCH_MEMORY, FORECAST_ANNOTATION, GPUS_ANNOTATION
from slacktide.objects import Node, NodeStatus, ObjectMeta

RESOURCES = (BATCH_CPU, BATCH_MEMORY)


def node(name, amounts=(BATCH_CPU, BATCH_MEMORY), notes=(FORECAST_ANNOTATION,)):
    amounts = {"cpu": "4", **dict.fromkeys(amounts, "1000")}
    metadata = ObjectMeta(name=name, uid=f"uid-{name}", annotations={"other": "stays", **dict.fromkeys(notes, "{}")})
    return Node(metadata=metadata, status=NodeStatus(capacity=amounts, allocatable=amounts))


class Api:
    """Nodes in memory. `republished` times a node comes back as it was."""

    def __init__(self, *nodes, republished=0, error=None):
        self.nodes = {one.metadata.name: one for one in nodes}
        self.first = dict(self.nodes)
        self.left, self.error, self.patches = republished, error, []

    def list(self, kind):
        return Listing(tuple(self.nodes.values()), "1")

    def patch(self, kind, name, namespace, body, subresource=None):
        if self.error is not None:
            raise self.error
        self.patches.append((name, subresource))
        metadata, status = body["metadata"], body.get("status", {"capacity": {}})
        assert metadata["uid"] == self.nodes[name].metadata.uid
        if self.left:
            self.left -= 1
            return
        old = self.nodes[name]
        amounts = {key: value for key, value in old.status.capacity.items() if key not in status["capacity"]}
        notes = {key: value for key, value in old.metadata.annotations.items() if key not in metadata["annotations"]}
        metadata = ObjectMeta(name=name, uid=old.metadata.uid, annotations=notes)
        self.nodes[name] = Node(metadata=metadata, status=NodeStatus(capacity=amounts, allocatable=amounts))


def never(seconds):
    raise AssertionError(f"waited {seconds} s for nothing")


def test_everything_of_ours_goes_and_nothing_else():
    api = Api(node("a", notes=(FORECAST_ANNOTATION, GPUS_ANNOTATION)), node("clean", (), ()))
    assert withdraw(api, RESOURCES, never) == Withdrawn(cleaned=("a",))
    assert api.patches == [("a", "status")]
    assert api.nodes["a"].status.capacity == {"cpu": "4"}
    assert api.nodes["a"].metadata.annotations == {"other": "stays"}


def test_batch_resources_without_our_annotation_are_somebody_elses():
    """koordinator publishes the same names: after a migration back they must not go with us."""
    api = Api(node("theirs", notes=()), node("gpus", notes=(GPUS_ANNOTATION,)))
    assert withdraw(api, RESOURCES, never) == Withdrawn(cleaned=("gpus",), foreign=("theirs",))
    assert api.nodes["gpus"].status == api.first["gpus"].status


def test_other_resource_names():
    body = patch_of(node("a", ("example.com/cpu",)), ("example.com/cpu", "example.com/memory"))
    assert body["status"]["capacity"] == {"example.com/cpu": None}


def test_a_dry_run_writes_nothing():
    api = Api(node("a"))
    assert withdraw(api, RESOURCES, never, dry_run=True) == Withdrawn(cleaned=("a",))
    assert api.patches == []


def test_a_predictor_that_ends_may_publish_once_more():
    api, waits = Api(node("a"), republished=2), []
    assert withdraw(api, RESOURCES, waits.append) == Withdrawn(cleaned=("a",))
    assert waits == [PAUSE_SECONDS] * 2


def test_one_that_does_not_end_is_told_of():
    done = withdraw(Api(node("a"), republished=99), RESOURCES, lambda _: None)
    assert "predictor still runs" in done.problems[0]


@pytest.mark.parametrize(
    ("error", "problems"),
    [(NotFound(404, "NotFound", "gone"), 1), (Forbidden(403, "Forbidden", "no"), 1)],
)
def test_what_fails_is_told(error, problems):
    api = Api(node("a"), error=error)
    done = withdraw(api, RESOURCES, lambda _: None)
    assert len(done.problems) == problems
    assert done.cleaned == ()
    assert LOOKS > 1
