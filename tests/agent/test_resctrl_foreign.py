"""Whatever happens on an emulated machine: groups of others stay as they are, and nothing of ours stays behind."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.act.resctrl import remove_all
from agent.host.resctrl.groups import BE_GROUP
from agent.resctrl import Schemata
from slacktide.errors import KernelError
from slacktide.kernel.files import write_value
from tests.agent.rdt_node import BE, rdt_node
from tests.emulators.resctrl import missing

WHY_NOT = missing()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

WISHES = (
    None,
    Schemata(values={"L3": {0: 0x3, 1: 0x3}, "MB": {0: 20, 1: 20}}),
    Schemata(values={"L3": {0: 0xFF, 1: 0x3}}),
    Schemata(values={"L3": {0: 0x5}, "MB": {9: 20}}),
    Schemata(values={"MB": {0: 1}}),
)
NAMES = ("COS1", "slacktidex", "theirs", "mon_groups/theirs", "mon_groups/slacktid", f"{BE_GROUP}/mon_groups/theirs")
STEPS = st.one_of(
    st.tuples(st.just("wish"), st.sampled_from(WISHES)),
    st.tuples(st.just("make"), st.sampled_from(NAMES)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES)),
    st.tuples(st.just("enter"), st.sampled_from(NAMES)),
    st.tuples(st.just("values"), st.sampled_from(["COS1", "slacktidex", "theirs"])),
    st.tuples(st.just("threads"), st.integers(0, 3)),
    st.tuples(st.just("remount"), st.none()),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("wipe"), st.none()),
    st.tuples(st.just("fail"), st.sampled_from(["/slacktide-be/tasks", "/slacktide-be/schemata", "/slacktide-be"])),
)


def act(node, step, value):
    """Something that others, the agent's loop or the machine do."""
    root = node.handle.path
    if step == "make":
        with contextlib.suppress(OSError):
            os.mkdir(f"{root}/{value}")
    elif step == "remove":
        with contextlib.suppress(OSError):
            os.rmdir(f"{root}/{value}")
    elif step == "enter":
        with contextlib.suppress(KernelError):
            write_value(f"{root}/{value}/tasks", node.workers.start())
            write_value(f"{root}/{value}/tasks", node.pods[BE][0])
    elif step == "values":
        with contextlib.suppress(KernelError):
            write_value(f"{root}/{value}/schemata", "L3:0=ff0;1=f\nMB:0=50\n")
    elif step == "threads":
        node.pods[BE] = node.pods[BE][:value] or [node.workers.start()]
        node.pods[BE].append(node.workers.start())
        node.tell(BE)
    elif step == "remount":
        node.handle.control.remount()
    elif step == "restart":
        node.writer = node.new_writer()
    elif step == "wipe":
        with contextlib.suppress(OSError):
            os.rmdir(f"{root}/{BE_GROUP}")
    elif step == "fail":
        for operation in ("open", "write", "mkdir"):
            node.handle.control.fail(path=value, operation=operation, code=errno.EINVAL, times=1)


@given(st.lists(STEPS, min_size=3, max_size=14))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_groups_of_others_are_untouched_whatever_happens(steps):
    with tempfile.TemporaryDirectory() as base, rdt_node("foreign", Path(base)) as node:
        node.pod(BE, 2)
        default = node.rdt.schemata("")
        wish = None
        for step, value in steps:
            wish = value if step == "wish" else wish
            act(node, step, value)
            before = node.state(foreign=True)
            node.look(wish, seconds=3.0)
            assert node.state(foreign=True) == before
            assert node.rdt.schemata("") == default
        node.handle.control.heal()
        before = node.state(foreign=True)
        inside = node.rdt.guests(BE_GROUP) if node.rdt.has(BE_GROUP) else frozenset()
        remove_all(node.places)
        assert node.state(foreign=True) == before
        assert node.rdt.has(BE_GROUP) is bool(inside)
        ours = [name for name in node.rdt.groups().monitors if name.startswith("slacktide-")]
        assert ours == []


@given(st.lists(STEPS, min_size=1, max_size=8), st.sampled_from(WISHES[:3]))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_once_the_machine_is_left_alone_the_wish_is_in_force(steps, wish):
    with tempfile.TemporaryDirectory() as base, rdt_node("intel-2s", Path(base)) as node:
        node.pod(BE, 2)
        for step, value in steps:
            act(node, step, value)
            node.look(wish, seconds=3.0)
        node.handle.control.heal()
        for _ in range(2):
            reading = node.look(wish, seconds=130.0)
        expected = {0: 0xFFFFF, 1: 0xFFFFF} | (dict(wish.values.get("L3", {})) if wish else {})
        assert reading.held is not None
        assert reading.held.values["L3"] == expected
        others = [name for name in NAMES if node.rdt.has(name)]
        left = frozenset().union(*(node.rdt.tasks(name) for name in others if not name.startswith(BE_GROUP)))
        assert node.rdt.tasks(BE_GROUP) == set(node.pods[BE]) - left
