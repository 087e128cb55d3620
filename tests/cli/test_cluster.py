"""The command asks a cluster: as a plugin of kubectl, or by --kubeconfig and --context."""

from __future__ import annotations

import json
import time

import msgspec
import pytest
import yaml

from cli.fleet import ORDERS, Trends, chosen, fleet
from cli.main import main
from cli.output import Output
from slacktide import forecast as wire
from slacktide.forecast import Amount, Forecast, Terms
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Node, ObjectMeta, Pod

GIB = 1 << 30


def amount(cpu, memory=8 * GIB):
    return Amount(cpu_millis=cpu, memory_bytes=memory)


def published(now=1000, peak=2000, reclaimable=1500, sold=0, closed="", age=5.0):
    return Forecast(
        at=time.time() - age,
        ttl_seconds=600,
        peak=amount(peak),
        reclaimable=amount(reclaimable),
        closed=closed,
        terms=Terms(
            capacity=amount(4000, 32 * GIB), reserve=amount(400), peak=amount(peak), now=amount(now), sold=amount(sold)
        ),
    )


def node(name, forecast=None):
    notes = {} if forecast is None else {FORECAST_ANNOTATION: wire.encode(forecast)}
    return {"metadata": {"name": name, "uid": name, "annotations": notes}}


def be_pod(name, on, cpu="500"):
    resources = {"requests": {"kubernetes.io/batch-cpu": cpu}, "limits": {"kubernetes.io/batch-cpu": cpu}}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": "Running"},
    }


@pytest.fixture
def cluster(app, twin):
    """The command as a plugin of kubectl; what it was told of the kubeconfig."""
    asked = []
    app.kubectl = True
    app.state_option = "/nowhere"
    app.connect = lambda _: pytest.fail("the Slacktide of this machine is not meant")
    app.reach = lambda settings: asked.append(settings) or twin
    twin.nodes = [node("a", published(now=3000)), node("b", published(closed="memory is low")), node("c")]
    for pod in (be_pod("p1", "a"), be_pod("p2", "a"), be_pod("p3", "b")):
        twin.pods["team", pod["metadata"]["name"]] = pod
    return asked


def test_kubeconfig_and_context_are_passed_on_before_and_after_the_command(command, app, twin, cluster, out, err):
    app.kubectl = False
    assert command("--output", "json", "forecast", "--kubeconfig", "k.yaml", "--context", "staging") == 0
    assert [(one.kubeconfig, one.context) for one in cluster] == [("k.yaml", "staging")]


def test_a_fleet_is_listed_with_its_sums_and_what_is_not_known_is_a_dash(command, cluster, out, err):
    assert command("top") == 0
    head, columns, *rows = out.text.splitlines()
    assert head.startswith("3 nodes, 1 closed, 1 without a forecast; of 8.00 cores LS uses 4.00 50%")
    assert columns.split("  ")[0] == "NODE"
    assert [row.split()[0] for row in rows] == ["a", "b", "c"]
    assert rows[0].split()[1:8] == ["4.00", "3.00", "75%", "2.00", "50%", "1.00", "0.50"]
    assert "closed: memory is low" in rows[1]
    assert rows[2].split()[1:4] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--sort", "now"), ["a", "b", "c"]),
        (("--sort", "room"), ["b", "a", "c"]),
        (("--only", "closed"), ["b"]),
        (("--only", "silent"), ["c"]),
        (("--only", "selling"), ["a"]),
        (("--match", "b"), ["b"]),
    ],
)
def test_nodes_are_sorted_and_chosen(command, cluster, out, err, options, names):
    if options == ("--sort", "room"):
        # A closed node offers nothing, which is known; of c nothing is.
        names = ["a", "b", "c"]
    assert command("top", *options, "-o", "name") == 0
    assert out.text.split() == [f"node/{name}" for name in names]


def test_an_unknown_order_lists_the_known_ones(command, cluster, out, err):
    assert command("top", "--sort", "colour") == 2
    assert "name, now, peak, sold, room, age" in err.text


def test_the_same_answer_as_json_and_as_yaml(app, command, cluster, out, err):
    assert command("top", "-o", "json") == 0
    found = json.loads(out.text)
    assert found["totals"]["nodes"] == 3
    assert found["totals"]["sold"]["cpu_millis"] == 1500
    assert found["pods"] == {"a": 2, "b": 1, "c": 0}
    out.raw.truncate(0)
    out.raw.seek(0)
    assert command("top", "-o", "yaml") == 0
    again = yaml.safe_load(out.text)
    assert (again["totals"], again["pods"]) == (found["totals"], found["pods"])


def test_pods_of_a_cluster_have_no_use_and_names_are_given_alone(command, cluster, out, err):
    assert command("ps", "-o", "name") == 0
    assert out.text.split() == ["pod/team/p1", "pod/team/p2", "pod/team/p3"]


def test_names_of_what_has_none_are_refused(command, cluster, out, err):
    assert command("explain", "node", "a", "-o", "name") == 2
    assert "use --output table, json or yaml" in err.text


