from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError, convert

from agent.capabilities import Knob
from agent.host.knobs import ADAPTERS
from agent.policy.base import Context
from agent.policy.io import TOP, Io, IoSettings, IoState
from slacktide.tier import Tier
from tests.agent.nodes import ALL, CONTEXT, node, pod, turns

SETTINGS = IoSettings()
MB = 1 << 20


def decide(snapshot, state=None, settings=SETTINGS, context=CONTEXT):
    return Io().decide(snapshot, state or IoState(), settings, context)


def busy(psi=0.5, be=64 * MB, now=100.0, disks=("8:0",), urgent=False, **more):
    pods = more.pop("pods", None) or (pod("ls", Tier.LS, psi_io=psi), pod("be", io_rate=be))
    return node(at=now, pods=pods, disks=disks, urgent=urgent, **more)


def asked(desired, knob=Knob.IO_MAX):
    return {request.group.rpartition("/")[2]: request.value for request in desired.requests if request.knob is knob}


def run(snapshots, state=None, settings=SETTINGS):
    levels = []
    state = state or IoState()
    for snapshot in snapshots:
        desired, state = decide(snapshot, state, settings)
        levels.append(desired.rung.level)
    return levels, state


def test_the_lowest_weight_is_always_on_for_be_alone():
    desired, _ = decide(busy(psi=0.0))
    assert asked(desired, Knob.IO_WEIGHT) == {"be": 1}
    assert asked(desired) == {}
    assert not desired.rung.engaged


def test_ls_that_waits_for_io_halves_be_down_to_its_least():
    values, levels, state = [], [], IoState()
    for number in range(8):
        desired, state = decide(busy(now=100.0 + 3 * number), state)
        values.append(asked(desired)["be"])
        levels.append((desired.rung.level, desired.rung.exhausted))
    rates = [int(value.rpartition("=")[2]) // MB for value in values]
    assert rates == [32, 16, 8, 4, 2, 1, 1, 1]
    assert values[0] == f"8:0 rbps={32 * MB} wbps={32 * MB}"
    assert levels == [(1, False), (2, False), (3, False), (4, False), (5, False), (6, True), (6, True), (6, True)]
    assert "LS waits for I/O 50 % of the time" in desired.reason


def test_a_cut_may_act_before_the_next():
    levels, _ = run(turns(busy(), 4))
    assert levels == [1, 1, 1, 2]


def test_the_rate_at_entry_counts_and_not_what_the_bound_lets_through():
    _, state = decide(busy())
    desired, _ = decide(busy(be=32 * MB, now=103.0), state)
    assert asked(desired) == {"be": f"8:0 rbps={16 * MB} wbps={16 * MB}"}


def test_release_is_a_level_at_a_time_with_a_hold_band():
    _, state = run([busy(now=100.0), busy(now=103.0)])
    levels, state = run(turns(busy(psi=0.15), 60, start=104.0), state)
    assert set(levels) == {2}
    levels, state = run(turns(busy(psi=0.05), 24, start=200.0), state)
    assert levels == [2] * 10 + [1] * 10 + [0] * 4
    assert state.rates == {}


def test_what_is_not_known_holds():
    _, state = run([busy()])
    levels, _ = run(turns(busy(psi=None), 100, start=101.0), state)
    assert set(levels) == {1}
    assert run([busy(psi=None)])[0] == [0]


def test_be_that_does_no_io_is_not_to_blame():
    assert run([busy(be=0)])[0] == [0]
    assert run([busy(be=None)])[0] == [1], "one that was not measured is"
    assert asked(decide(busy(be=None))[0]) == {"be": f"8:0 rbps={MB} wbps={MB}"}


def test_fixed_bounds_hold_always_and_the_stricter_wins():
    fixed = IoSettings(read_max_bytes=10 * MB, devices=("259:0", "8:16"))
    two = (pod("ls", Tier.LS, psi_io=0.0), pod("a", io_rate=0), pod("b", io_rate=0))
    desired, _ = decide(busy(pods=two), settings=fixed)
    assert asked(desired) == dict.fromkeys("ab", f"259:0 rbps={5 * MB}\n8:16 rbps={5 * MB}")
    assert "fixed" in desired.requests[-1].reason
    desired, _ = decide(busy(), settings=fixed)
    assert asked(desired) == {"be": "\n".join(f"{disk} rbps={10 * MB} wbps={32 * MB}" for disk in ("259:0", "8:16"))}


def test_disks_are_found_or_named():
    assert asked(decide(busy(disks=("8:0", "259:0")))[0])["be"].count("\n") == 1
    desired, _ = decide(busy(disks=None))
    assert asked(desired) == {}
    assert desired.rung is None
    assert "no disk is known" in desired.reason
    with pytest.raises(ValidationError):
        convert({"devices": ["/dev/sda"]}, IoSettings)


def test_a_disk_that_is_named_twice_is_one():
    """The executor refuses lines that are not the kernel's, and with them the whole plan."""
    desired, _ = decide(busy(), settings=IoSettings(devices=("8:16", "8:0", "8:16")))
    assert [line.split()[0] for line in asked(desired)["be"].splitlines()] == ["8:0", "8:16"]
    assert ADAPTERS[Knob.IO_MAX].problem(asked(desired)["be"]) is None


def test_a_node_without_the_knobs_says_so():
    for writable, said in ((frozenset(), "nor can io.weight"), (frozenset({Knob.IO_WEIGHT}), "io.weight is set")):
        context = Context(capabilities=replace(ALL, writable=writable))
        desired, _ = decide(busy(), context=context)
        assert desired.rung is None
        assert said in desired.reason
        assert len(desired.requests) == len(writable)


def test_a_pod_that_comes_gets_weight_and_bound_on_arrival():
    _, state = decide(busy())
    pods = (pod("ls", Tier.LS, psi_io=0.5), pod("be", io_rate=64 * MB), pod("new", io_rate=None))
    desired, _ = decide(busy(pods=pods, urgent=True, now=100.2), state)
    assert asked(desired, Knob.IO_WEIGHT) == {"be": 1, "new": 1}
    assert asked(desired)["new"] == f"8:0 rbps={MB} wbps={MB}"
    assert Io.prompt


shares = st.one_of(st.none(), st.floats(0, 1))
rates = st.one_of(st.none(), st.floats(0, 1e9))


@given(looks=st.lists(st.tuples(st.floats(0.5, 20), shares, rates, rates), min_size=1, max_size=30))
def test_invariants_on_any_trace(looks):
    state, now, before = IoState(), 0.0, None
    for seconds, psi, one, other in looks:
        now += seconds
        pods = (pod("ls", Tier.LS, psi_io=psi), pod("a", io_rate=one), pod("b", io_rate=other))
        desired, state = decide(busy(pods=pods, now=now), state)
        assert 0 <= desired.rung.level <= TOP
        bounds = {group: int(value.rpartition("=")[2]) for group, value in asked(desired).items()}
        assert all(value >= SETTINGS.be_pod_min_bytes for value in bounds.values())
        assert bool(bounds) == desired.rung.engaged
        if before and (psi is None or psi > SETTINGS.ls_psi_cut / 2):
            assert all(bounds[group] <= before[group] for group in before)
        before = bounds
