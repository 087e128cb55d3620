"""`slacktide drill` on this machine, against an agent by script. With a cluster: tests/deploy/test_drills.py."""

from __future__ import annotations

import json
import signal
import sys
import time

import grpc
import msgspec
import pytest

from cli import drilllive
from cli.drillreach import Reach, agent_of, authority, connect, token_of
from cli.drillrecords import FileRecords
from cli.drillreport import Report
from cli.drillsites import RECORDS_FOLDER
from cli.exits import CommandError
from cli.session import StopSignals
from slacktide.cluster.errors import Forbidden, NotFound
from slacktide.objects import ObjectMeta, Pod, PodStatus
from slacktide.v1 import drill_pb2 as pb
from tests.cli.fake_agent import DRILL_ID, WAIT_SECONDS, FakeAgent, good_result, serving


@pytest.fixture
def agent(app):
    with serving(FakeAgent(), f"unix:{app.state().drill_socket}") as made:
        yield made


@pytest.fixture
def stop(app):
    made = StopSignals()
    app.stop_signals = lambda: made
    return made


def one_report(text):
    """The only drill of a JSON document, and every field of it known."""
    (found,) = json.loads(text)["drills"]
    assert set(found) == set(Report.__struct_fields__)
    return msgspec.convert(found, Report)


def test_a_drill_of_this_machine(command, out, err, agent, stop):
    agent.plan.victims.add(namespace="team", name="batch-1", reason="lowest priority, newest")
    agent.plan.expectations.append("contention: BE is halved each second")
    words = ("--yes", "--duration", "1s", "--victims-max", "2", "--dry-run", "--reason", "weekly")
    assert command("drill", "run", *words) == 0
    (order,) = agent.orders
    assert (order.pressure, order.duration_millis, order.victim_budget) == (pb.PRESSURE_KIND_SIGNAL, 1000, 2)
    assert (order.dry_run, order.reason, order.dead_man_millis) == (True, "weekly", 10_000)
    lines = [line.split() for line in out.text.splitlines()]
    assert lines[0] == ["STEP", "AFTER", "TARGET", "VERDICT"]
    assert ["detected", "0.25", "s", "2.00", "s", "met"] in lines
    assert ["recovered", "(after", "the", "trouble)", "1.00", "s", "60.00", "s", "met"] in lines
    assert ["throttled", "0.30", "s", "-", "-"] in lines
    assert out.text.splitlines()[-1] == f"drill {DRILL_ID} of this machine: passed"
    plan, _, live = err.text.partition("has begun")
    assert "team/batch-1: lowest priority, newest" in plan
    assert "contention: BE is halved each second" in plan
    assert "detected within 2 s" in plan
    assert "recovered within 60 s after the trouble" in plan
    steps = [line.split("s  ", 1)[1].split(":")[0] for line in live.splitlines() if line.startswith("  +")]
    assert steps[:3] == ["raised", "rung", "detected"]
    assert steps[-1] == "recovered"
    assert "(LS pressure 0.25)" in live


def test_as_json_with_the_schema_of_reports(command, out, err, agent, stop):
    assert command("drill", "run", "--yes", "--duration", "1", "-o", "json") == 0
    found = one_report(out.text)
    assert (found.id, found.phase, found.passed, found.recovered_millis) == (DRILL_ID, "recovered", True, 2000)
    assert (found.evicted_millis, found.ls_pressure_max) == (None, 0.25)
    assert [(one.step, one.took_millis, one.met) for one in found.targets] == [
        ("detected", 250, True),
        ("recovered", 1000, True),
    ]
    assert err.text == ""


KINDS = {
    (): (pb.PRESSURE_KIND_SIGNAL, 0, 10_000),
    ("--load", "30"): (pb.PRESSURE_KIND_LOAD, 30, 10_000),
    ("--intensity", "30", "--duration", "2m"): (pb.PRESSURE_KIND_LOAD, 30, 120_000),
    ("--kind", "memory"): (pb.PRESSURE_KIND_MEMORY, 0, 10_000),
    ("--kind", "bandwidth", "--duration", "500ms"): (pb.PRESSURE_KIND_BANDWIDTH, 0, 500),
    ("--kind", "agent-loss"): (pb.PRESSURE_KIND_AGENT_LOSS, 0, 10_000),
    ("--kind", "predictor-loss"): (pb.PRESSURE_KIND_PREDICTOR_LOSS, 0, 420_000),
    ("--kind", "stale"): (pb.PRESSURE_KIND_STALE, 0, 420_000),
}


