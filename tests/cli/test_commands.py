import importlib
import json
import os
import subprocess
import sys
import time

import pytest

from cli import pods as pods_module
from cli.commands import rm as rm_module
from cli.main import COMMANDS, main
from slacktide.forecast import Amount, Forecast, Terms, encode
from slacktide.names import BATCH_CPU, BATCH_MEMORY, FORECAST_ANNOTATION, TIER_LABEL
from slacktide.status import AgentStatus, PodReport, Usage
from slacktide.tier import Tier


def body(name, tier="be", phase="Running", namespace="default", node="n1", **status):
    resources = {BATCH_CPU: "1500", BATCH_MEMORY: "1048576"} if tier == "be" else {"cpu": "500m", "memory": "1Gi"}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "labels": {TIER_LABEL: tier},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"requests": resources}}]},
        "status": {"phase": phase, **status},
    }


def agent(*pods):
    return AgentStatus(
        node="n1",
        version="0",
        at=0.0,
        turn=7,
        turn_seconds=0.01,
        line="1 LS and 1 BE pods; BE is limited",
        capacity=Usage(cpu_millis=4000, memory_bytes=8 << 30),
        node_usage=Usage(cpu_millis=1000, memory_bytes=None),
        tiers={Tier.LS: Usage(cpu_millis=250), Tier.BE: Usage()},
        pods=list(pods),
        skipped={"psi": "cgroup v1 has none"},
    )


def measured(name, tier, **values):
    usage = Usage(cpu_millis=values.pop("cpu", None), memory_bytes=values.pop("memory", None))
    return PodReport(namespace="default", name=name, uid=f"uid-{name}", tier=tier, usage=usage, **values)


@pytest.fixture
def twin(twin):
    twin.put(body("batch"))
    twin.put(body("web", tier="ls"))
    return twin


def test_ps_shows_what_was_asked_for_and_what_is_used(command, twin, app, out, err):
    app.agent_status = lambda _: agent(measured("batch", Tier.BE, cpu=1230, memory=3 << 20))
    assert command("ps") == 0
    header, batch, web = (line.split() for line in out.text.splitlines())
    assert header[:3] == ["NAME", "TIER", "STATUS"]
    assert batch[:9] == ["batch", "BE", "Running", "1.50", "/", "1.23", "1Mi", "/", "3Mi"]
    assert web[:9] == ["web", "LS", "Running", "0.50", "/", "-", "1Gi", "/", "-"]


def test_what_is_not_measured_is_null_not_zero(command, twin, out, err):
    assert command("ps", "-o", "json") == 0
    batch, web = json.loads(out.text)["pods"]
    assert batch["cpu_used_millis"] is None
    assert batch["cpu_request_millis"] == 1500
    assert web["memory_request_bytes"] == 1 << 30
    assert web["exit_code"] is None


def test_ps_by_tier_and_namespace(command, twin, out, err):
    twin.put(body("other", namespace="team"))
    assert command("ps", "--tier", "be", "--output", "json") == 0
    assert [p["name"] for p in json.loads(out.text)["pods"]] == ["batch", "other"]
    out.raw.truncate(0)
    out.raw.seek(0)
    assert command("ps", "-n", "team", "-o", "table") == 0
    assert "team/other" in out.text
    assert "batch" not in out.text


def test_ps_without_pods_says_so_beside_the_result(command, twin, out, err):
    twin.pods.clear()
    assert command("ps") == 0
    assert out.text == ""
    assert "no pods" in err.text
    assert command("ps", "-o", "json") == 0
    assert json.loads(out.text) == {"pods": []}


def test_no_colours_and_no_cut_lines_where_nobody_looks(command, twin, out, err):
    twin.unschedulable("batch", "a long story " * 40)
    twin.pods["default", "batch"]["status"]["phase"] = "Pending"
    assert command("ps") == 0
    assert "\x1b" not in out.text
    assert ("a long story " * 40).strip() in out.text
    assert len(out.text.splitlines()) == 3
    assert not any(line.endswith(" ") for line in out.text.splitlines())


