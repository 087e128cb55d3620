"""What the agent tells of its decisions: signals that agree with the policies, changes with their times, evictions."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.act.audit import Audit, AuditLine, read_tail
from agent.capabilities import Knob
from agent.changes import KEPT, Changes
from agent.eviction import EvictorView, Spent, Way
from agent.explaining import Explainer
from agent.loop import Turn
from agent.policy.base import Plan, Request
from agent.policy.burst import Burst
from agent.policy.close import Close
from agent.policy.contention import Contention
from agent.policy.io import Io
from agent.policy.memory import Memory
from agent.policy.pids import Pids
from agent.policy.rung import RungStatus
from agent.policy.suppress import Suppress
from agent.pressure import Pressure
from agent.settings import AgentSettings
from agent.signals import signals
from agent.snapshot import ContainerSnapshot
from slacktide.explaining import Evictions, HeldPod, Ladder, Signal
from slacktide.tier import Tier
from tests.agent.nodes import CALM, CONTEXT, DRILL, GIB, SHORT, node, pod

NO_WAIT = {"quiet_seconds": 0.0, "min_dwell_seconds": 0.0}
SETTINGS = AgentSettings()
SHARE = st.floats(0, 1)


def pictures():
    """Nodes of all kinds, measured whole."""

    def build(ls, system, available, excess, busy, psi, tasks):
        ls_pod = pod("ls", Tier.LS, memory=GIB, psi_memory=psi[0], psi_io=psi[1])
        return node(
            ls=ls,
            system=system,
            pressure=Pressure(kind="run-delay", value=0.5 + excess, natural=0.5, window_seconds=0.25),
            busy=busy,
            memory_available_bytes=max(1, int(available * 10 * GIB)),
            pods=(ls_pod, pod("be", memory=GIB, io_rate=1e9, pids=int(tasks[0] * 1000))),
            tasks=int(tasks[1] * 4000),
            tasks_max=4000,
            disks=("8:0",),
        )

    return st.builds(
        build,
        st.integers(0, 2000),
        st.integers(0, 500),
        SHARE,
        st.floats(-0.5, 2),
        SHARE,
        st.tuples(SHARE, SHARE),
        st.tuples(SHARE, SHARE),
    )


def speaking(found):
    """Whether any signal speaks for the rung, those that count together taken together."""
    groups: list[list[bool]] = []
    for signal in found:
        assert signal.speaks is not None, signal
        if signal.joint:
            groups[-1].append(signal.speaks)
        else:
            groups.append([signal.speaks])
    return any(all(group) for group in groups)


def clear(signal):
    """Whether a figure is not so near a mark that equal or beyond would decide."""
    marks = [mark for mark in (signal.enters, signal.opens) if mark is not None]
    return all(abs(signal.now - mark) > 1e-6 for mark in marks)


def far(found):
    return all(clear(signal) for signal in found if signal.now is not None)


@pytest.mark.parametrize("policy", [Suppress(), Contention(), Burst(), Io(), Pids()], ids=lambda p: p.name)
@given(picture=pictures())
def test_a_rung_is_entered_when_its_signals_say_so(policy, picture):
    found = signals(policy.name, picture, SETTINGS)
    if not far(found):
        return
    desired, _ = policy.decide(picture, policy.start(CONTEXT), getattr(SETTINGS, policy.name), CONTEXT)
    assert desired.rung.engaged == speaking(found)


@given(picture=pictures())
def test_memory_is_entered_by_its_marks_and_by_waits_only_while_little_is_left(picture):
    high, reclaim, waits = signals("memory", picture, SETTINGS)
    if not far((high, reclaim, waits)):
        return
    desired, _ = Memory().decide(picture, Memory().start(CONTEXT), SETTINGS.memory, CONTEXT)
    little = high.now < SETTINGS.memory.psi_available_percent
    assert desired.rung.engaged == (high.speaks or (waits.speaks and little))
    assert (desired.rung.level == 2) == reclaim.speaks


@pytest.mark.parametrize("policy", [Burst(), Memory(), Pids(), Suppress()], ids=lambda p: p.name)
@given(entering=pictures(), after=pictures())
def test_an_engaged_rung_opens_when_every_figure_is_beyond_its_mark(policy, entering, after):
    own = msgspec.structs.replace(getattr(SETTINGS, policy.name), **NO_WAIT)
    settings = msgspec.structs.replace(SETTINGS, **{policy.name: own})
    desired, state = policy.decide(entering, policy.start(CONTEXT), own, CONTEXT)
    later = replace(after, at=entering.at + 10)
    found = signals(policy.name, later, settings)
    if not desired.rung.engaged or not far(found):
        return
    opens = all(beyond(signal) for signal in found if signal.opens is not None)
    again, _ = policy.decide(later, state, own, CONTEXT)
    if opens and later.shortage.calm:
        assert again.rung.level < desired.rung.level
    elif policy.name != "suppress" and again.rung.level < desired.rung.level:
        # Of the marks of a rung with several levels those of the level that it leaves count.
        assert any(beyond(signal) for signal in found)


def beyond(signal):
    return signal.now < signal.opens if signal.above else signal.now >= signal.opens


@given(available=SHARE)
def test_memory_closes_a_node_below_its_mark(available):
    picture = node(memory_available_bytes=max(1, int(available * 10 * GIB)))
    (memory,) = [one for one in signals("close", picture, SETTINGS) if "memory" in one.what]
    desired, _ = Close().decide(picture, Close().start(CONTEXT), SETTINGS.close, CONTEXT)
    if clear(memory):
        assert desired.rung.engaged == memory.speaks


def test_what_is_not_known_speaks_for_nothing():
    blind = node(ls=None, pressure=None, busy=None, memory_available_bytes=None)
    for name in ("burst", "suppress", "contention", "memory", "io", "pids", "close", "evict", "kill"):
        found = signals(name, blind, SETTINGS)
        assert found
        assert all(signal.now is None and signal.speaks is None for signal in found if "API" not in signal.what), name
    assert signals("batch_limits", blind, SETTINGS) == ()


def test_a_drill_is_the_signal_alone():
    deaf = msgspec.structs.replace(SETTINGS, shortage=msgspec.structs.replace(SETTINGS.shortage, run_delay_cut=100.0))
    (signal,) = signals("contention", node(pressure=DRILL), deaf)
    assert (signal.what, signal.speaks) == ("a drill raises LS pressure", True)


def test_the_ladder_above_counts_for_close_and_evict():
    contention = RungStatus(name="contention", level=4, top=4, since=90.0, reason="r")
    picture = replace(node(pressure=SHORT), ladder={"contention": contention})
    (level,) = [one for one in signals("close", picture, SETTINGS) if one.what == "level of contention"]
    assert (level.now, level.enters, level.lasts_seconds, level.speaks) == (4, 4, 10.0, True)
    assert signals("evict", picture, SETTINGS)[-1] == Signal(
        what="level of contention", now=4, unit="of 4", enters=4, joint=True
    )


def rung(level, since, name="close", reason="r"):
    return {name: RungStatus(name=name, level=level, top=1, since=since, reason=reason, opens_when="calm")}


def test_changes_are_dated_by_the_rung_itself():
    changes = Changes(5.0)
    changes.look(rung(0, None), 100.0, 1000.0)
    assert changes.newest() == ()
    changes.look(rung(1, 100.4), 101.0, 1001.0)
    changes.look(rung(1, 100.4), 102.0, 1002.0)
    changes.look(rung(0, 130.0, reason=""), 130.5, 1030.5)
    opened, closed = changes.newest()
    assert (closed.at, closed.before, closed.after, closed.reason) == (pytest.approx(1000.4), 0, 1, "r")
    assert (opened.at, opened.before, opened.after, opened.reason) == (pytest.approx(1030.0), 1, 0, "open: calm")


def test_a_rung_that_moves_often_does_not_push_out_the_others():
    changes = Changes(0.0)
    changes.look(rung(1, 1.0), 1.0, 1.0)
    for number in range(5 * KEPT):
        changes.look(rung(number % 2, float(number), name="contention"), float(number), float(number))
    names = [change.name for change in changes.newest(1000)]
    assert (names.count("contention"), names.count("close")) == (KEPT, 1)


def turn(**snapshot):
    be = pod("be", throttled_ratio=0.25, containers=(ContainerSnapshot(group="kubepods/be/c", id="c", name="main"),))
    quota = Request(policy="contention", group="kubepods/be", knob=Knob.QUOTA, value=300, reason="LS waits")
    limit = Request(policy="batch_limits", group="kubepods/be/c", knob=Knob.MEMORY_MAX, value=64, reason="its limit")
    plan = Plan(
        settings={(one.group, one.knob): one for one in (quota, limit)},
        reasons={"contention": "LS waits", "weight": "BE comes last"},
        rungs=rung(3, 97.0, name="contention", reason="LS waits"),
        be_limit_millis=300,
        be_limit_reason="LS waits",
    )
    picture = node(pods=(pod("ls", Tier.LS), be), pressure=SHORT, **snapshot)
    return Turn(number=1, wall=1e9, seconds=0.001, snapshot=picture, plan=plan, held="", line="a sentence")


@pytest.fixture
def explainer(tmp_path):
    settings = msgspec.structs.replace(SETTINGS, state_dir=str(tmp_path))
    return Explainer("n1", lambda: settings, writes=lambda: True, lost=lambda: 2, since=5.0)


def test_the_ladder_tells_each_policy_with_its_figures_and_times(explainer):
    with pytest.raises(RuntimeError, match="no turn"):
        explainer.ladder()
    explainer.look(turn())
    ladder = msgspec.json.decode(explainer.ladder(), type=Ladder)
    assert [line.name for line in ladder.rungs] == list(SETTINGS.policies)
    by_name = {line.name: line for line in ladder.rungs}
    contention = by_name["contention"]
    assert (contention.level, contention.top, contention.for_seconds) == (3, 1, pytest.approx(3.0))
    assert (contention.quiet_seconds, contention.dwell_seconds) == (1.5, 1.0)
    assert contention.signals[0].now == pytest.approx(2.5)
    assert (by_name["weight"].level, by_name["weight"].reason) == (None, "BE comes last")
    assert by_name["evict"].reason == "not asked yet"
    assert (ladder.be_limit_millis, ladder.since, ladder.at) == (300, 5.0, 1e9)
    assert [change.name for change in ladder.changes] == ["contention"]
    assert "LS waits for CPU" in ladder.shortage


def test_a_pod_is_told_with_all_that_holds_it(explainer):
    explainer.look(turn())
    held = msgspec.json.decode(explainer.pod({"uid": "be"}), type=HeldPod)
    assert (held.known, held.tier, held.throttled_ratio, held.cpu_millis) == (True, "BE", 0.25, 500)
    assert {(one.knob, one.value, one.policy, one.container) for one in held.holds} == {
        ("cpu.quota", "300", "contention", ""),
        ("memory.max", "64", "batch_limits", "main"),
    }
    assert not msgspec.json.decode(explainer.pod({"uid": "other"}), type=HeldPod).known
    assert not msgspec.json.decode(explainer.pod({}), type=HeldPod).known


def line(number, name="be", outcome="sent", way=Way.EVICT):
    return AuditLine(
        at=float(number),
        wall=1000.0 + number,
        boot_id="b",
        namespace="d",
        name=name,
        uid=f"uid-{name}",
        way=way,
        outcome=outcome,
        reason="LS is short",
        numbers={"priority": "5000"},
    )


def test_evictions_are_the_newest_first_with_the_budget(explainer, tmp_path):
    assert msgspec.json.decode(explainer.evictions({}), type=Evictions).since is None
    audit = Audit(str(tmp_path), 1 << 20)
    for number in range(4):
        audit.append(line(number, "be" if number % 2 else "beyond"))
    with open(tmp_path / "evictions.jsonl", "a") as file:
        file.write('{"torn')
    evictor = EvictorView(spent=(Spent(uid="u", at=90.0, way=Way.EVICT),))
    explainer.look(turn(evictor=evictor))
    told = msgspec.json.decode(explainer.evictions({}), type=Evictions)
    assert [one.at for one in told.decisions] == [1003.0, 1002.0, 1001.0, 1000.0]
    assert (told.since, told.lost, told.unreadable) == (1000.0, 2, 1)
    assert (told.evicted_in_hour, told.killed_in_hour, told.evictions_per_hour) == (1, 0, 12)
    only = msgspec.json.decode(explainer.evictions({"pod": "d/be"}), type=Evictions)
    assert [(one.name, one.at) for one in only.decisions] == [("be", 1003.0), ("be", 1001.0)]
    assert only.decisions[0].numbers == {"priority": "5000"}


def test_the_tail_is_read_over_the_rotation(tmp_path):
    audit = Audit(str(tmp_path), 4096)
    for number in range(40):
        audit.append(line(number))
    tail = read_tail(str(tmp_path), 3)
    assert [one.at for one in tail.lines] == [37.0, 38.0, 39.0]
    assert tail.since is not None
    assert tail.since > 1000.0
    assert read_tail(str(tmp_path / "none"), 3).lines == ()


def test_only_what_is_written_holds_a_pod(tmp_path):
    observing = Explainer("n1", lambda: SETTINGS, writes=lambda: False, lost=lambda: 0, since=0.0)
    observing.look(turn())
    assert msgspec.json.decode(observing.pod({"uid": "be"}), type=HeldPod).holds == ()
    assert not msgspec.json.decode(observing.ladder(), type=Ladder).writes
    assert CALM.excess == 0
