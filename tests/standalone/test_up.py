import os
import signal
import subprocess
import sys
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.cluster.client import Listing
from slacktide.cluster.errors import Conflict, NotFound
from slacktide.errors import StateError
from standalone import drain as drain_module
from standalone import up
from standalone.drain import PodDrain, longest_grace, names
from standalone.process import ProcessId, alive
from standalone.state import Lock, find, holder
from standalone.supervisor import read_report
from standalone.up import StartFailed, StopRequests, clean, node_name, run
from tests.standalone.up_twin import ALL, FakeDrain, fakes, pod


@pytest.fixture
def root():
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        yield folder


def stop_when_ready(stop, seen=None):
    def on_turn(supervisor):
        if supervisor.all_ready() and not stop.count:
            stop.count = 1
            if seen is not None:
                seen.update({name: ProcessId(r.pid, r.start_time) for name, r in supervisor.reports.items()})

    return on_turn


def test_everything_comes_up_and_nothing_is_left(root):
    stop, seen, order, drain = StopRequests(), {}, [], FakeDrain(rounds=2)
    problems = run(
        root,
        "n1",
        stop,
        on_turn=stop_when_ready(stop, seen),
        on_change=lambda r: order.append((r.name, r.status)),
        daemons=fakes(),
        drains=lambda _: drain,
    )
    assert problems == []
    assert drain.asked == 3
    ended = [name for name, status in order if status == "stopped"]
    assert ended == ["scheduler", "agent", "predictor", "runner", "api"]
    assert sorted(seen) == sorted(ALL)
    assert not any(alive(process) for process in seen.values())
    assert os.listdir(os.path.join(root, "run")) == []
    assert holder(root) is None


def test_pods_end_while_the_runner_is_still_there(root):
    stop = StopRequests()
    here = []

    class Watching(FakeDrain):
        def remaining(self):
            report = read_report(find(root))
            here.append({c.name for c in report.components if c.pid})
            assert report.phase == "stopping"
            return super().remaining()

    run(root, "n1", stop, on_turn=stop_when_ready(stop), daemons=fakes(), drains=lambda _: Watching(rounds=1))
    assert here == [{"api", "runner", "predictor", "agent"}] * 2


def test_second_request_kills_pods(root):
    stop, drain = StopRequests(), FakeDrain(stubborn=True)
    ready = stop_when_ready(stop)

    def on_turn(supervisor):
        ready(supervisor)
        if drain.asked:
            stop.count = 2

    assert run(root, "n1", stop, on_turn=on_turn, daemons=fakes(), drains=lambda _: drain) == []
    assert drain.forced == 1


def test_pods_that_never_end_are_named(root, monkeypatch):
    monkeypatch.setattr(up, "DRAIN_EXTRA_SECONDS", 0.6)

    class Immortal(FakeDrain):
        grace = 0

        def force(self):
            self.forced += 1

    stop, drain = StopRequests(), Immortal(stubborn=True)
    problems = run(root, "n1", stop, on_turn=stop_when_ready(stop), daemons=fakes(), drains=lambda _: drain)
    assert problems == ["pods did not end in time: default/p"]
    assert drain.forced == 1


def test_an_api_that_does_not_answer_does_not_stop_the_stop(root, monkeypatch):
    monkeypatch.setattr(up, "API_PATIENCE_SECONDS", 0.3)
    stop, drain = StopRequests(), FakeDrain(away=10**6)
    (problem,) = run(root, "n1", stop, on_turn=stop_when_ready(stop), daemons=fakes(), drains=lambda _: drain)
    assert "could not be ended through the API: connection refused" in problem
    assert os.listdir(os.path.join(root, "run")) == []


def test_an_api_that_is_away_for_a_moment_is_waited_for(root):
    stop, drain = StopRequests(), FakeDrain(away=2)
    assert run(root, "n1", stop, on_turn=stop_when_ready(stop), daemons=fakes(), drains=lambda _: drain) == []


