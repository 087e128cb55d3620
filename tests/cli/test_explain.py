from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.explained import computed, explain
from predictor.assess import AssessRules, Knowledge, Peak, assess
from predictor.newcomers import Newcomers
from predictor.pools import NodeBounds
from predictor.reclaim import Bounds
from slacktide.forecast import Amount, Forecast, Origin, Terms, Zone, encode
from slacktide.names import BATCH_CPU, BATCH_MEMORY, FORECAST_ANNOTATION, TIER_LABEL
from tests.predictor.support import WALL, make_sample

GIB = 1 << 30
MODEL = Origin(path="model", model="boosted", risk=0.01, shift=0.0421, widened="the fleet is surprised")
REQUESTS = Origin(path="requests")


def both(cpu, memory=0):
    return Amount(cpu_millis=cpu, memory_bytes=memory * GIB)


def made(at=None, **changes):
    terms = {
        "capacity": both(32000, 64),
        "allocatable": both(30000, 60),
        "reserve": both(1600, 3),
        "held": both(1000, 2),
        "peak": both(9000, 20),
        "now": both(4000, 21),
        "newcomers": both(4000, 1),
        "newcomer_pods": 1,
        "sold": both(0, 0),
        "cpu": MODEL,
        "memory": REQUESTS,
        "note": "young LS pods: 1; rise waits",
        **changes.pop("terms", {}),
    }
    forecast = {"reclaimable": both(15000, 37), "horizon_seconds": 3600.0, **changes}
    at = time.time() if at is None else at
    return Forecast(at=at, ttl_seconds=60.0, peak=terms["peak"], terms=Terms(**terms), **forecast)


def node(forecast, name="n1"):
    amounts = {BATCH_CPU: "15000", BATCH_MEMORY: str(37 * GIB)}
    annotations = {} if forecast is None else {FORECAST_ANNOTATION: encode(forecast)}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


@pytest.fixture
def twin(twin):
    requests = {BATCH_CPU: "2000", BATCH_MEMORY: str(GIB)}
    twin.put(
        {
            "metadata": {"name": "batch", "namespace": "default", "uid": "u", "labels": {TIER_LABEL: "be"}},
            "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"requests": requests}}]},
            "status": {"phase": "Running"},
        }
    )
    return twin


def test_every_term_is_there_with_its_amounts_and_its_reason(command, twin, out, err):
    twin.nodes = [node(made())]
    assert command("explain", "node", "n1") == 0
    text = out.text
    assert text.startswith("n1: fresh")
    for words in (
        "capacity 32.00 64Gi",
        "- reserve 1.60 3Gi",
        "- held 1.00 2Gi",
        "peak 9.00 20Gi",
        "use now 4.00 21Gi",
        "- need 9.00 21Gi",
        "- newcomers 4.00 1Gi",
        "= computed 16.40 37Gi",
        "= reclaimable 15.00 37Gi less than computed: a rise waits",
        "- sold 2.00 1Gi",
        "= room 13.00 36Gi",
        "in the status 15.00 37Gi",
    ):
        assert any(" ".join(line.split()).startswith(words) for line in text.splitlines()), words
    assert "boosted, asked risk 1.00%, calibration +4.2% of the week's highest use), widened: the fleet" in text
    assert "memory: too little was measured to forecast" in text
    assert "1 LS pod is young or not measured" in text
    assert "* the peak is that of the next 60 minutes" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"closed": "memory is short"}, "closed: memory is short"),
        ({"terms": {"fading": 0.25}}, "the node is silent: 25% of its room is left"),
        ({"terms": {"cap": both(8000, 1)}}, "most that the settings let be sold here"),
        ({"terms": {"floor": both(800, 1)}}, "least that the settings offer here"),
        ({"terms": {"pool": "gold"}}, "share of capacity that the settings of pool gold never sell"),
        ({"terms": {"cpu": Origin(path="from the future", model="x")}}, "does not know"),
        ({"mid": both(7000, 1)}, "mid tier"),
        ({"zones": (Zone(id=1, capacity=both(8000), reclaimable=both(3000)),)}, "zone 1"),
        ({"terms": {"cpu": Origin(path="stale model", model="window_max")}}, "no forecast came in time"),
    ],
)
def test_what_bounds_a_number_is_said(command, twin, out, err, changes, words):
    twin.nodes = [node(made(**changes))]
    assert command("explain", "node") == 0
    assert words in out.text


