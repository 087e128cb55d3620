"""ImageLocality: the rows of the stock scheduler's table, and names of images."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler_plugins.framework.cache import Cache
from scheduler_plugins.framework.state import CycleState
from scheduler_plugins.plugins.image_locality import ImageLocality, image_names
from slacktide.objects import ContainerImage, Node
from tests.scheduler_plugins.build import framework, info, node, pod
from tests.scheduler_plugins.plugins.cases import Judged

MIB = 1 << 20


def having(name: str, *megabytes: int, more: tuple[ContainerImage, ...] = ()) -> Node:
    """A node with images that are named after their size."""
    images = [
        ContainerImage(names=[f"example.com/{size}:latest", f"example.com/{size}@sha256:{size}"], size_bytes=size * MIB)
        for size in megabytes
    ]
    plain = node(name)
    return msgspec.structs.replace(plain, status=msgspec.structs.replace(plain.status, images=[*images, *more]))


def needing(*megabytes: int, init: tuple[int, ...] = (), **spec: Any) -> Any:
    def containers(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
        return [{"name": f"c{i}", "image": f"example.com/{size}"} for i, size in enumerate(sizes)]

    return info("p", containers=containers(megabytes), initContainers=containers(init), **spec)


RICH, OTHER = having("rich", 40, 300, 2000), having("other", 250, 10)


@pytest.mark.parametrize(
    ("who", "nodes", "want"),
    [
        (needing(40, 250), [RICH, OTHER], [0, 5]),
        (needing(40, 300), [RICH, OTHER], [7, 0]),
        (needing(10, 2000), [RICH, OTHER], [49, 0]),
        (needing(10, 2000), [RICH, OTHER, having("empty")], [32, 0, 0]),
        (needing(300, init=(40,)), [RICH, OTHER], [7, 0]),
        (needing(2000), [RICH, having("as rich", 2000)], [100, 100]),
        (needing(300, 300), [RICH, OTHER], [14, 0]),
    ],
)
def test_table(who: Any, nodes: list[Node], want: list[int]) -> None:
    found = Judged(ImageLocality(), who, nodes).scores()
    assert [found[one.metadata.name] for one in nodes] == want


def test_image_volumes_count_in_the_sum_and_in_the_bound() -> None:
    """kubernetes #138952: a volume raised the score above that of a container with the same image."""
    volume = {"volumes": [{"name": "v", "image": {"reference": "example.com/300"}}]}
    assert Judged(ImageLocality(), needing(40, **volume), [RICH, OTHER]).scores() == {"rich": 7, "other": 0}


@pytest.mark.parametrize("nodes", [[RICH, OTHER], [having("a"), having("b")]])
def test_takes_no_part_when_no_node_has_an_image_of_the_pod(nodes: list[Node]) -> None:
    assert Judged(ImageLocality(), needing(777), nodes).scores() is None
    assert Judged(ImageLocality(), needing(), nodes).scores() is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("root", "root:latest"),
        ("root:tag", "root:tag"),
        ("gcr.io:5000/root", "gcr.io:5000/root:latest"),
        ("gcr.io:5000/root:tag", "gcr.io:5000/root:tag"),
        ("root@sha256:aaaa", "root@sha256:aaaa"),
    ],
)
def test_names_as_nodes_have_them(given: str, named: str) -> None:
    assert image_names(pod("p", containers=[{"name": "c", "image": given}])) == (named,)


def test_nodes_as_the_api_sends_them() -> None:
    """A dangling image has no names, written as null; sizes beyond reason are cut, not added up wrongly."""
    sent = (
        b'{"metadata":{"name":"n"},"status":{"images":[{"names":null,"sizeBytes":5},{"names":["a:1"],"sizeBytes":7}]}}'
    )
    read = msgspec.json.decode(sent, type=Node)
    assert [image.size_bytes for image in read.status.images] == [5, 7]
    strange = (ContainerImage(size_bytes=5), ContainerImage(names=["example.com/1:latest"], size_bytes=1 << 70))
    strange += (ContainerImage(names=["example.com/2:latest"], size_bytes=-(1 << 70)),)
    assert Judged(ImageLocality(), needing(1, 2), [having("n", more=strange)]).scores() == {"n": 100}


def test_scores_follow_the_images_of_nodes_as_they_change() -> None:
    plugin = ImageLocality()
    profile, cache = framework(plugin), Cache()
    snapshot = profile.new_snapshot()
    who = needing(300)

    def scores() -> dict[str, int] | None:
        cache.refresh(snapshot)
        state = CycleState()
        if plugin.pre_score(state, who, snapshot, snapshot.all()).skipped:
            return None
        found = plugin.score_nodes(state, who, snapshot, snapshot.all())
        return {snapshot.names[row]: int(score) for row, score in enumerate(found)}

    for name in ("a", "b"):
        cache.set_node(having(name, 40))
    assert scores() is None
    cache.set_node(having("a", 40, 300))
    assert scores() == {"a": 12, "b": 0}  # half of 300, of 1000
    cache.set_node(having("b", 300))
    assert scores() == {"a": 28, "b": 28}
    cache.set_node(having("a"))
    assert scores() == {"a": 0, "b": 12}
    cache.remove_node("a")
    assert scores() == {"b": 28}


def test_a_heartbeat_with_the_same_images_is_no_new_value() -> None:
    plugin, cache = ImageLocality(), Cache()
    snapshot = framework(plugin).new_snapshot()
    for _ in range(5):
        cache.set_node(having("a", 40, 300))
        cache.refresh(snapshot)
    assert len(snapshot.interned("ImageLocality/images")[1]) == 1


def test_scores_without_pre_score_where_a_profile_has_it_so() -> None:
    judged = Judged(ImageLocality(), needing(40, 300), [RICH, OTHER])
    names, snapshot = judged.snapshot.names, judged.snapshot
    found = judged.plugin.score_nodes(CycleState(), judged.who, snapshot, snapshot.all())
    assert dict(zip(names, found.tolist(), strict=True)) == {"rich": 7, "other": 0}