def test_a_daemon_that_will_not_come_up_ends_the_start_with_its_words(root):
    stop = StopRequests()
    with pytest.raises(StartFailed) as caught:
        run(root, "n1", stop, daemons=fakes(agent=("exit=2",)), drains=lambda _: FakeDrain())
    text = str(caught.value)
    assert text.startswith("agent does not come up (exit code 2 (its settings cannot be used)); its log is ")
    assert "I cannot live like this" in text
    assert os.listdir(os.path.join(root, "run")) == []
    assert holder(root) is None


def test_a_second_up_is_refused_and_the_first_goes_on(root):
    stop, refused = StopRequests(), []
    ready = stop_when_ready(stop)

    def on_turn(supervisor):
        if supervisor.all_ready() and not refused:
            with pytest.raises(StateError, match=rf"in use.*pid {os.getpid()}") as caught:
                run(root, "n1", StopRequests(), daemons=fakes(), drains=lambda _: FakeDrain())
            refused.append(str(caught.value))
            assert supervisor.all_ready()
        ready(supervisor)

    assert run(root, "n1", stop, on_turn=on_turn, daemons=fakes(), drains=lambda _: FakeDrain()) == []
    assert refused


def test_a_daemon_killed_while_pods_end_comes_back(root):
    stop, restarted = StopRequests(), []
    ready = stop_when_ready(stop)

    class Killing(FakeDrain):
        def remaining(self):
            if self.asked == 0:
                os.kill(next(c.pid for c in read_report(find(root)).components if c.name == "runner"), signal.SIGKILL)
            return super().remaining()

    def on_turn(supervisor):
        ready(supervisor)
        restarted.append(supervisor.reports["runner"].restarts)

    drain = Killing(rounds=6)
    assert run(root, "n1", stop, on_turn=on_turn, daemons=fakes(), drains=lambda _: drain) == []
    assert restarted[-1] == 1


SUPERVISOR = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.standalone.up_twin import FakeDrain, fakes
from standalone.up import StopRequests, run
stop = StopRequests()
stop.install(hangup_stops=False)
said = []
def on_turn(supervisor):
    if supervisor.all_ready() and not said:
        said.append(print("ready", flush=True))