@pytest.mark.parametrize("words", KINDS)
def test_kinds(command, agent, stop, words):
    assert command("drill", "run", "--yes", *words) == 0
    (order,) = agent.orders
    assert (order.pressure, order.intensity_percent, order.duration_millis) == KINDS[words]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--node", "n1", "--selector", "a=b", "--yes"), "give one"),
        (("--pick", "2", "--yes"), "--pick is for"),
        (("--kind", "memory", "--intensity", "5", "--yes"), "--intensity"),
        (("--duration", "ten", "--yes"), "30, 30s, 500ms or 2m"),
        (("--duration", "2h", "--yes"), "out of range"),
        (("--selector", "a=b", "--yes"), "this machine is one node"),
        (("--report", "/nowhere/report.md", "--yes"), "/nowhere/report.md"),
        ((), "--yes"),
        (("-o", "json"), "--yes"),
    ],
)
def test_bad_options_begin_nothing(command, err, agent, stop, words, said):
    assert command("drill", "run", *words) == 2
    assert said in err.text
    assert agent.orders == []


def test_a_cluster_needs_the_name_of_a_node(command, err, app):
    app.kubectl = True
    assert command("drill", "run", "--yes") == 2
    assert "which node" in err.text


def test_a_node_that_refuses_is_not_drilled(command, out, agent, stop):
    agent.plan.refusals.extend(["LS is short already", "no drills outside Mon-Fri 09:00-17:00"])
    assert command("drill", "run", "--yes", "-o", "json") == 3
    found = one_report(out.text)
    assert (found.phase, found.id, found.passed) == ("refused", "", None)
    assert found.refusals == ("LS is short already", "no drills outside Mon-Fri 09:00-17:00")
    assert agent.orders == []


def test_a_start_that_is_refused_is_no_drill(command, out, agent, stop):
    agent.refuse = (grpc.StatusCode.FAILED_PRECONDITION, "drill 77 runs: raised")
    assert command("drill", "run", "--yes") == 3
    assert "refused: failed_precondition: drill 77 runs: raised" in out.text


def test_nobody_there_is_no_drill(command, out, app, stop, monkeypatch):
    monkeypatch.setattr("cli.drillplan.PLAN_SECONDS", 0.3)
    assert command("drill", "run", "--yes") == 3
    assert "refused: deadline_exceeded" in out.text


def test_a_target_that_was_missed_is_a_failure(command, out, agent, stop):
    agent.result = good_result(misses=["detected came after 3.10 s, target 2 s"])
    assert command("drill", "run", "--yes") == 1
    assert f"drill {DRILL_ID} of this machine: failed: detected came after 3.10 s, target 2 s" in out.text


def test_what_does_not_recover_is_a_failure(command, out, agent, stop):
    agent.phase, agent.message = pb.DRILL_PHASE_FAILED, "not recovered 120 s after the pressure was off"
    assert command("drill", "run", "--yes") == 1
    assert "failed: not recovered 120 s" in out.text


def test_an_agent_that_is_too_old_drills_without_a_plan_but_evicts_nobody(command, out, err, agent, stop):
    agent.old, agent.result = True, pb.DrillResult(detected_millis=50, recovered_millis=900)
    assert command("drill", "run", "--yes") == 0
    assert "too old to tell a plan" in err.text
    assert "throttled: BE is down to 500m" in err.text
    assert command("drill", "run", "--yes", "--victims-max", "1") == 3
    assert "too old to name whom it would evict" in out.text


def test_the_clock_of_the_node_is_told(command, out, err, agent, stop):
    agent.skew_seconds = 600.0
    assert command("drill", "run", "--yes") == 0
    assert "is 600.0 s ahead of this machine's" in err.text
    agent.skew_seconds = -30.0
    assert command("drill", "run", "--yes", "-o", "json") == 0
    found = one_report(out.text[out.text.index("{") :])
    assert -31_000 < found.skew_millis < -29_000


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_drill_and_waits_for_its_last_word(start, out, err, agent, stop, number, code):
    agent.hold = True
    ran = start("drill", "run", "--yes")
    assert agent.watching.wait(WAIT_SECONDS)
    stop.note(number)
    assert ran.wait() == code
    assert agent.aborts == 1
    assert "once more leaves at once" in err.text
    assert "this machine: aborted: aborted by the owner of the socket" in out.text


class Person:
    """Somebody at a terminal."""

    def __init__(self, answer):
        self._answer = answer

    def isatty(self):
        return True

    def readline(self, *_):
        return self._answer


@pytest.mark.parametrize(("answer", "code", "orders"), [("y\n", 0, 1), ("n\n", 3, 0), ("\n", 3, 0), ("", 3, 0)])
def test_a_person_is_asked_once_the_plan_is_shown(command, err, agent, stop, monkeypatch, answer, code, orders):
    monkeypatch.setattr("sys.stdin", Person(answer))
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: sys.stdin.readline().rstrip("\n") or eof(answer))
    assert command("drill", "run") == code
    assert len(agent.orders) == orders
    assert "target    detected within 2 s" in err.text