def test_options_before_and_after_the_command(command, twin, out, err):
    assert command("--output", "json", "ps") == 0
    before = json.loads(out.text)
    out.raw.truncate(0)
    out.raw.seek(0)
    assert command("ps", "--output", "json") == 0
    assert [p["name"] for p in json.loads(out.text)["pods"]] == [p["name"] for p in before["pods"]]


def test_logs(command, twin, out, err):
    twin.started("batch")
    for number in range(5):
        twin.prints("batch", b"line %d\n" % number, "All")
    assert command("logs", "batch") == 0
    assert out.text == "".join(f"line {number}\n" for number in range(5))


def test_logs_tail_and_stream(command, twin, out, err):
    twin.started("batch")
    twin.prints("batch", b"1\n2\n3\n", "Stderr")
    assert command("logs", "--tail", "2", "--stream", "stderr", "default/batch") == 0
    assert out.text == "2\n3\n"


def test_logs_follow_from_a_tail_survives_a_lost_connection(start, twin, out, err):
    twin.started("batch")
    twin.prints("batch", b"1\n2\n3\n", "All")
    ran = start("logs", "-f", "--tail", "1", "batch")
    until(lambda: out.text == "3\n")
    twin.go_away()
    twin.prints("batch", b"4\n", "All")
    twin.come_back()
    until(lambda: out.text == "3\n4\n")
    twin.prints("batch", b"5", "All")
    twin.ended("batch", 0)
    assert ran.wait() == 0
    assert out.text == "3\n4\n5"


def test_logs_follow_ends_with_its_container_and_mixes_no_two(start, twin, out, err):
    twin.started("batch")
    twin.prints("batch", b"first life\n", "All")
    ran = start("logs", "-f", "batch")
    until(lambda: out.text == "first life\n")
    twin.output["batch", "All"] = [b"the second life says more\n"]
    twin.started("batch", number=1)
    twin.ended_output.add("batch")
    assert ran.wait() == 0
    assert out.text == "first life\n"


def test_logs_json(command, twin, out, err):
    twin.started("batch")
    twin.prints("batch", b"a\nb", "All")
    assert command("logs", "-o", "json", "batch") == 0
    assert [json.loads(line) for line in out.text.splitlines()] == [{"text": "a"}, {"text": "b"}]


def test_logs_of_a_pod_that_never_started_say_why(command, twin, out, err):
    twin.put(body("late", phase="Pending"))
    twin.unschedulable("late", "no room")
    assert command("logs", "late") == 1
    assert "Pending (Unschedulable: no room); -f waits for it" in err.text


def test_logs_follow_waits_for_the_start(start, twin, out, err):
    twin.put(body("late", phase="Pending"))
    ran = start("logs", "-f", "late")
    twin.started("late")
    twin.prints("late", b"here\n", "All")
    twin.ended("late", 0)
    assert ran.wait() == 0
    assert out.text == "here\n"


@pytest.mark.parametrize("words", [["logs", "ghost"], ["rm", "ghost"]])
def test_no_such_pod(command, twin, out, err, words):
    assert command(*words) == 1
    assert "no pod default/ghost: `slacktide ps` lists them" in err.text


def test_rm_waits_until_the_pod_is_gone(start, twin, out, err):
    ran = start("rm", "batch")
    until(lambda: twin.deletions == [("batch", None)])
    assert ran.code is None
    del twin.pods["default", "batch"]
    assert ran.wait() == 0
    assert out.text == "batch\n"


def test_rm_by_tier_with_force(command, twin, out, err):
    assert command("rm", "--all", "--tier", "be", "--force") == 0
    assert twin.deletions == [("batch", 0)]
    assert [name for _, name in twin.pods] == ["web"]


def test_rm_gives_up_with_4(command, twin, out, err, monkeypatch):
    monkeypatch.setattr(rm_module, "EXTRA_SECONDS", 0.1)
    monkeypatch.setattr(pods_module, "POLL_SECONDS", 0.02)
    assert command("rm", "--grace", "0.5", "batch") == 2
    assert command("rm", "--grace", "1", "batch") == 4
    assert "still there after 1.1 s: batch" in err.text