run(sys.argv[2], "n1", stop, on_turn=on_turn, daemons=fakes(), drains=lambda _: FakeDrain(rounds=1))
"""


@pytest.fixture
def running(root):
    house = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, house, root], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def recorded(root):
    return [ProcessId(c.pid, c.start_time) for c in read_report(find(root)).components]


def test_sigterm_ends_it_in_order(root, running):
    processes = recorded(root)
    running.send_signal(signal.SIGTERM)
    assert running.wait(20) == 0
    assert not any(map(alive, processes))
    assert os.listdir(os.path.join(root, "run")) == []


def test_after_kill_9_the_next_up_starts_clean(root, running):
    before = recorded(root)
    running.kill()
    running.wait()
    stop, seen = StopRequests(), {}
    assert (
        run(root, "n1", stop, on_turn=stop_when_ready(stop, seen), daemons=fakes(), drains=lambda _: FakeDrain()) == []
    )
    assert not any(map(alive, before))
    assert {p.pid for p in before}.isdisjoint({p.pid for p in seen.values()})


def test_after_kill_9_clean_up_starts_only_api_and_runner(root, running):
    before = recorded(root)
    running.kill()
    running.wait()
    nodes = []

    def daemons(state, node):
        nodes.append(node)
        return fakes()(state, node)

    drain = FakeDrain(rounds=1)
    assert clean(root, daemons=daemons, drains=lambda _: drain) == []
    assert nodes == ["n1"]
    assert not any(map(alive, before))
    assert os.listdir(os.path.join(root, "run")) == []


def test_hangup_reloads_every_daemon(root):
    stop, hung_up = StopRequests(), []

    def on_turn(supervisor):
        if supervisor.all_ready() and not stop.reloads:
            hung_up.extend(ProcessId(r.pid, r.start_time) for r in supervisor.reports.values())
            stop._reload()
        elif hung_up and all(r.restarts == 1 for r in supervisor.reports.values()):
            stop._stop()

    # A fake daemon dies of SIGHUP, which shows that it got one.
    assert run(root, "n1", stop, on_turn=on_turn, daemons=fakes(), drains=lambda _: FakeDrain()) == []
    assert not any(map(alive, hung_up))


@pytest.mark.parametrize(
    ("hostname", "name"),
    [
        ("Web-01.Example.COM", "web-01-example-com"),
        ("x" * 80, "x" * 63),
        ("___", "localhost"),
        ("", "localhost"),
        ("-a-", "a"),
    ],
)
def test_node_name_from_host_name(hostname, name):
    assert node_name("", hostname) == name


@given(st.text(max_size=100))
def test_any_host_name_gives_a_label_that_is_accepted(hostname):
    made = node_name("", hostname)
    assert node_name(made, "") == made


@pytest.mark.parametrize("name", ["A", "a.b", "-a", "a-", "a" * 64, "a b", "\N{SNOWMAN}", "a\n"])
def test_bad_node_name_is_refused(name):
    with pytest.raises(StateError, match="no DNS label"):
        node_name(name, "host")


def test_main_says_what_is_wrong_and_leaves_with_2(root, capsys):
    old = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    try:
        assert up.main(["--state", root, "--nodee", "x"]) == 2
        assert "--node" in capsys.readouterr().err
        assert up.main(["--state", root, "--node", "No Label"]) == 2
        assert "no DNS label" in capsys.readouterr().err
        with Lock(root):
            assert up.main(["--state", root]) == 2
        assert "in use" in capsys.readouterr().err
        assert up.main(["--state", root + "/" + "x" * 120]) == 2
        assert "a Unix socket may have 107" in capsys.readouterr().err
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), old, strict=True):
            signal.signal(number, handler)


class Api:
    """The two calls that a drain makes."""

    def __init__(self, *pods):
        self.pods, self.deleted, self.refuse = list(pods), [], {}

    def list(self, kind):
        return Listing(tuple(self.pods), "1")

    def delete(self, kind, name, namespace, uid=None, grace_period_seconds=None):
        if name in self.refuse:
            raise self.refuse[name]
        self.deleted.append((name, uid, grace_period_seconds))


def test_drain_deletes_each_pod_once_by_uid_with_its_own_grace():
    api = Api(pod("a", uid="1"), pod("b", uid="2", deletion_timestamp="2026-01-01T00:00:00Z"))
    assert len(PodDrain(api).remaining()) == 2
    assert api.deleted == [("a", "1", None)]


def test_drain_by_force_takes_what_is_ending_too():
    api = Api(pod("a", uid="1"), pod("b", uid="2", deletion_timestamp="2026-01-01T00:00:00Z"))
    PodDrain(api).force()
    assert api.deleted == [("a", "1", 0), ("b", "2", 0)]


def test_a_pod_that_vanishes_meanwhile_is_no_error():
    api = Api(pod("a"), pod("b"), pod("c"))
    api.refuse = {"a": NotFound(404, "NotFound", ""), "b": Conflict(409, "Conflict", "uid")}
    assert len(PodDrain(api).remaining()) == 3
    assert [name for name, *_ in api.deleted] == ["c"]


def test_longest_grace_is_what_is_waited_for():
    assert longest_grace([]) == 0
    assert longest_grace([pod("a", grace=0), pod("b", grace=7)]) == 7
    assert longest_grace([pod("a", grace=7), pod("b")]) == drain_module.DEFAULT_GRACE_SECONDS


def test_pods_in_words():
    assert names([pod("a"), pod("b")]) == "default/a, default/b"
    assert names([pod(str(n)) for n in range(7)]).endswith("default/4 and 2 more")