def eof(answer):
    if not answer:
        raise EOFError
    return ""


def test_a_second_signal_leaves_and_says_who_restores(start, out, agent, stop, monkeypatch):
    agent.hold = True
    monkeypatch.setattr(agent._aborted, "set", lambda: None)
    ran = start("drill", "run", "--yes", "-o", "json")
    assert agent.watching.wait(WAIT_SECONDS)
    stop.note(signal.SIGINT)
    stop.note(signal.SIGINT)
    assert ran.wait() == 130
    found = one_report(out.text)
    assert "dead-man timer" in found.message
    assert found.passed is None


def test_a_drill_that_takes_too_long_is_ended(command, out, agent, stop):
    agent.hold = True
    assert command("drill", "run", "--yes", "--patience", "1s") == 1
    assert agent.aborts == 1


def test_a_connection_that_breaks_is_taken_up_again(command, out, err, agent, stop):
    agent.cut = True
    assert command("drill", "run", "--yes") == 0
    assert "does not answer; asking again" in err.text
    # What was told before the break is not told again.
    assert err.text.count("raised: LS pressure") == 1


def test_an_agent_that_forgot_the_drill_leaves_its_end_unknown(command, out, agent, stop):
    agent.cut = "gone"
    assert command("drill", "run", "--yes") == 1
    assert "unknown: not_found" in out.text


def test_an_agent_that_was_restarted_remembers_how_it_ended(command, out, agent, stop):
    agent.cut = "gone"
    record = pb.DrillRecord(drill_id=DRILL_ID, phase=pb.DRILL_PHASE_FAILED, message="failed: the agent ended")
    agent.records = [record]
    assert command("drill", "run", "--yes") == 1
    assert "failed: the agent ended" in out.text


def test_one_that_is_away_for_good_is_given_up(command, out, agent, stop, monkeypatch):
    monkeypatch.setattr(drilllive, "AWAY_SECONDS", 0.0)
    agent.cut = True
    assert command("drill", "run", "--yes") == 1
    assert "unknown: the agent has not answered" in out.text


def test_a_report_goes_to_a_file_and_can_be_had_again(command, out, agent, stop, tmp_path):
    markdown, document = tmp_path / "r.md", tmp_path / "r.json"
    assert command("drill", "run", "--yes", "--report", str(markdown)) == 0
    assert command("drill", "run", "--yes", "--report", str(document)) == 0
    assert one_report(document.read_text()).passed
    text = markdown.read_text()
    assert text.startswith(f"# Drill {DRILL_ID} of this machine: passed")
    for heading in ("## Times", "## Pods", "## Restored", "## Timeline"):
        assert heading in text
    assert "| detected | 0.25 s | 2.00 s | met |" in text
    assert "- +1.90 s open:contention: quiet for 0.5 s" in text
    before = len(out.text)
    assert command("drill", "report", DRILL_ID) == 0
    assert out.text[before:].splitlines()[-1] == text.splitlines()[-1]
    before = len(out.text)
    assert command("drill", "report", DRILL_ID, "-o", "json") == 0
    assert msgspec.json.decode(out.text[before:], type=Report).passed


def test_list_and_show(command, out, err, agent, stop):
    assert command("drill", "list") == 0
    assert "no drill is remembered" in err.text
    assert command("drill", "run", "--yes", "--reason", "weekly") == 0
    agent.records = [
        pb.DrillRecord(
            drill_id="aa00",
            node="n1",
            pressure=pb.PRESSURE_KIND_STALE,
            phase=pb.DRILL_PHASE_ABORTED,
            message="nobody watched for 10 s",
            caller="system:serviceaccount:s:slacktide-operator",
            started_unix_millis=1,
        )
    ]
    before = len(out.text)
    assert command("drill", "list") == 0
    head, mine, theirs = (line.split() for line in out.text[before:].splitlines())
    assert head == ["ID", "NODE", "KIND", "AGE", "VERDICT", "BY", "REASON"]
    assert (mine[0], mine[-1]) == (DRILL_ID, "weekly")
    assert theirs[:3] == ["aa00", "n1", "stale"]
    assert "aborted" in theirs
    before = len(out.text)
    assert command("drill", "list", "-o", "name") == 0
    assert out.text[before:].split() == [f"drill/{DRILL_ID}", "drill/aa00"]
    before = len(out.text)
    assert command("drill", "list", "-o", "wide") == 0
    assert "RECOVERED" in out.text[before:]
    before = len(out.text)
    assert command("drill", "list", "-o", "json") == 0
    assert len(json.loads(out.text[before:])["drills"]) == 2
    before = len(out.text)
    assert command("drill", "show", DRILL_ID, "-o", "table") == 0
    assert "throttled: BE is limited to 500m" in out.text[before:]


