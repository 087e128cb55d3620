"""What `savings`, `forecast --plot` and `doctor --cluster` print, word for word, as a pipe and as terminals get it."""

from __future__ import annotations

import json

import msgspec
import pytest

from cli import clusterchecks, plotted
from cli.clusterdoctor import rights, show
from cli.clusterfacts import CheckedNode, Facts
from cli.main import main
from cli.output import Output
from cli.savings import Savings
from slacktide import forecast as wire
from slacktide.cluster.permissions import permissions
from slacktide.names import FORECAST_ANNOTATION
from slacktide.objects import Lease
from tests.cli import test_plot, test_savings
from tests.cli.test_snapshots import NOW, Terminal, compare, forecast

GIB = 1 << 30
SERVED = ("--prometheus", "http://p")


@pytest.fixture
def served(monkeypatch):
    """Called with the Prometheus that is asked."""

    def use(server):
        monkeypatch.setattr("cli.prometheus.client_of", lambda *_: server)

    return use


@pytest.fixture
def saved(served):
    served(
        test_savings.server(
            cpu={"team-a": 3.25, "Zürich": 1.5, "": 0.001},
            memory={"team-a": 6.0 * GIB, "Zürich": 0.5 * GIB},
            judged={"cpu": 0.02, "memory": 0.02},
            violated={"cpu": 0.0002},
        )
    )


PERIOD = ("--days", "2", "--to", "1970-01-05T00:00:00Z")


@pytest.mark.parametrize(("form", "options"), [("table", ()), ("csv", ("--csv",))])
def test_what_was_saved(saved, command, out, err, form, options):
    assert command("savings", *SERVED, *PERIOD, *options) == 0
    compare(f"savings-{form}.txt", out.text)


def test_what_was_saved_by_day(saved, command, out, err):
    assert command("savings", *SERVED, *PERIOD, "--by", "day") == 0
    compare("savings-day.txt", out.text)


@pytest.mark.parametrize("columns", [40, 80])
def test_what_was_saved_on_a_terminal(saved, app, monkeypatch, columns):
    terminal = Terminal(monkeypatch, columns, NO_COLOR="1")
    assert main(["savings", *SERVED, *PERIOD], app) == 0
    compare(f"savings-{columns}.txt", terminal.text)


def test_what_was_saved_as_json(saved, command, out, err):
    assert command("savings", *SERVED, *PERIOD, "-o", "json") == 0
    compare("savings.json", out.text)
    assert msgspec.json.decode(out.text.encode(), type=Savings, strict=True)


@pytest.fixture
def recorded(served):
    use = [800 + 40 * index for index in range(13)]
    served(
        test_plot.Server(ls=use, be=[2000] * 9 + [None] * 4, predictor_peak=[1000] * 13, predictor_sold=[1500] * 13),
    )


PLOT = ("forecast", "n1", "--plot", "--hours", "1", *SERVED)


@pytest.mark.parametrize(("columns", "encoding"), [(40, "utf-8"), (80, "utf-8"), (80, "ascii")])
def test_the_history_of_a_node_on_a_terminal(recorded, app, monkeypatch, columns, encoding):
    terminal = Terminal(monkeypatch, columns, encoding, NO_COLOR="1")
    assert main([*PLOT], app) == 0
    compare(f"plot-{columns}{'' if encoding == 'utf-8' else f'-{encoding}'}.txt", terminal.text)


def test_the_history_of_a_node_as_json(recorded, command, out, err):
    assert command(*PLOT, "-o", "json") == 0
    compare("plot.json", out.text)
    assert msgspec.json.decode(out.text.encode(), type=plotted.Drawn, strict=True)


def checked(name, kubelet, said):
    notes = {FORECAST_ANNOTATION: wire.encode(said)} if said else {}
    info = {"kubeletVersion": kubelet, "kernelVersion": "6.12.0", "operatingSystem": "linux"}
    status = {"nodeInfo": info, "conditions": [{"type": "Ready", "status": "True"}]}
    return msgspec.convert({"metadata": {"name": name, "annotations": notes}, "status": status}, CheckedNode)


def renewed(name, at):
    spec = {"holderIdentity": name, "leaseDurationSeconds": 15, "renewTime": at}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Lease)


def cluster():
    """A cluster with something of each verdict."""
    return Facts(
        namespace="slacktide-system",
        version="v1.36.3",
        now=NOW,
        here=NOW + 5.0,
        nodes=(
            checked("worker-1", "v1.36.3", forecast()),
            checked("worker-2", "v1.34.1", forecast("closed by the agent: blind", 40.0)),
            checked("worker-3", "v1.31.0", None),
        ),
        pods=(),
        namespaces=(),
        node_leases=(renewed("worker-1", "2026-01-01T09:59:58Z"), renewed("worker-2", "2026-01-01T10:02:00Z")),
        leader_leases=(renewed("slacktide-predictor", "2026-01-01T09:59:58Z"),),
        policies={},
        gates={},
        denied={"agent": permissions("create", "pods/eviction", "eviction")},
        missing={"kubelets": "worker-1: you may not get nodes/proxy"},
    )


@pytest.fixture
def findings():
    lacking = permissions("get", "nodes/proxy", "kubelet settings")
    return [rights(lacking), *clusterchecks.judge(cluster())]


def test_findings_of_a_cluster(findings, app, redirect, out, err):
    redirect()
    assert show(app, findings) == 1
    compare("doctor-cluster.txt", out.text)


@pytest.mark.parametrize("columns", [40, 120])
def test_findings_of_a_cluster_on_a_terminal(findings, app, monkeypatch, columns):
    terminal = Terminal(monkeypatch, columns, NO_COLOR="1")
    assert show(app, findings) == 1
    assert all(len(line) <= columns for line in terminal.text.splitlines())
    compare(f"doctor-cluster-{columns}.txt", terminal.text)


def test_findings_of_a_cluster_as_json(findings, app, redirect, out, err):
    redirect()
    app.out = Output("json")
    assert show(app, findings) == 1
    compare("doctor-cluster.json", out.text)
    said = json.loads(out.text)
    assert said["problems"] == sum(one["verdict"] == "problem" for one in said["findings"]) > 0
    assert {one["verdict"] for one in said["findings"]} == {"ok", "warning", "problem", "unknown"}
