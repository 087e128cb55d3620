from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.cluster.cache import Change, changes_of, difference, key_of
from slacktide.objects import ObjectMeta, Pod


def make(name="a", uid="u", version="1") -> Pod:
    return Pod(metadata=ObjectMeta(name=name, namespace="ns", uid=uid, resource_version=version))


pods = st.builds(make, st.sampled_from("abcd"), st.sampled_from("uvw"), st.sampled_from("123"))
caches = st.lists(pods).map(lambda items: {key_of(item): item for item in items})


@settings(deadline=None)
@given(caches, caches)
def test_changes_applied_in_order_give_what_was_listed(cache, listed):
    state = dict(cache)
    for change in difference(cache, listed):
        if change.old is not None:
            # A handler must never hear of the end of something that it was not told about.
            assert state.pop(key_of(change.old)) == change.old
        if change.new is not None:
            assert key_of(change.new) not in state
            state[key_of(change.new)] = change.new
    same = {key for key in listed if key in cache and not changes_of(cache[key], listed[key])}
    assert {k: v for k, v in state.items() if k not in same} == {k: v for k, v in listed.items() if k not in same}
    assert state.keys() == listed.keys()


def test_same_version_is_no_change():
    assert changes_of(make(), make()) == []


def test_other_version_is_an_update():
    assert changes_of(make(), make(version="2")) == [Change(make(), make(version="2"))]


def test_other_uid_is_a_delete_and_an_add_even_with_the_same_version():
    old, new = make(), make(uid="v")
    assert changes_of(old, new) == [Change(old, None), Change(None, new)]


def test_what_vanished_is_told_first():
    old, new = make("a"), make("b")
    assert difference({key_of(old): old}, {key_of(new): new}) == [Change(old, None), Change(None, new)]