def test_rm_spares_a_new_pod_of_the_same_name(command, twin, out, err, monkeypatch):
    monkeypatch.setattr(pods_module, "POLL_SECONDS", 0.02)
    old = twin.delete

    def replaced(kind, name, namespace, uid=None, grace_period_seconds=None):
        old(kind, name, namespace, uid, 0)
        twin.put({**body(name), "metadata": {**body(name)["metadata"], "uid": "another"}})

    twin.delete = replaced
    assert command("rm", "batch") == 0
    assert ("default", "batch") in twin.pods


@pytest.mark.parametrize("words", [["rm"], ["rm", "--all", "batch"], ["rm", "--tier", "be", "batch"]])
def test_rm_is_asked_for_one_thing_clearly(command, twin, out, err, words):
    assert command(*words) == 2
    assert twin.deletions == []


def forecast_node(at, **changes):
    amount = Amount(cpu_millis=3000, memory_bytes=4 << 30)
    terms = Terms(capacity=amount, reserve=amount, peak=amount, now=amount, sold=amount, model="window_max")
    made = Forecast(at=at, ttl_seconds=60.0, peak=amount, reclaimable=amount, terms=terms, **changes)
    return {"metadata": {"name": "n1", "annotations": {FORECAST_ANNOTATION: encode(made)}}}


def test_top_shows_tiers_pods_and_room(command, twin, app, out, err):
    now = time.time()
    app.wall = lambda: now
    twin.nodes = [forecast_node(now)]
    app.agent_status = lambda _: agent(
        measured("batch", Tier.BE, cpu=1000, memory=1 << 20, throttled_ratio=0.25, quota_millis=800)
    )
    assert command("top", "--once") == 0
    assert "1 LS and 1 BE pods; BE is limited" in out.text
    words = [line.split() for line in out.text.splitlines()]
    assert ["node", "1.00", "25%", "-", "-"] in words
    assert ["LS", "0.25", "6%", "-", "-"] in words
    assert ["BE", "-", "-", "-", "-"] in words
    assert ["room", "1.50", "4Gi", "fresh,", "0s", "old"] in words
    assert next(w for w in words if w[:1] == ["batch"])[1:8] == ["BE", "Running", "1.00", "1.50", "0.80", "25%", "1Mi"]


def test_top_json_is_one_document(command, twin, app, out, err):
    twin.nodes = [forecast_node(time.time())]
    app.agent_status = lambda _: agent()
    assert command("top", "--once", "-o", "json") == 0
    picture = json.loads(out.text)
    assert picture["room"]["left"] == {"cpu_millis": 1500, "memory_bytes": (4 << 30) - 1048576}
    assert picture["agent"]["tiers"]["BE"] == {"cpu_millis": None, "memory_bytes": None}
    assert picture["silent"] == []


def test_top_says_who_is_silent_and_claims_nothing(command, twin, out, err):
    twin.nodes = [{"metadata": {"name": "n1"}}]
    assert command("top") == 0
    assert "the agent does not answer" in out.text
    assert "no forecast was published yet" in out.text
    assert "room" not in out.text
    twin.go_away()
    assert command("top", "-o", "json") == 0
    picture = json.loads(out.text[out.text.index("{\n") :])
    assert picture["pods"] is None
    assert picture["room"] is None
    assert any("API server does not answer" in text for text in picture["silent"])


def test_closed_and_expired_forecasts_leave_no_room(command, twin, out, err):
    for node, words in (
        (forecast_node(time.time(), closed="memory is short"), "closed: memory is short"),
        (forecast_node(time.time() - 3600), "expired"),
    ):
        twin.nodes = [node]
        assert command("top") == 0
        assert words in out.text
        room = next(line.split() for line in out.text.splitlines()[::-1] if line.startswith("room"))
        assert room[1:3] == ["0.00", "0"]


