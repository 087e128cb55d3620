import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standalone import supervisor as module
from standalone.components import STOP_ORDER, Component, components
from standalone.probe import Answer
from standalone.process import ProcessId, alive, identify
from standalone.restart import RestartPolicy, after_exit
from standalone.state import Lock, create, prepare
from standalone.supervisor import Supervisor, describe_exit, read_report, rotate, stop_leftovers, tail

FAKE = os.path.join(os.path.dirname(__file__), "fake_daemon.py")
FAST = RestartPolicy(first_seconds=0.02, longest_seconds=0.1)


@pytest.fixture
def state():
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        create(folder)
        with Lock(folder):
            yield prepare(folder)


def fake(state, name, *traits, after=()):
    socket = state.observe_socket(name)
    return Component(name, (sys.executable, "-S", "-E", FAKE, socket, *traits), socket, after)


@contextlib.contextmanager
def supervised(state, *daemons, **options):
    supervisor = Supervisor(daemons, state, "n1", **{"policy": FAST, **options})
    try:
        yield supervisor
    finally:
        for name in supervisor.reports:
            supervisor.stop(name, 5.0)


def turn_until(supervisor, condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, [msgspec.to_builtins(r) for r in supervisor.reports.values()]
        supervisor.turn()
        time.sleep(0.005)


def test_starts_in_order_and_says_when_all_are_ready(state):
    order = []
    daemons = [fake(state, "api"), fake(state, "runner", after=("api",)), fake(state, "agent", after=("api",))]
    with supervised(state, *daemons, on_change=lambda r: order.append((r.name, r.status))) as supervisor:
        supervisor.turn()
        assert supervisor.reports["runner"].status == "waiting"
        assert supervisor.reports["runner"].pid is None
        assert read_report(state).phase == "starting"
        turn_until(supervisor, supervisor.all_ready)
        assert order.index(("api", "ready")) < order.index(("runner", "starting"))
        report = read_report(state)
        assert report.phase == "ready"
        assert ProcessId(report.pid, report.start_time) == identify(os.getpid())
        assert all(alive(ProcessId(c.pid, c.start_time)) for c in report.components)


def test_a_killed_daemon_comes_back_and_the_others_are_not_touched(state):
    with supervised(state, fake(state, "api"), fake(state, "agent", after=("api",))) as supervisor:
        turn_until(supervisor, supervisor.all_ready)
        api, agent = supervisor.reports["api"].pid, supervisor.reports["agent"].pid
        os.kill(api, signal.SIGKILL)
        turn_until(supervisor, lambda: supervisor.reports["api"].restarts == 1 and supervisor.all_ready())
        assert supervisor.reports["api"].pid != api
        assert supervisor.reports["agent"].pid == agent
        assert supervisor.reports["agent"].restarts == 0


def test_each_killed_in_turn_there_is_one_of_each(state):
    with supervised(state, fake(state, "api"), fake(state, "agent", after=("api",))) as supervisor:
        turn_until(supervisor, supervisor.all_ready)
        seen = set()
        for name in ("agent", "api", "agent"):
            seen |= {r.pid for r in supervisor.reports.values()}
            before = supervisor.reports[name].restarts
            os.kill(supervisor.reports[name].pid, signal.SIGKILL)
            turn_until(supervisor, lambda: supervisor.reports[name].restarts == before + 1 and supervisor.all_ready())  # noqa: B023 - called before the name changes
        alive_now = {r.pid for r in supervisor.reports.values()}
        assert not any(identify(pid) for pid in seen - alive_now)


def test_bad_settings_are_a_start_failure_at_once(state):
    with supervised(state, fake(state, "api", "exit=2")) as supervisor:
        turn_until(supervisor, lambda: supervisor.start_failure() is not None)
        assert supervisor.start_failure() == "api"
        assert supervisor.reports["api"].restarts == 0
        assert "settings" in supervisor.reports["api"].detail
        assert "I cannot live like this" in tail(state.log_file("api"))


def test_a_daemon_that_keeps_ending_is_a_start_failure_and_a_crash_loop(state):
    with supervised(state, fake(state, "api"), fake(state, "agent", "exit=7", after=("api",))) as supervisor:
        turn_until(supervisor, lambda: supervisor.start_failure() == "agent")
        turn_until(supervisor, lambda: supervisor.reports["agent"].status == "crash loop")
        assert supervisor.reports["agent"].restarts >= 4
        assert "exit code 7" in supervisor.reports["agent"].detail
        assert supervisor.reports["api"].status == "ready"


def test_a_daemon_that_once_was_ready_is_no_start_failure(state):
    with supervised(state, fake(state, "api")) as supervisor:
        turn_until(supervisor, supervisor.all_ready)
        for _ in range(3):
            os.kill(supervisor.reports["api"].pid, signal.SIGKILL)
            before = supervisor.reports["api"].restarts
            turn_until(supervisor, lambda: supervisor.reports["api"].restarts > before)  # noqa: B023 - called at once
            assert supervisor.start_failure() is None


def test_unready_daemon_says_why_in_its_own_words(state):
    with supervised(state, fake(state, "api", "unready")) as supervisor:
        turn_until(supervisor, lambda: supervisor.reports["api"].detail == "because")
        assert supervisor.reports["api"].status == "starting"
        assert not supervisor.all_ready()


def test_silent_daemon_is_killed_after_a_minute_and_started_again(state):
    now = [0.0]
    with supervised(state, fake(state, "api", "deaf"), clock=lambda: now[0]) as supervisor:
        supervisor.turn()
        pid = supervisor.reports["api"].pid
        now[0] = 59.0
        supervisor.turn()
        assert supervisor.reports["api"].pid == pid
        now[0] = 61.0
        supervisor.turn()
        turn_until(supervisor, lambda: supervisor.reports["api"].pid != pid)
        assert supervisor.reports["api"].detail.startswith("killed by SIGKILL")


def test_stop_kills_only_what_does_not_end_by_itself(state):
    with supervised(state, fake(state, "api"), fake(state, "agent", "stubborn")) as supervisor:
        turn_until(supervisor, supervisor.all_ready)
        assert supervisor.stop("api")
        assert not supervisor.stop("agent", grace=0.05)
        assert supervisor.stop("agent")
        assert supervisor.stop("no such daemon")
        supervisor.turn()
        assert [r.status for r in supervisor.reports.values()] == ["stopped", "stopped"]


def test_stopped_daemon_stays_stopped_while_the_rest_is_kept_up(state):
    with supervised(state, fake(state, "api"), fake(state, "agent")) as supervisor:
        turn_until(supervisor, supervisor.all_ready)
        supervisor.begin_stop()
        supervisor.stop("agent")
        os.kill(supervisor.reports["api"].pid, signal.SIGKILL)
        turn_until(supervisor, lambda: supervisor.reports["api"].restarts == 1)
        assert supervisor.reports["agent"].status == "stopped"
        assert read_report(state).phase == "stopping"


def test_daemons_do_not_share_the_terminal(state):
    with supervised(state, fake(state, "api")) as supervisor:
        turn_until(supervisor, supervisor.all_ready)
        pid = supervisor.reports["api"].pid
        assert os.getsid(pid) == pid != os.getsid(0)


def test_a_full_disk_is_reported_and_supervision_goes_on(state):
    def no_space(component, log):
        raise OSError(28, "No space left on device", log)

    with supervised(state, fake(state, "api"), spawner=no_space) as supervisor:
        supervisor.turn()
        assert "No space left" in supervisor.trouble
        assert "cannot be started" in supervisor.reports["api"].detail
        supervisor.turn()


SUPERVISOR = """
import sys, time
from standalone.components import Component
from standalone.state import Lock, prepare, create
from standalone.supervisor import Supervisor
root, fake, traits = sys.argv[1], sys.argv[2], sys.argv[3:]
create(root)
with Lock(root):
    state = prepare(root)
    path = state.observe_socket("api")
    supervisor = Supervisor([Component("api", (sys.executable, "-S", "-E", fake, path, *traits), path)], state, "n1")
    while not supervisor.all_ready():
        supervisor.turn()
        time.sleep(0.01)
    supervisor.turn()
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("traits", [(), ("stubborn",)])
def test_daemons_of_a_killed_supervisor_end_or_are_ended_by_the_next(traits):
    with tempfile.TemporaryDirectory(prefix="st") as root:
        first = subprocess.Popen([sys.executable, "-c", SUPERVISOR, root, FAKE, *traits], stdout=subprocess.PIPE)
        daemon = None
        try:
            assert first.stdout.readline() == b"ready\n"
            first.kill()
            first.wait()
            with Lock(root):
                state = prepare(root)
                recorded = read_report(state).components[0]
                daemon = ProcessId(recorded.pid, recorded.start_time)
                if traits:
                    assert alive(daemon)
                    assert stop_leftovers(state, grace=0.05) == ["api"]
                else:
                    # PR_SET_PDEATHSIG did it; nothing may be left to wait for.
                    stop_leftovers(state)
                assert not alive(daemon)
        finally:
            first.kill()
            first.wait()
            first.stdout.close()
            if daemon and alive(daemon):
                os.kill(daemon.pid, signal.SIGKILL)


def test_leftovers_are_never_found_by_pid_alone(state):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        me = identify(bystander.pid)
        report = {"pid": 1, "start_time": 0, "node": "n", "phase": "ready", "updated": 0.0}
        entry = {"name": "agent", "pid": me.pid, "start_time": me.start_time - 1}
        with open(state.supervisor_file, "wb") as file:
            file.write(msgspec.json.encode({**report, "components": [entry]}))
        assert stop_leftovers(state) == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_damaged_report_is_no_report(state):
    with open(state.supervisor_file, "wb") as file:
        file.write(b'{"pid": ')
    assert read_report(state) is None
    assert stop_leftovers(state) == []


def test_unchanged_report_is_not_written_again(state):
    with supervised(state, fake(state, "api"), probe=lambda _: Answer(True, True, "")) as supervisor:
        supervisor.turn()
        before = os.stat(state.supervisor_file).st_ino
        supervisor.turn()
        assert os.stat(state.supervisor_file).st_ino == before


def test_log_is_kept_bounded_and_the_writer_goes_on(tmp_path):
    log = str(tmp_path / "x.log")
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, b"a" * 100)
        rotate(log, 99)
        os.write(descriptor, b"b\n")
    finally:
        os.close(descriptor)
    assert (tmp_path / "x.log.1").read_bytes() == b"a" * 100
    assert (tmp_path / "x.log").read_bytes() == b"b\n"
    rotate(log, 99)
    assert (tmp_path / "x.log").read_bytes() == b"b\n"
    rotate(str(tmp_path / "none.log"))


def test_tail_shows_the_end(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(b"".join(b"line %d \xff\n" % number for number in range(20_000)))
    assert tail(str(log), 2).splitlines() == [
        "line 19998 \N{REPLACEMENT CHARACTER}",
        "line 19999 \N{REPLACEMENT CHARACTER}",
    ]
    assert tail(str(tmp_path / "none")) == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0 without"),
        (2, "settings"),
        (7, "exit code 7"),
        (-9, "killed by SIGKILL"),
        (-200, "killed by signal 200"),
    ],
)
def test_exits_in_words(code, words):
    assert words in describe_exit(code)


def test_backoff_doubles_to_a_cap_and_is_called_a_loop():
    policy = RestartPolicy()
    failures, delays, loops = 0, [], []
    for _ in range(10):
        verdict = after_exit(failures, 1.0, policy)
        failures = verdict.failures
        delays.append(verdict.delay)
        loops.append(verdict.looping)
    assert delays[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert delays[-1] == 30.0
    assert loops == [False] * 4 + [True] * 6


@given(st.lists(st.floats(min_value=0, max_value=1e6), max_size=30))
def test_delay_never_falls_while_failing_and_is_first_again_after_a_good_life(lives):
    policy = RestartPolicy()
    failures, previous = 0, 0.0
    for lived in lives:
        verdict = after_exit(failures, lived, policy)
        assert policy.first_seconds <= verdict.delay <= policy.longest_seconds
        if lived >= policy.stable_seconds:
            assert verdict.delay == policy.first_seconds
        else:
            assert verdict.delay >= previous
        failures, previous = verdict.failures, verdict.delay


def test_restarts_follow_the_clock(state):
    now = [0.0]
    starts = []

    class Dead:
        pid = 2**22 + 1

        def poll(self):
            return 1

    def spawner(component, log):
        starts.append(now[0])
        return Dead()

    unanswered = Answer(False, False, "silent")
    daemon = fake(state, "api")
    supervisor = Supervisor([daemon], state, "n1", clock=lambda: now[0], spawner=spawner, probe=lambda _: unanswered)
    for step in range(4000):
        now[0] = step / 100
        supervisor.turn()
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert gaps[:5] == pytest.approx([0.21, 0.41, 0.81, 1.61, 3.21], abs=0.011)
    assert supervisor.reports["api"].status == "crash loop"


def test_every_daemon_has_its_place_in_the_order_of_ending(state):
    daemons = components(state, "n1")
    assert sorted(STOP_ORDER) == sorted(daemon.name for daemon in daemons)
    assert daemons[0].name == STOP_ORDER[-1] == "api"
    assert all(daemon.after == ("api",) for daemon in daemons[1:])
    assert len({daemon.observe for daemon in daemons}) == len(daemons)


def test_settings_file_of_a_component_is_passed_on(state):
    with open(state.config_file("agent"), "w"):
        pass
    by_name = {daemon.name: daemon.argv for daemon in components(state, "n1")}
    assert by_name["agent"][-2:] == ("--config", state.config_file("agent"))
    assert "--config" not in by_name["runner"]


def test_tether_refuses_an_orphaned_start(tmp_path):
    tether = module._TETHER
    command = [sys.executable, "-S", "-E", tether, "1", sys.executable, "-c", "open('born', 'w')"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 1
    assert "ended before" in process.stderr
    assert not (tmp_path / "born").exists()


def test_a_daemon_that_cannot_handle_a_hangup_yet_does_not_die_of_it():
    code = "import os, signal; os.kill(os.getpid(), signal.SIGHUP); print('alive')"
    command = [sys.executable, "-S", "-E", module._TETHER, str(os.getpid()), sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "alive\n"


def test_tether_says_what_it_cannot_execute():
    command = [sys.executable, "-S", "-E", module._TETHER, str(os.getpid()), "/no/such/python", "-m", "x"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 127
    assert "cannot execute /no/such/python" in process.stderr
