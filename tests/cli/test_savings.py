"""What BE got: sums by whom, what is not known, and servers that lack what is asked for."""

from __future__ import annotations

import itertools
import json

import pytest

from cli.prometheus import LEAST_SECONDS, summed
from cli.savings import CPU, MEMORY, ask, csv_text, remarks, savings
from predictor.prometheus.answers import Answer, Series
from predictor.prometheus.errors import TooHeavy

HOUR = 3600.0
GIB = 1 << 30


class Server:
    """Answers by the metric's name and the label that is grouped by; notes the windows. Too heavy above a length."""

    def __init__(self, values, heavy=float("inf"), labels=("namespace", "instance")):
        self.values = values
        self.labels = labels
        self.heavy = heavy
        self.windows = []
        self.access = type("Access", (), {"base": "http://p"})()

    def now(self):
        return 100 * HOUR

    def close(self):
        return

    def instant(self, expression, at):
        if expression.startswith("topk"):
            return Answer([Series(dict.fromkeys(self.labels, "x"), (at, "1"))], ())
        window = float(expression.partition("[")[2].partition("s]")[0])
        self.windows.append((at - window, at))
        if window > self.heavy:
            raise TooHeavy("query processing would load too many samples")
        metric = next(name for name in self.values if name in expression)
        label = expression.partition("by (")[2].partition(")")[0]
        return Answer(
            [
                Series({label: name} if label else {}, (at, str(per_second * window)))
                for name, per_second in self.values[metric].items()
            ],
            (),
        )


def server(cpu=None, memory=None, judged=None, violated=None, **more):
    return Server(
        {
            CPU: cpu or {},
            MEMORY: memory or {},
            "slacktide_predictor_outcomes_total": judged or {},
            "slacktide_predictor_violations_total": violated or {},
            "slacktide_predictor_asked_risk_ratio": {"cpu": 0.01 / HOUR},
        },
        **more,
    )


def test_core_hours_by_namespace_the_largest_first():
    found = ask(server(cpu={"a": 1.0, "b": 3.0}, memory={"a": 2.0 * GIB}), 0.0, 10 * HOUR, "namespace")
    assert [(one.who, one.core_hours, one.cores, one.share) for one in found.rows] == [
        ("b", 30.0, 3.0, 0.75),
        ("a", 10.0, 1.0, 0.25),
    ]
    assert [one.gib_hours for one in found.rows] == [None, 20.0]
    assert (found.total.core_hours, found.total.gib_hours) == (40.0, 20.0)


def test_days_are_those_of_the_calendar_and_the_period_is_covered_once():
    asked = server(cpu={"": 1.0})
    found = ask(asked, 12 * HOUR, 60 * HOUR, "day")
    assert [(one.who, one.core_hours) for one in found.rows] == [
        ("1970-01-01", 12.0),
        ("1970-01-02", 24.0),
        ("1970-01-03", 12.0),
    ]
    assert found.total.core_hours == 48.0


def test_what_is_too_heavy_at_once_is_asked_for_in_parts_and_added_up():
    asked = server(cpu={"a": 2.0}, heavy=3 * HOUR)
    assert summed(
        asked, lambda window: f"sum by (namespace) (increase({CPU}[{window}]))", 0.0, 10 * HOUR, "namespace"
    ) == {"a": 20 * HOUR}
    leaves = sorted(part for part in asked.windows if part[1] - part[0] <= 3 * HOUR)
    assert (leaves[0][0], leaves[-1][1]) == (0.0, 10 * HOUR)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(leaves))


def test_a_server_that_finds_every_part_too_heavy_is_no_endless_loop():
    asked = server(cpu={"a": 1.0}, heavy=0.0)
    with pytest.raises(TooHeavy):
        summed(asked, lambda window: f"increase({CPU}[{window}])", 0.0, 8 * HOUR, "")
    assert min(end - begin for begin, end in asked.windows) >= LEAST_SECONDS


def test_forecasts_that_were_exceeded_are_told_with_what_was_asked():
    found = ask(server(cpu={"a": 1.0}, judged={"cpu": 1.0}, violated={"cpu": 0.02}), 0.0, HOUR, "namespace")
    (kept,) = found.forecasts
    assert (kept.judged, kept.violated, kept.rate, kept.asked) == (3600.0, 72.0, 0.02, pytest.approx(0.01))
    assert remarks(found) == ["cpu: 72 of 3600 forecasts were exceeded, 2.00%, asked for 1.00%"]
    assert "no forecast was judged" in remarks(ask(server(cpu={"a": 1.0}), 0.0, HOUR, "namespace"))[0]


def test_csv_leaves_unknown_cells_empty():
    found = savings(0.0, HOUR, "namespace", {"a, b": 3600.0}, {}, [])
    assert csv_text(found).splitlines() == ["namespace,core_hours,cores,share,gib_hours", '"a, b",1,1,1,']


@pytest.fixture
def asked(app, monkeypatch):
    def use(found):
        monkeypatch.setattr("cli.prometheus.client_of", lambda *_: found)

    return use


def test_nobody_scraped_the_agents(command, asked, out, err):
    asked(server())
    assert command("savings", "--prometheus", "http://p") == 1
    assert "does it scrape the agents" in err.text


def test_series_without_the_label_of_the_node_say_which_option_helps(command, asked, out, err):
    asked(server(cpu={"": 1.0}))
    assert command("savings", "--prometheus", "http://p", "--by", "node", "--node-label", "instance_node") == 1
    assert f"no label 'instance_node' on {CPU}; its labels are: instance, namespace" in err.text


@pytest.mark.parametrize(
    ("labels", "options", "by"),
    [
        (("namespace",), (), "namespace"),
        (("namespace", "exported_namespace"), (), "exported_namespace"),
        (("namespace", "exported_namespace"), ("--namespace-label", "namespace"), "namespace"),
        (("node",), ("--by", "node"), "node"),
        (("kubernetes_node",), ("--by", "node"), "kubernetes_node"),
    ],
)
def test_labels_are_those_that_scraping_made(command, asked, out, err, labels, options, by):
    """One that does not honour labels calls the namespace of BE pods `exported_namespace`, and its own `namespace`."""
    found = server(cpu={"a": 1.0}, labels=labels)
    asks = []
    instant = found.instant
    found.instant = lambda expression, at: asks.append(expression) or instant(expression, at)
    asked(found)
    assert command("savings", "--prometheus", "http://p", *options) == 0
    assert any(f"sum by ({by})" in expression for expression in asks)


def test_no_server_is_named(command, out, err):
    assert command("savings") == 2
    assert "SLACKTIDE_PROMETHEUS" in err.text


def test_the_answer_as_json(command, asked, out, err):
    asked(server(cpu={"a": 1.0}))
    assert command("savings", "--prometheus", "http://p", "--days", "1", "-o", "json") == 0
    found = json.loads(out.text)
    assert (found["total"]["core_hours"], found["rows"][0]["who"], found["rows"][0]["gib_hours"]) == (24.0, "a", None)


def test_a_server_that_is_not_there(command, out, err):
    assert command("savings", "--prometheus", "http://127.0.0.1:1", "--days", "1") == 1
    assert "127.0.0.1:1" in err.text