def test_damaged_forecast_is_said(command, twin, out, err):
    twin.nodes = [{"metadata": {"name": "n1", "annotations": {FORECAST_ANNOTATION: "{"}}}]
    assert command("top") == 0
    assert "annotation is no forecast" in out.text


@pytest.mark.parametrize("name", ["ps", "top", "logs", "rm", "run"])
def test_everything_that_asks_says_when_nothing_is_up(command, app, out, err, name):
    app.is_up = lambda _: False
    arguments = {"logs": ["x"], "rm": ["x"], "run": ["x"]}.get(name, [])
    assert command(name, *arguments) == 3
    assert "start it with `slacktide up`" in err.text


@pytest.mark.parametrize("name", ["ps", "rm", "logs"])
def test_an_api_that_is_gone_is_3(command, twin, out, err, name):
    twin.go_away()
    assert command(name, *([] if name == "ps" else ["batch"])) == 3


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each(name):
    command = importlib.import_module(f"cli.commands.{name.replace('-', '_')}").command
    assert COMMANDS[name] == command.get_short_help_str(300)


def test_help_imports_no_command():
    code = (
        "import sys; from cli.main import main; main(['--help']); print([n for n in sys.modules if 'commands.' in n])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples_and_the_common_options(name, capsys):
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"slacktide {name}" in text.split("Examples:")[1]
    assert "--output" in text
    assert "--state" in text


def test_up_in_a_path_too_deep_for_sockets_is_2_and_makes_nothing(command, tmp_path, out, err):
    deep = tmp_path / ("x" * 100)
    assert command("--state", str(deep), "up", "--detach") == 2
    assert "a Unix socket may have 107: choose a state directory with a path at least" in err.text
    assert os.listdir(tmp_path) == []


def test_unknown_command_is_2_and_names_the_nearest(capsys):
    assert main(["pss"]) == 2
    assert "No such command 'pss'" in capsys.readouterr().err


def test_version_in_both_forms(command, out, err):
    assert command("version") == 0
    assert out.text.startswith("slacktide 0.")
    out.raw.truncate(0)
    out.raw.seek(0)
    assert command("version", "-o", "json") == 0
    assert set(json.loads(out.text)) == {"version", "python", "kernel", "machine"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_calls_the_command_back(command, out, err, shell):
    assert command("completion", shell) == 0
    assert "_SLACKTIDE_COMPLETE" in out.text


def test_completion_of_an_unknown_shell(command, out, err):
    assert command("completion", "tcl") == 2


def test_completion_answers_with_commands():
    environ = {**os.environ, "_SLACKTIDE_COMPLETE": "bash_complete", "COMP_WORDS": "slacktide do", "COMP_CWORD": "1"}
    code = "import sys; from cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60)
    assert set(done.stdout.split()) == {"plain,down", "plain,doctor"}


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom cli.main import main\nmain(['run', '--help'])\n"
        "heavy = {'kubernetes', 'pandas', 'duckdb', 'numpy', 'grpc', 'rich', 'structlog', 'urllib3', 'aiohttp'}\n"
        "sys.exit(f'loaded: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_talking_to_the_api_loads_nothing_of_the_daemons():
    code = (
        "import sys\nimport cli.session, cli.gather, cli.follow, cli.commands.run\n"
        "heavy = {'kubernetes', 'pandas', 'duckdb', 'numpy', 'grpc', 'aiohttp', 'statsmodels'}\n"
        "heavy |= {'structlog', 'rich', 'yaml'}\n"
        "sys.exit(f'loaded: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_list_of_pods_loads_no_http_library_and_nothing_that_draws(root):
    code = (
        "import sys\nfrom cli.app import connect\nfrom standalone.state import find\n"
        f"from slacktide.cluster import PODS, errors\nimport cli.podview, cli.grid\nclient = connect(find({root!r}))\n"
        "try:\n    client.list(PODS)\nexcept errors.Unreachable:\n    pass\n"
        "heavy = {'urllib3', 'http', 'ssl', 'email', 'prometheus_client', 'rich', 'yaml', 'slacktide.settings'}\n"
        "sys.exit(f'loaded: {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