@pytest.mark.parametrize("asked", [("explain", "node"), ("forecast",), ("top", "--once"), ("ps",)])
def test_that_a_node_is_closed_is_said_once_where_the_predictor_says_it_too(command, twin, out, err, asked):
    twin.nodes = [node(made(closed="closed by the agent: blind"))]
    assert command(*asked) == 0
    assert "closed: closed" not in out.text
    if asked[0] != "ps":
        assert "closed by the agent: blind" in " ".join(out.text.split())


def test_ages_are_said(command, twin, out, err):
    twin.nodes = [node(made(time.time() - 120))]
    assert command("explain", "node", "n1") == 0
    assert "the forecast ages: 50% of the room is left" in out.text
    twin.nodes = [node(made(time.time() - 600))]
    assert command("explain", "node", "n1") == 0
    assert "the forecast is expired: nothing more is sold" in out.text


def test_json_is_one_document(command, twin, out, err):
    twin.nodes = [node(made())]
    assert command("explain", "node", "n1", "-o", "json") == 0
    said = json.loads(out.text)
    assert said["left"] == {"cpu_millis": 13000, "memory_bytes": 36 * GIB}
    assert {line["term"] for line in said["lines"]} >= {"capacity", "peak", "need", "newcomers", "room"}
    assert said["forecast"]["terms"]["cpu"]["model"] == "boosted"


def test_a_node_that_is_not_there_or_has_nothing(command, twin, out, err):
    twin.nodes = [node(None), node(made(), "n2")]
    assert command("explain", "node", "n9") == 1
    assert command("explain", "node") == 1
    assert command("explain", "node", "n1") == 0
    assert "n1: nothing is sold here: no forecast was published yet" in out.text


def test_forecast_lists_all_nodes(command, twin, out, err):
    twin.nodes = [node(made(), "n2"), node(None), node(made(closed="LS is short of CPU"), "n3")]
    assert command("forecast") == 0
    lines = out.text.splitlines()
    assert lines[0].split() == ["NODE", "CAPACITY", "PEAK", "NOW", "SOLD", "ROOM", "MODEL", "PATH", "AGE", "REASON"]
    assert [line.split()[0] for line in lines[1:]] == ["n1", "n2", "n3"]
    assert "no forecast was published yet" in lines[1]
    assert "9.00 / 20Gi" in lines[2]
    assert "model / requests" in lines[2]
    assert "closed: LS is short of CPU" in lines[3]
    assert "0.00 / 0" in lines[3]


def test_forecast_json(command, twin, out, err):
    twin.nodes = [node(made()), node(None, "n2")]
    assert command("forecast", "-o", "json") == 0
    nodes = json.loads(out.text)["nodes"]
    assert nodes[0]["room"] == {"cpu_millis": 13000, "memory_bytes": 36 * GIB}
    assert nodes[0]["published"] == {"cpu_millis": 15000, "memory_bytes": 37 * GIB}
    assert (nodes[1]["forecast"], nodes[1]["reason"]) == (None, "no forecast was published yet")


@pytest.mark.parametrize("words", [["forecast"], ["explain", "node", "n1"]])
def test_nothing_is_up(command, app, out, err, words):
    app.is_up = lambda _: False
    assert command(*words) == 3


AMOUNT = st.integers(0, 40000)


@given(AMOUNT, AMOUNT, AMOUNT, AMOUNT, AMOUNT, st.booleans(), st.floats(0, 30))
def test_the_terms_of_any_forecast_add_up_to_what_the_predictor_computed(
    used, system, peak, beyond_peak, beyond_now, cold, reserve
):
    beyond = Newcomers(beyond_peak=both(beyond_peak), beyond_now=both(beyond_now), count=1)
    known = Knowledge(
        latest=make_sample(1, ls_cpu_mean=used, system_cpu_mean=system),
        requested=both(3000, 1),
        allocatable=both(30000, 60),
        capacity=both(32000, 64),
        sold=both(0),
        cpu=Peak(float(peak), MODEL, cold),
        memory=Peak(0.0, MODEL, cold=False),
        newcomers=beyond,
    )
    bounds = NodeBounds(Bounds(reserve_percent=reserve), Bounds(reserve_percent=reserve))
    forecast = assess(known, WALL, AssessRules(ttl_seconds=60.0, horizon_seconds=3600.0), bounds)
    assert computed(forecast.terms) == forecast.reclaimable
    assert explain("n1", forecast, both(0), both(0), WALL).left == forecast.reclaimable
