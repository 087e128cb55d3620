"""Objects found by what they have in common: always what a look at the whole cache would find."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slacktide.cluster.indexed import Index, Indexes
from slacktide.objects import ObjectMeta, Pod

BY_APP: Index[Pod, str] = Index(
    lambda pod: (pod.metadata.labels["app"], pod.metadata.uid) if "app" in pod.metadata.labels else None
)
APPS = ("", "web", "db")
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "replace", "ask"]), st.sampled_from("abc"), st.sampled_from(APPS)),
    max_size=30,
)


def pod(name: str, app: str, serial: int) -> Pod:
    labels = {"app": app} if app else {}
    return Pod(metadata=ObjectMeta(name=name, uid=f"{name}{serial}", labels=labels))


@given(STEPS)
def test_an_index_is_what_the_cache_says(steps: list[tuple[str, str, str]]) -> None:
    indexes: Indexes[Pod] = Indexes()
    cache: dict[Any, Pod] = {}
    for serial, (what, name, app) in enumerate(steps):
        key = ("", name)
        if what == "put":
            old, cache[key] = cache.get(key), pod(name, app, serial)
            indexes.change(key, old, cache[key])
        elif what == "delete":
            indexes.change(key, cache.pop(key, None), None)
        elif what == "replace":
            cache = {key: pod(name, app, serial)}
            indexes.replace(cache)
        else:
            want = {one.metadata.uid for one in cache.values() if one.metadata.labels.get("app") == app}
            assert set(indexes.find(BY_APP, app, cache)) == (want if app else set())
    for app in APPS[1:]:
        want = {one.metadata.uid for one in cache.values() if one.metadata.labels.get("app") == app}
        assert set(indexes.find(BY_APP, app, cache)) == want


def test_two_indexes_are_told_apart_and_nobody_is_kept_under_what_no_object_has() -> None:
    indexes: Indexes[Pod] = Indexes()
    names: Index[Pod, str] = Index(lambda one: (one.metadata.name, one.metadata.name))
    cache = {("", "a"): pod("a", "web", 1)}
    assert indexes.find(BY_APP, "web", cache) == ("a1",)
    assert indexes.find(names, "a", cache) == ("a",)
    indexes.change(("", "a"), cache[("", "a")], None)
    assert (indexes.find(BY_APP, "web", {}), indexes.find(names, "a", {})) == ((), ())
