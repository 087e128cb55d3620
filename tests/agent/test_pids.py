"""Policy pids: limits of BE pods, the rung, what is not known; and its readings and knob on trees of files."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.capabilities import Capabilities, Knob
from agent.counters import NodeCounters
from agent.host.node_tasks import read_tasks, read_tasks_max
from agent.policy.base import Context
from agent.policy.pids import Pids, PidsSettings, PidsState
from agent.policy.registry import build
from agent.snapshot import Sweep
from agent.snapshot import build as build_snapshot
from slacktide.status import Usage
from slacktide.tier import Tier
from tests.agent.nodes import CONTEXT, node, pod

SETTINGS = PidsSettings(pod_max=1000, pod_min=50, be_percent=50, headroom=20)
"""Of a node with 10000 tasks BE may have 5000; tight from 4000 on, open below 3250."""


def picture(*uses, at=100.0, tasks=1000, tasks_max=10_000, **more):
    """A node with an LS pod and one BE pod for each number of tasks."""
    pods = (pod("ls", Tier.LS, pids=3000), *(pod(f"be{number}", pids=use) for number, use in enumerate(uses)))
    return node(pods=pods, at=at, tasks=tasks, tasks_max=tasks_max, **more)


def decide(snapshot, state=None, own=SETTINGS, context=CONTEXT):
    return Pids().decide(snapshot, state or PidsState(), own, context)


def values(desired):
    return {request.group.removeprefix("kubepods/"): request.value for request in desired.requests}


def run(*pictures, own=SETTINGS):
    state, said = PidsState(), []
    for snapshot in pictures:
        desired, state = decide(snapshot, state, own)
        said.append(values(desired))
    return said, desired, state


def test_every_be_pod_has_a_limit_from_the_start_and_ls_is_never_named():
    desired, _ = decide(picture(5, 30))
    assert values(desired) == {"be0": 1000, "be1": 1000}
    assert {request.knob for request in desired.requests} == {Knob.PIDS_MAX}
    assert not desired.rung.engaged


def test_a_pod_that_just_came_is_limited_at_once():
    desired, state = decide(picture(None, urgent=True))
    assert values(desired) == {"be0": 1000}
    assert state == PidsState()


def test_one_pod_alone_may_not_have_more_than_the_share_of_all():
    assert values(decide(picture(5, tasks_max=1000))[0]) == {"be0": 500}
    assert values(decide(picture(5, tasks_max=60))[0]) == {"be0": 50}


def test_a_pod_that_has_more_than_its_limit_at_first_goes_on_and_shrinks_to_it():
    said, _, _ = run(*(picture(use, at=100.0 + use) for use in (3000, 3010, 2000, 2500, 500, 900)))
    assert [one["be0"] for one in said] == [3020, 3020, 2020, 2020, 1000, 1000]


def test_a_pod_at_its_limit_gets_no_headroom_by_a_restart_of_the_agent():
    assert values(decide(picture(1000))[0]) == {"be0": 1000}


def test_a_higher_limit_by_reload_counts_at_once_and_so_does_a_lower_one():
    _, _, state = run(picture(10))
    assert values(decide(picture(10), state, PidsSettings(pod_max=2000))[0]) == {"be0": 2000}
    assert values(decide(picture(10), state, PidsSettings(pod_max=200))[0]) == {"be0": 200}


def test_near_the_share_each_pod_keeps_what_it_has_and_gets_a_part_of_the_rest():
    said, desired, _ = run(picture(900, 900, 900, 900, 440, tasks=4500))
    assert desired.rung.exhausted
    # Of 5000 tasks 960 are left, 192 a pod; the fixed limit of 1000 stays above all.
    assert said == [{"be0": 1000, "be1": 1000, "be2": 1000, "be3": 1000, "be4": 632}]
    assert "4040 of the 5000" in desired.reason


def test_running_work_goes_on_with_headroom_where_the_share_is_used_up():
    own = PidsSettings(pod_max=4096, pod_min=50, be_percent=50, headroom=20)
    said, _, _ = run(picture(4000, 2000, 1), own=own)
    assert said == [{"be0": 4020, "be1": 2020, "be2": 50}]


def test_a_limit_of_the_rung_stands_until_it_opens_and_newcomers_share_what_is_left():
    own = PidsSettings(pod_max=4096, pod_min=50, be_percent=50, headroom=20)
    said, _, _ = run(
        picture(4000, 800, at=100.0),
        picture(4090, 10, at=101.0),
        picture(4090, 10, None, at=102.0),
        picture(4090, 10, 100, at=103.0),
        own=own,
    )
    assert said[0] == {"be0": 4096, "be1": 900}
    assert said[1] == said[0]
    assert said[2] == {**said[0], "be2": 50}
    assert said[3] == {**said[0], "be2": 120}


def test_it_opens_after_quiet_and_dwell_and_not_in_the_hold_band():
    tight = picture(4000, at=100.0)
    band, calm = ([picture(use, at=101.0 + n) for n in range(60)] for use in (3500, 3000))
    assert run(tight, *band)[1].rung.level == 1
    levels, state = [], run(tight)[2]
    for snapshot in calm:
        desired, state = decide(snapshot, state)
        levels.append(desired.rung.level)
    assert levels == [1] * 30 + [0] * 30


def test_a_node_that_runs_out_of_tasks_tightens_whoever_has_them():
    desired, _ = decide(picture(100, tasks=8000))
    assert values(desired) == {"be0": 1000}
    assert desired.rung.engaged
    assert "the node has 8000 of 10000 tasks" in desired.reason


@pytest.mark.parametrize("unknown", [{"tasks": None}, {"tasks_max": None}])
@pytest.mark.parametrize("use", [0, None])
def test_what_is_not_known_neither_engages_nor_opens(unknown, use):
    assert decide(picture(use, **unknown))[0].rung.level == 0
    state = run(picture(4500))[2]
    for number in range(100):
        desired, state = decide(picture(use, at=101.0 + number, **unknown), state)
    assert desired.rung.level == 1
    assert "not known" in desired.reason


def test_pods_that_are_known_are_enough_to_engage():
    assert decide(picture(4500, None))[0].rung.engaged


def test_a_node_without_the_controller_says_so():
    nothing = Context(capabilities=Capabilities(mode="v1", cpu_version=1))
    desired, _ = decide(picture(9000), context=nothing)
    assert desired.requests == ()
    assert "cannot be set" in desired.reason


def test_it_is_found_by_its_name_and_its_settings_are_checked():
    assert [policy.name for policy in build(["suppress", "pids"])] == ["pids", "suppress"]
    with pytest.raises(ValueError, match="pod_min 100 is above pod_max 50"):
        PidsSettings(pod_min=100, pod_max=50)


uses = st.lists(st.one_of(st.none(), st.integers(0, 6000)), max_size=5)
looks = st.lists(
    st.tuples(uses, st.one_of(st.none(), st.integers(1, 12_000)), st.sampled_from([None, 100, 10_000]), st.booleans()),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(looks)
def test_running_work_always_goes_on_and_the_share_holds(trace):
    state, at, changed = PidsState(), 100.0, None
    for use, tasks, tasks_max, urgent in trace:
        at += 1.0
        before = state
        snapshot = replace(picture(*use, at=at, tasks=tasks, tasks_max=tasks_max), urgent=urgent)
        desired, state = decide(snapshot, state)
        given_ = values(desired)
        assert set(given_) == {f"be{number}" for number in range(len(use))}
        assert all(SETTINGS.pod_min <= value <= max(SETTINGS.pod_max, 6020) for value in given_.values())
        first = [
            (f"be{n}", one) for n, one in enumerate(use) if one is not None and f"kubepods/be{n}" not in before.seen
        ]
        if not urgent:
            assert all(given_[name] > one or one == given_[name] >= 50 for name, one in first)
        if state.rung.level and not urgent:
            here = {f"kubepods/be{number}": one for number, one in enumerate(use)}
            old = {group: value for group, value in before.tight.items() if group in here}
            new = {group: one for group, one in here.items() if one is not None and group not in old}
            assert old.items() <= state.tight.items()
            assert state.tight.keys() == old.keys() | new.keys()
            least = sum(max(SETTINGS.pod_min, one + SETTINGS.headroom) for one in new.values())
            assert sum(state.tight.values()) <= max((tasks_max or 0) // 2 + 50 * len(new), sum(old.values()) + least)
        if state.rung.level < before.rung.level:
            assert not urgent
            assert None not in (tasks, tasks_max, *use)
            assert changed is None or at - changed >= SETTINGS.min_dwell_seconds
        if state.rung.level != before.rung.level:
            changed = at


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("0.52 0.58 0.59 3/1243 12345\n", 1243),
        ("0.52 0.58\n", None),
        ("", None),
        ("\0\xff", None),
        ("0.1 0.1 0.1 1/x 5\n", None),
        (None, None),
    ],
)
def test_tasks_of_the_node(tmp_path, text, tasks):
    if text is not None:
        (tmp_path / "loadavg").write_text(text)
    assert read_tasks(str(tmp_path)) == tasks


@pytest.mark.parametrize(
    ("pid_max", "threads_max", "most"),
    [
        ("32768", "192729", 32768),
        ("4194304", "1000", 1000),
        ("4194304", None, 4194304),
        ("x", "max", None),
        ("0", "-1", None),
    ],
)
def test_the_lower_bound_on_tasks_counts(tmp_path, pid_max, threads_max, most):
    kernel = tmp_path / "sys/kernel"
    kernel.mkdir(parents=True)
    for name, value in (("pid_max", pid_max), ("threads-max", threads_max)):
        if value is not None:
            (kernel / name).write_text(f"{value}\n")
    assert read_tasks_max(str(tmp_path)) == most


def test_the_snapshot_takes_them_over():
    counters = NodeCounters(
        at=1.0,
        capacity_cpu_millis=1000,
        busy_seconds=0.0,
        steal_seconds=0.0,
        capacity_memory_bytes=1,
        memory_available_bytes=1,
        tasks=7,
        tasks_max=9,
    )
    known = build_snapshot(None, Sweep(at=1.0, node=counters), {}, period_seconds=1.0, capacity=Usage())
    blind = build_snapshot(None, Sweep(at=1.0, node=None), {}, period_seconds=1.0, capacity=Usage())
    assert (known.tasks, known.tasks_max, blind.tasks, blind.tasks_max) == (7, 9, None, None)