def test_an_unknown_drill_is_said_with_the_nearest(command, err, agent, stop):
    assert command("drill", "run", "--yes") == 0
    assert command("drill", "show", DRILL_ID[:-1] + "5") == 1
    assert f"nearest known: {DRILL_ID}" in err.text
    assert command("drill", "abort", "../secret") == 1
    assert "is no id of a drill" in err.text


def test_abort_ends_a_drill_of_somebody_else(app, command, start, out, agent, stop):
    agent.hold = True
    ran = start("drill", "run", "--yes")
    assert agent.watching.wait(WAIT_SECONDS)
    # A drill is recorded beside its watching.
    records = FileRecords(app.state().folder(RECORDS_FOLDER))
    deadline = time.monotonic() + WAIT_SECONDS
    while not records.all():
        assert time.monotonic() < deadline, "the drill was not recorded"
        time.sleep(0.01)
    assert command("drill", "abort", DRILL_ID) == 0
    assert "aborted by the owner of the socket" in out.text
    assert ran.wait() == 1
    # Done again it does nothing.
    aborts = agent.aborts
    assert command("drill", "abort", DRILL_ID) == 0
    assert agent.aborts == aborts


class Api:
    """A client that answers from `answers` by method and end of the path."""

    def __init__(self, pods=(), answer=None):
        self.pods = pods
        self.answer = answer
        self.asked = []

    def list(self, _kind, namespace, field_selector, label_selector):
        self.asked.append((namespace, field_selector, label_selector))
        return type("Listing", (), {"items": self.pods})

    def request(self, method, path, body=None):
        self.asked.append((method, path, json.loads(body) if body else None))
        if isinstance(self.answer, Exception):
            raise self.answer
        return json.dumps(self.answer).encode()


def pod(ip, phase="Running"):
    return Pod(metadata=ObjectMeta(name="a", namespace="s"), status=PodStatus(phase=phase, pod_ip=ip))


def test_the_agent_of_a_node():
    api = Api([pod("10.0.0.9", "Pending"), pod(""), pod("10.0.0.7")])
    assert agent_of(api, "s", "n1") == "10.0.0.7:7444"
    assert api.asked[0][:2] == ("s", "spec.nodeName=n1")
    assert agent_of(Api([pod("fd00::7")]), "s", "n1") == "[fd00::7]:7444"
    with pytest.raises(CommandError, match="no agent runs on node 'n1'"):
        agent_of(Api(), "s", "n1")


@pytest.mark.parametrize("answer", [NotFound(404, "NotFound", "x"), {"data": {}}, {}])
def test_an_authority_that_is_not_there_is_said(answer):
    with pytest.raises(CommandError, match=r"ConfigMap s/slacktide-ca.*--ca-file"):
        authority(Api(answer=answer), "s")


def test_the_token_is_for_drills_alone_and_lives_as_long_as_the_drill_may():
    api = Api(answer={"status": {"token": "t"}})
    assert token_of(api, "s/operator", 5.0) == "t"
    method, path, body = api.asked[0]
    assert (method, path) == ("POST", "/api/v1/namespaces/s/serviceaccounts/operator/token")
    assert body["spec"] == {"audiences": ["slacktide-drill"], "expirationSeconds": 600}
    token_of(api, "s/operator", 3000.0)
    assert api.asked[1][2]["spec"]["expirationSeconds"] == 3060


@pytest.mark.parametrize(
    ("account", "answer", "word"),
    [
        ("operator", {}, "NAMESPACE/NAME"),
        ("s/operator", NotFound(404, "NotFound", "x"), "no account s/operator"),
        ("s/operator", Forbidden(403, "Forbidden", 'cannot create "serviceaccounts/token"'), "may not drill"),
    ],
)
def test_why_there_is_no_token(account, answer, word):
    with pytest.raises(CommandError, match=word):
        token_of(Api(answer=answer), account, 5.0)


def test_a_token_of_a_file_makes_none(tmp_path):
    (tmp_path / "token").write_text("secret-of-drills")
    api = Api([pod("10.0.0.7")], {"data": {"ca.crt": "certificates"}})
    made = connect(api, "n1", Reach(namespace="s", account="s/o", token_file=str(tmp_path / "token")), 5.0)
    made.channel.close()
    assert made.metadata == (("authorization", "Bearer secret-of-drills"),)
    assert not [call for call in api.asked if call[0] == "POST"]
