"""A real Prometheus whose scraping names things otherwise: nodes by `kubernetes_node`, what is ours by `exported_`."""

from __future__ import annotations

import json
import time

import pytest

from tests.predictor.prometheus.server import MISSING, Prometheus, Text

HOUR = 3600


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if MISSING is not None:
        pytest.skip(f"{MISSING} is not installed")
    text, now = Text(), time.time()
    times = range(round(now) - 2 * HOUR, round(now), 60)
    agent = {"job": "slacktide-agent", "instance": "10.0.0.7:9464", "namespace": "slacktide-system"}
    agent |= {"kubernetes_node": "worker-7"}
    predictor = {"job": "slacktide-predictor", "instance": "10.0.0.9:9464", "namespace": "slacktide-system"}
    predictor |= {"node": "infra-1", "exported_node": "worker-7"}

    def add(name, labels, value):
        text.series(name, labels, times, value)

    for namespace, cores in (("team-a", 3.0), ("team-b", 1.0)):
        add(
            "slacktide_agent_be_cpu_seconds_total",
            {**agent, "exported_namespace": namespace},
            lambda at, cores=cores: cores * (at - times[0]),
        )
    for tier, millis in (("LS", 1000.0), ("SYSTEM", 200.0), ("BE", 4000.0)):
        add("slacktide_agent_tier_cpu_millis", {**agent, "tier": tier}, lambda _, millis=millis: millis)
    for name, millis in (("peak", 2000.0), ("reclaimable", 5000.0), ("sold", 4000.0)):
        add(f"slacktide_predictor_{name}", {**predictor, "resource": "cpu"}, lambda _, millis=millis: millis)
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), text)
    yield running
    running.stop()


def savings(command, server, out, *options):
    assert command("savings", "--prometheus", server.url, "--days", "0.0625", "-o", "json", *options) == 0
    return {row["who"]: round(row["cores"], 1) for row in json.loads(out.text)["rows"]}


def test_core_hours_are_those_of_the_namespaces_of_the_pods(command, server, out, err):
    assert savings(command, server, out) == {"team-a": 3.0, "team-b": 1.0}


def test_the_node_is_found_by_the_label_it_has(command, server, out, err):
    assert savings(command, server, out, "--by", "node") == {"worker-7": 4.0}


def test_the_label_that_is_asked_for_is_taken(command, server, out, err):
    assert savings(command, server, out, "--by", "node", "--node-label", "instance") == {"10.0.0.7:9464": 4.0}


def test_a_label_that_no_series_has(command, server, out, err):
    assert command("savings", "--prometheus", server.url, "--by", "node", "--node-label", "host") == 1
    assert "its labels are: exported_namespace, instance, job, kubernetes_node, namespace" in err.text


def test_the_history_of_a_node_is_drawn_with_all_its_lines(command, server, out, err):
    assert command("forecast", "worker-7", "--plot", "--hours", "1", "--prometheus", server.url, "-o", "json") == 0
    lines = {line["name"]: line["values"][-1] for line in json.loads(out.text)["lines"]}
    assert lines == {
        "LS and SYSTEM use": 1.2,
        "BE use": 4.0,
        "expected peak": 2.0,
        "may be sold": 5.0,
        "sold": 4.0,
    }