def test_commands_of_one_machine_say_that_they_are_not_for_a_cluster(command, cluster, out, err):
    assert command("logs", "p1") == 2
    assert "about one machine, not about a cluster" in err.text


def test_usage_shows_how_it_was_called(app, cluster, redirect, out, err):
    redirect()
    assert main(["forecast", "--nonsense"], app) == 2
    assert "kubectl slacktide forecast" in err.text


def event(name, component="slacktide-agent", reason="Evicted", kind="Warning", at="2026-01-01T10:00:00Z", about="p1"):
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "involvedObject": {"kind": "Pod", "namespace": "team", "name": about},
        "type": kind,
        "reason": reason,
        "message": f"message of {name}",
        "source": {"component": component},
        "count": 2,
        "lastTimestamp": at,
    }


def test_events_of_our_components_oldest_first(command, twin, cluster, out, err):
    twin.events = [
        event("late", at="2026-01-01T11:00:00Z"),
        event("early", reason="DrillStarted", kind="Normal"),
        event("foreign", component="kubelet"),
    ]
    assert command("events", "-o", "json") == 0
    found = json.loads(out.text)["events"]
    assert [one["message"] for one in found] == ["message of early", "message of late"]
    assert (found[0]["count"], found[0]["component"]) == (2, "slacktide-agent")


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (("--reason", "Evicted"), ["late"]),
        (("--type", "Normal"), ["early"]),
        (("--about", "nobody"), []),
        (("--about", "p1"), ["early", "late"]),
    ],
)
def test_events_are_chosen(command, twin, cluster, out, err, options, shown):
    twin.events = [
        event("late", at="2026-01-01T11:00:00Z"),
        event("early", reason="DrillStarted", kind="Normal"),
    ]
    assert command("events", *options) == 0
    assert [word for word in ("early", "late") if f"message of {word} (x2)" in out.text] == shown


def views(*nodes):
    return [
        Node(metadata=ObjectMeta(name=one["metadata"]["name"], annotations=one["metadata"]["annotations"]))
        for one in nodes
    ]


def test_every_order_is_total_also_where_nothing_is_known():
    found = fleet(views(node("z"), node("a"), node("m", published())), (), time.time()).nodes
    for order in ORDERS:
        assert {one.node for one in chosen(found, order, "", "all")} == {"z", "a", "m"}
        assert chosen(found, order, "", "all") == chosen(list(reversed(found)), order, "", "all")


def test_trends_show_the_last_looks_forget_nodes_that_are_gone_and_leave_gaps():
    trends = Trends(length=3)
    for now in (0, 2000, None, 4000):
        forecast = None if now is None else published(now=now)
        trends.add(fleet(views(node("a", forecast)), (), time.time()).nodes)
    assert trends.line("a", "_-#") == "- #"
    trends.add([])
    assert trends.line("a") == ""


def test_a_pod_that_has_ended_or_is_no_be_is_not_counted():
    ended = {**be_pod("ended", "a"), "status": {"phase": "Succeeded"}}
    plain = be_pod("ls", "a")
    plain["spec"]["containers"][0]["resources"] = {}
    pods = [msgspec.convert(one, Pod) for one in (be_pod("p", "a"), ended, plain)]
    assert fleet(views(node("a")), pods, time.time()).pods == {"a": 1}


class UntilFirst(Output):
    """Ctrl-C as soon as something was printed."""

    def text(self, text):
        super().text(text)
        raise KeyboardInterrupt


def test_following_events_prints_them_and_ends_with_ctrl_c(command, twin, app, cluster, out, err):
    twin.events = [event("first")]
    app.out = UntilFirst()
    assert command("events", "--follow") == 130
    assert "10:00:00  Warning  Evicted  pod/team/p1  slacktide-agent  message of first (x2)" in out.text


@pytest.mark.parametrize(("ahead", "way"), [(7200.0, "7200 s behind"), (-7200.0, "7200 s ahead of")])
@pytest.mark.parametrize("words", [("forecast",), ("top",), ("explain", "node", "a")])
def test_a_clock_of_this_machine_that_is_wrong_is_said_once_and_no_forecast_is_old_by_it(
    command, app, twin, cluster, out, err, words, ahead, way
):
    here = app.wall()
    app.wall = lambda: here - ahead
    assert command(*words, "-o", "json") == 0
    assert '"freshness": "fresh"' not in out.text
    assert "clock" not in err.text
    out.raw.truncate(0)
    twin.clock = lambda: here
    assert command(*words, "-o", "json") == 0
    assert '"freshness": "fresh"' in out.text
    assert err.text.count(f"this machine's clock is {way} the API server's; ages are by the server's") == 1


def test_clocks_that_differ_by_little_are_the_same(command, twin, cluster, out, err):
    twin.clock = lambda: time.time() + 2.0
    assert command("forecast") == 0
    assert err.text == ""
