"""A drill as a state machine, and the board between its callers and the control thread."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.drill import Drill, Kind, Order, Phase, Seen, abort
from agent.drill_board import Busy, DrillBoard, Unknown, for_real
from agent.drill_steps import advance
from agent.eviction import Attempt, Outcome, Victim, Way
from agent.policy.rung import RungStatus


def order(drill_id="d1", **changed):
    values = {
        "id": drill_id,
        "kind": Kind.PRESSURE,
        "duration_seconds": 10.0,
        "dry_run": False,
        "victims_max": 2,
        "reason": "game day",
        "caller": "me",
        "dead_man_seconds": 5.0,
        "recover_seconds": 30.0,
    }
    return Order(**{**values, **changed})


def rung(name, level=1):
    return RungStatus(name=name, level=level, top=3, since=0.0, reason=f"{name} holds")


def seen(at, *rungs, limit=None, victims=(), attempts=()):
    return Seen(
        at=at, rungs={one.name: one for one in rungs}, be_limit_millis=limit, victims=victims, attempts=attempts
    )


def victim(uid, drill="d1"):
    return Victim(
        namespace="n", name=uid, uid=uid, group=f"kubepods/pod{uid}", way=Way.EVICT, reason="drilled", drill=drill
    )


def sent(uid, outcome=Outcome.SENT):
    return Attempt(uid=uid, way=Way.EVICT, outcome=outcome, at=0.0)


def run(drill, *steps):
    for step in steps:
        drill = advance(drill, step)
    return drill


def test_a_whole_drill_has_all_times():
    held = rung("contention")
    drill = run(
        Drill(order=order()),
        seen(100.0),
        seen(100.05, held),
        seen(100.06, held, limit=500),
        seen(103.0, held, limit=100, victims=(victim("a"),)),
        seen(103.2, held, limit=100, victims=(victim("a"),), attempts=(sent("a"),)),
        seen(110.0, held, limit=100),
        seen(115.0, rung("contention", 0), limit=None),
    )
    assert drill.phase is Phase.RECOVERED
    times = [drill.detected_at, drill.throttled_at, drill.evicted_at, drill.lowered_at, drill.recovered_at]
    assert [round(drill.since_raised(at), 3) for at in times] == [0.05, 0.06, 3.2, 10.0, 15.0]
    assert [(one.victim.uid, one.evicted) for one in drill.victims] == [("a", True)]


def test_a_limit_of_another_rung_is_no_reaction():
    drill = run(Drill(order=order()), seen(0.0), seen(1.0, rung("memory"), limit=700))
    assert (drill.phase, drill.detected_at, drill.throttled_at) == (Phase.RAISED, None, None)


def test_other_rungs_do_not_keep_it_from_recovering():
    drill = run(Drill(order=order()), seen(0.0), seen(10.0), seen(11.0, rung("memory"), rung("weight")))
    assert drill.phase is Phase.RECOVERED


def test_no_recovery_in_time_is_a_failure_that_names_what_holds():
    drill = run(Drill(order=order()), seen(0.0), seen(10.0), *(seen(10.0 + n, rung("evict")) for n in range(1, 31)))
    assert drill.phase is Phase.FAILED
    assert "evict still in force" in drill.message


def test_victims_of_others_are_not_its_own():
    drill = run(
        Drill(order=order()),
        seen(0.0),
        seen(1.0, victims=(victim("a", drill=""), victim("b", drill="d0")), attempts=(sent("a"), sent("b"))),
    )
    assert drill.victims == ()


@pytest.mark.parametrize(
    ("dry", "attempts", "left"),
    [(False, (sent("a"),), 1), (False, (sent("a", Outcome.BLOCKED),), 2), (True, (), 1)],
)
def test_the_budget_counts_what_was_evicted_or_in_a_dry_run_named(dry, attempts, left):
    drill = run(Drill(order=order(dry_run=dry)), seen(0.0), seen(1.0, victims=(victim("a"),), attempts=attempts))
    assert drill.for_policies.victims_left == left
    assert drill.for_policies.dry_run is dry


def test_policies_know_of_it_only_while_it_presses():
    fresh = Drill(order=order())
    assert fresh.for_policies is None
    assert run(fresh, seen(0.0)).for_policies is not None
    assert run(fresh, seen(0.0), seen(10.0)).for_policies is None
    assert abort(run(fresh, seen(0.0)), "stop", 1.0).for_policies is None


def test_a_dry_run_sends_nobody_and_a_real_one_only_while_it_presses():
    wanted = (victim("a", drill=""), victim("b"))
    pressing = run(Drill(order=order()), seen(0.0))
    assert for_real(wanted, pressing) == wanted
    assert for_real(wanted, run(Drill(order=order(dry_run=True)), seen(0.0))) == wanted[:1]
    assert for_real(wanted, abort(pressing, "stop", 1.0)) == wanted[:1]
    assert for_real(wanted, None) == wanted[:1]


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ended():
    return []


@pytest.fixture
def board(clock, ended):
    ids = iter(["d1", "d2", "d3"])
    return DrillBoard(
        clock, lambda _before, after: ended.append(after) if after.phase.ended else None, lambda: next(ids)
    )


def test_one_drill_at_a_time(board):
    assert board.start(order) == "d1"
    with pytest.raises(Busy, match="d1"):
        board.start(order)
    board.abort("d1", "enough")
    board.observe(seen(1000.0))
    assert board.start(order) == "d2"


def test_nobody_watching_ends_it(board, clock, ended):
    board.start(order)
    with board.watching("d1"):
        for now in (1000.0, 1004.0, 1008.0):
            clock.now = now
            board.observe(seen(now))
        assert board.active() is not None
    for now in (1009.0, 1012.9):
        board.observe(seen(now))
    assert board.active() is not None
    board.observe(seen(1013.0))
    assert board.active() is None
    assert ended[0].phase is Phase.ABORTED
    assert ended[0].message == "nobody watched for 5 s"
    assert board.counters == {"drills": 1, "drills_aborted": 1, "drills_failed": 0}


def test_abort_is_idempotent_and_knows_its_drill(board, ended):
    board.start(order)
    assert "ends with the next beat" in board.abort("d1", "aborted by me")
    board.abort("d1", "aborted by me")
    board.observe(seen(1000.0))
    assert "had ended already" in board.abort("d1", "again")
    assert [drill.message for drill in ended] == ["aborted by me"]
    with pytest.raises(Unknown):
        board.abort("dx", "why")


def test_a_watcher_hears_of_each_change(board):
    board.start(order)
    first = board.after("d1", None, 5)
    heard = []
    thread = threading.Thread(target=lambda: heard.append(board.after("d1", first, 10)))
    thread.start()
    board.observe(seen(1000.0))
    thread.join(10)
    assert heard[0].phase is Phase.RAISED


@given(
    st.lists(
        st.tuples(st.floats(0.01, 20), st.booleans(), st.one_of(st.none(), st.integers(10, 5000)), st.booleans()),
        max_size=60,
    )
)
def test_a_drill_never_presses_longer_than_asked_and_ends_once(steps):
    drill, now, ends = Drill(order=order(duration_seconds=5.0)), 0.0, 0
    drill = advance(drill, seen(now))
    for gap, engaged, limit, stop in steps:
        now += gap
        before = drill
        drill = advance(
            abort(drill, "stop", now) if stop else drill, seen(now, rung("contention", engaged), limit=limit)
        )
        ends += drill.phase.ended and not before.phase.ended
        assert not (drill.pressing and now - drill.raised_at >= 5.0)
        if before.phase.ended:
            assert drill is before
    assert ends <= 1
