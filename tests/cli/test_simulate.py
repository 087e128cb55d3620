"""`slacktide simulate`: what it prints, and that nothing of the cluster is changed."""

import json

import msgspec
import pytest

from slacktide.names import BATCH_CPU
from tests.scheduler_plugins.build import GI, be, forecast, node, offering, pod

WALL = 1_000_000.0


def item(kind, view):
    return {"apiVersion": "v1", "kind": kind, **msgspec.to_builtins(view)}


@pytest.fixture
def dump(tmp_path):
    nodes = [offering(f"n{i}", forecast(2000, 8 * GI, at=WALL)) for i in range(2)]
    pods = [be(f"p{i}", 1000, GI) for i in range(5)]
    bound = be("bound", 1000, GI, nodeName="n0")
    items = [*(item("Node", one) for one in nodes), *(item("Pod", one) for one in (*pods, bound))]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(path)


def lines(out):
    return [" ".join(line.split()) for line in out.text.splitlines()]


def test_tables(command, out, err, dump):
    assert command("simulate", dump) == 0
    told = lines(out)
    assert sum(line.startswith("default/p") and " placed n" in line for line in told) == 3
    waits = f"0/2 nodes are available: 2 no forecast room for {BATCH_CPU} (nearest n"
    assert sum(line.startswith("default/p") and f"pending - 1 - {waits}" in line for line in told) == 2
    assert {"pods 5", "placed 3", "pending 2", "attempts 5"} <= set(told)
    assert f"not placed: no forecast room for {BATCH_CPU} 2" in told
    assert any(line.startswith("n0 2 ") and "2.00 / 8.00 25%" in line for line in told)


def test_json_is_one_document_and_the_same_each_time(command, out, err, dump):
    assert command("simulate", dump, "--seed", "7", "-o", "json") == 0
    first = out.text
    assert command("simulate", dump, "--seed", "7", "-o", "json") == 0
    assert out.text == first * 2
    said = json.loads(first)
    assert said["totals"]["by_fate"] == {"placed": 3, "pending": 2}
    assert {one["fate"] for one in said["pods"]} == {"placed", "pending"}


def test_replace_moves_bound_pods_too(command, out, err, dump):
    assert command("simulate", dump, "--replace", "-o", "json") == 0
    said = json.loads(out.text)
    assert {"bound"} <= {one["name"] for one in said["pods"]}
    assert said["totals"]["pods"] == 6


def test_arrivals_alone_or_with_those_that_wait(command, out, err, dump, tmp_path):
    path = tmp_path / "day.csv"
    path.write_text("time,name,batch-cpu,lifetime_seconds\n0,a,500,3600\n")
    assert command("simulate", dump, "--arrivals", str(path)) == 0
    assert [line.split()[0] for line in lines(out) if line.startswith("default/")] == ["default/a"]
    assert command("simulate", dump, "--arrivals", str(path), "--pending", "--hours", "0.5", "-o", "json") == 0
    said = json.loads(out.text[out.text.index("{") :])
    assert (said["totals"]["pods"], said["totals"]["seconds"]) == (6, pytest.approx(1800.0, abs=0.01))


def test_scores_and_the_plugin_that_decides(command, out, err, dump):
    assert command("simulate", dump, "--scores", "1") == 0
    assert any(line.startswith("BatchForecast 5 ") for line in lines(out))
    assert "raw / normalised / weighted" in out.text


def test_configuration_to_try(command, out, err, dump, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "profiles:\n- schedulerName: mine\n  plugins: {multiPoint: {disabled: [{name: BatchForecast}]}}\n"
    )
    assert command("simulate", dump, "--configuration", str(path), "--profile", "mine", "-o", "json") == 0
    assert json.loads(out.text)["totals"]["by_fate"] == {"placed": 5}
    assert command("simulate", dump, "--configuration", str(path), "--profile", "theirs") == 2
    assert "no profile 'theirs'; the configuration has mine" in err.text


@pytest.mark.parametrize(("text", "words"), [("{", "not the JSON"), ('{"kind": "Pod", "spec": 7}', "(Pod)")])
def test_file_that_is_no_dump(command, out, err, tmp_path, text, words):
    path = tmp_path / "bad.json"
    path.write_text(text)
    assert command("simulate", str(path)) == 1
    assert words in err.text


def test_running_instance_is_only_read(command, twin, out, err):
    twin.nodes = [msgspec.to_builtins(node("n1"))]
    one = msgspec.to_builtins(pod("p", {"cpu": "1"}))
    twin.put(one)
    before = json.dumps(one)
    assert command("simulate") == 0
    assert any(line.startswith("default/p placed n1") for line in lines(out))
    assert json.dumps(twin.pods["default", "p"]) == before


def test_extenders_are_asked_only_where_that_is_wanted(command, out, err, dump, tmp_path):
    path = tmp_path / "extended.yaml"
    path.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "extenders:\n- {urlPrefix: 'http://127.0.0.1:9', filterVerb: filter, nodeCacheCapable: true}\n"
    )
    assert command("simulate", dump, "--configuration", str(path), "-o", "json") == 0
    alone = out.text
    assert json.loads(alone)["totals"]["by_fate"] == {"placed": 3, "pending": 2}
    assert command("simulate", dump, "--configuration", str(path), "--ask-extenders", "-o", "json") == 0
    said = json.loads(out.text.removeprefix(alone))
    assert said["totals"]["by_fate"] == {"pending": 5}
    assert all("127.0.0.1:9" in one["reason"] for one in said["pods"])
