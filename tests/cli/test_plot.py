"""The history of a node as text and as a picture."""

from __future__ import annotations

import json
import math

import pytest

from cli.plotted import Drawn, Line, ask, exceeded, pack, strips
from predictor.prometheus.answers import Answer, Series

STEP = 300.0


class Server:
    """Answers by metric: values at each step; a metric that is not named has no series."""

    def __init__(self, **values):
        self.values = values
        self.asked = []
        self.access = type("Access", (), {"base": "http://p"})()

    def now(self):
        return 100 * STEP

    def close(self):
        return

    def instant(self, expression, at):
        self.asked.append(expression)
        return Answer([], ())

    def range(self, expression, start, end, step):
        self.asked.append(expression)
        marks = {"be": 'tier="BE"', "ls": "LS|SYSTEM"}
        name = next((name for name in self.values if marks.get(name, name) in expression), None)
        if name is None:
            return Answer([], ())
        values = self.values[name]
        return Answer(
            [
                Series(
                    {},
                    None,
                    [(start + index * step, str(value)) for index, value in enumerate(values) if value is not None],
                )
            ],
            (),
        )


def drawn(**more):
    asked = Server(ls=[1000, 2000, 3000, None, 1000], predictor_peak=[2500] * 5, predictor_sold=[0] * 5, **more)
    return ask(asked, "n1", "cpu", 0.0, 4 * STEP)


def test_values_are_in_cores_gaps_stay_gaps_and_a_line_that_nobody_has_is_unknown():
    found = drawn()
    assert found.of("LS and SYSTEM use") == [1.0, 2.0, 3.0, None, 1.0]
    assert found.of("expected peak") == [2.5] * 5
    assert found.of("BE use") == [None] * 5
    assert found.exceeded == [False, False, True, False, False]


@pytest.mark.parametrize(
    ("use", "peak", "horizon", "over"),
    [
        ([1, 3], [2, 9], 1, [False, True]),
        ([3, 1], [2, 2], 1, [False, False]),
        ([1, 1, 3], [2, 9, 9], 1, [False, False, False]),
        ([1, 1, 3], [2, 9, 9], 2, [False, False, True]),
        ([None, 3], [None, 9], 1, [False, False]),
        ([1, 2], [2, 2], 1, [False, False]),
    ],
)
def test_use_is_compared_with_what_was_said_before_it(use, peak, horizon, over):
    assert exceeded(use, peak, horizon) == over


def test_the_highest_of_each_part_is_kept_and_a_part_of_gaps_is_a_gap():
    assert pack([1, 5, None, None, 2, 3], 3) == [5, None, 3]
    assert pack([1, None], 5) == [1, None]


@pytest.mark.parametrize("width", [40, 80, 300])
def test_a_strip_fits_the_terminal_and_shows_where_the_peak_was_exceeded(width):
    text = strips(drawn(), width, plain=False)
    assert all(len(line) <= max(width, 58) for line in text)
    assert text[0] == "n1, cpu, one scale from 0 to 3.00 cores"
    use = next(line for line in text if line.startswith("LS and SYSTEM use"))
    assert use == f"{'LS and SYSTEM use':<20}{'1.00':>8}  ▃▆█ ▃"
    mark = next(line for line in text if line.startswith("above the peak"))
    assert mark == f"{'above the peak':<20}{1:>8}    ^  "


def test_a_terminal_without_unicode_gets_ascii():
    assert all(line.isascii() for line in strips(drawn(), 80, plain=True))


def test_nothing_but_zeros_is_drawn():
    found = Drawn(
        node="n",
        resource="cpu",
        unit="cores",
        times=[0.0, 300.0],
        lines=[Line(name="use", values=[0.0, 0.0])],
        exceeded=[False] * 2,
    )
    assert strips(found, 80, plain=True)[1].endswith("__")


@pytest.fixture
def asked(monkeypatch):
    def use(found):
        monkeypatch.setattr("cli.prometheus.client_of", lambda *_: found)
        return found

    return use


def test_the_command_draws_and_writes_a_picture(command, asked, tmp_path, out, err):
    asked(Server(ls=[1000] * 13, predictor_peak=[500] * 13))
    picture = tmp_path / "n1.png"
    assert command("forecast", "n1", "--plot", "--hours", "1", "--png", str(picture), "--prometheus", "http://p") == 0
    assert "above the peak" in out.text
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_picture_that_cannot_be_written(command, asked, out, err):
    asked(Server(ls=[1000] * 13))
    assert command("forecast", "n1", "--png", "/nowhere/x.png", "--hours", "1", "--prometheus", "http://p") == 1
    assert "cannot write /nowhere/x.png: No such file or directory" in err.text


def test_the_same_as_json(command, asked, out, err):
    asked(Server(ls=[1000] * 13))
    assert command("forecast", "n1", "--plot", "--hours", "1", "-o", "json", "--prometheus", "http://p") == 0
    found = json.loads(out.text)
    assert (found["unit"], len(found["times"]), found["lines"][0]["values"][0]) == ("cores", 13, 1.0)


def test_a_node_that_nobody_scraped(command, asked, out, err):
    asked(Server())
    assert command("forecast", "n1", "--plot", "--prometheus", "http://p") == 1
    assert "nothing about node 'n1'" in err.text
    assert "label `node` of agents" in err.text


def test_a_plot_is_of_one_node(command, out, err):
    assert command("forecast", "--plot", "--prometheus", "http://p") == 2
    assert "which?" in err.text


def test_a_name_with_quotes_stays_a_name(asked):
    server = Server(ls=[1000] * 2)
    ask(server, 'a"b\\c', "cpu", 0.0, STEP)
    assert all(r'node="a\"b\\c"' in expression for expression in server.asked if "topk" not in expression)


def test_a_long_time_is_asked_for_in_bounded_points():
    server = Server(ls=[1000])
    found = ask(server, "n", "memory", 0.0, 400 * 86400.0)
    assert len(found.times) <= 2001
    assert math.isclose(found.times[1] % STEP, 0.0)
