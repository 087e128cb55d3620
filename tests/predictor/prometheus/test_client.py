"""What the client makes of servers that are slow, full, wrong or lying."""

from __future__ import annotations

import email.utils
import gzip
import threading
import time

import pytest

from predictor.prometheus.access import access_of
from predictor.prometheus.client import Client, Manners, World
from predictor.prometheus.errors import Away, PrometheusError, TooHeavy
from tests.predictor.prometheus.fake import VECTOR, Fake, Said


class Sleeps:
    """Sleeping takes no time and is written down."""

    def __init__(self):
        self.seconds = []
        self.now = 0.0

    def __call__(self, seconds):
        self.seconds.append(seconds)
        self.now += seconds


@pytest.fixture
def sleeps():
    return Sleeps()


@pytest.fixture
def ask(sleeps):
    """Makes a server that answers by a function, and a client of it."""
    fakes, clients = [], []

    def make(answer, manners=None, url="", **access):
        fakes.append(Fake(answer))
        manners = manners or Manners(per_second=1e6)
        world = World(sleep=sleeps, uniform=lambda: 0.5)
        clients.append(Client(access_of(fakes[-1].url + url, **access), manners, world))
        return fakes[-1], clients[-1]

    yield make
    for client in clients:
        client.close()
    for fake in fakes:
        fake.stop()


def in_turn(*said):
    left = list(said)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def refusal(status, text, **headers):
    body = b'{"status":"error","errorType":"execution","error":"%s"}' % text.encode()
    return Said(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def test_a_query_carries_its_deadline_and_asks_for_no_partial_answers(ask):
    fake, client = ask(in_turn(Said()), url="/prometheus", headers=("X-Scope-OrgID: team-a",))
    assert client.instant("up", 1700000000.0).series[0].value == (1.0, "1")
    asked = fake.asked[0]
    assert (asked.method, asked.path) == ("POST", "/prometheus/api/v1/query")
    assert asked.headers["X-Scope-OrgID"] == "team-a"
    wanted = {"query": "up", "time": "1700000000", "timeout": "120s", "partial_response": "false", "dedup": "true"}
    assert wanted.items() <= asked.form.items()
    client.range("up", 1700000000.0, 1700000600.0, 30)
    assert {"start": "1700000000", "end": "1700000600", "step": "30"}.items() <= fake.asked[1].form.items()


def test_compressed_answers_are_read(ask):
    packed = gzip.compress(VECTOR)
    _, client = ask(in_turn(Said(body=packed, headers={"Content-Encoding": "gzip"})))
    assert len(client.instant("up", 1.0).series) == 1


@pytest.mark.parametrize(
    "said",
    [
        refusal(503, "service unavailable"),
        refusal(500, "internal"),
        refusal(502, "bad gateway"),
        Said(429, b"slow down"),
        Said(body=b"\x1f\x8bjunk", headers={"Content-Encoding": "gzip"}),
        Said(body=VECTOR, headers={"Content-Length": str(len(VECTOR) + 9), "Connection": "close"}),
    ],
)
def test_what_may_pass_is_tried_again_with_growing_pauses(ask, sleeps, said):
    fake, client = ask(in_turn(said, said, Said()))
    assert len(client.instant("up", 1.0).series) == 1
    assert len(fake.asked) == 3
    pauses = [seconds for seconds in sleeps.seconds if seconds > 0.1]
    assert len(pauses) == 2
    assert pauses[0] < pauses[1]


def test_the_server_says_when_to_come_back(ask, sleeps):
    _, client = ask(in_turn(refusal(429, "rate", Retry_After="7"), Said()))
    client.instant("up", 1.0)
    assert 7.0 <= sleeps.seconds[-1] <= 9.0


def test_a_server_that_stays_away_is_given_up(ask):
    fake, client = ask(in_turn(refusal(503, "maintenance")), Manners(per_second=1e6, attempts=4))
    with pytest.raises(Away, match="maintenance; gave up after 4 attempts"):
        client.instant("up", 1.0)
    assert len(fake.asked) == 4
    assert not client.alive()


def test_nobody_there_is_said_as_such(sleeps):
    client = Client(access_of("http://127.0.0.1:9"), Manners(per_second=1e6), World(sleep=sleeps))
    with pytest.raises(Away, match=r"no connection: .*refused.*after 2 attempts"):
        client.greet()


@pytest.mark.parametrize(
    ("status", "text", "series"),
    [
        (422, "query processing would load too many samples into memory in query execution", False),
        (400, "exceeded maximum resolution of 11,000 points per timeseries", False),
        (
            422,
            "the query exceeded the maximum number of series (limit: 9 series) (err-mimir-max-series-per-query)",
            True,
        ),
        (422, "the query exceeded the maximum number of chunks (err-mimir-max-chunks-per-query)", False),
        (422, "cannot select more than -search.maxSamplesPerQuery=1000000000 samples; possible solutions: ...", False),
        (422, "the number of matching timeseries exceeds 30000", True),
        (413, "request entity too large", False),
    ],
)
def test_what_is_too_much_must_become_smaller_and_is_not_repeated(ask, status, text, series):
    fake, client = ask(in_turn(refusal(status, text)))
    with pytest.raises(TooHeavy) as refused:
        client.range("up", 1.0, 2.0, 1.0)
    assert refused.value.series is series
    assert len(fake.asked) == 1


@pytest.mark.parametrize(
    "said", [refusal(503, "query timed out in expression evaluation"), Said(504, b"Gateway Time-out")]
)
def test_two_timeouts_in_a_row_mean_too_much(ask, said):
    fake, client = ask(in_turn(said))
    with pytest.raises(TooHeavy):
        client.instant("up", 1.0)
    assert len(fake.asked) == 2
    _, client = ask(in_turn(said, Said()))
    assert len(client.instant("up", 1.0).series) == 1


def test_silence_ends_at_the_deadline(ask, monkeypatch):
    monkeypatch.setattr("predictor.prometheus.client._EXTRA_SECONDS", 0.0)
    over = threading.Event()
    fake, client = ask(in_turn(Said(pause=lambda: over.wait(30))), Manners(per_second=1e6, answer_seconds=0.2))
    began = time.monotonic()
    with pytest.raises(TooHeavy, match="no answer in time"):
        client.instant("up", 1.0)
    over.set()
    assert len(fake.asked) == 2
    assert time.monotonic() - began < 20


def test_a_trickle_ends_at_the_deadline(ask, monkeypatch):
    """Each byte comes in time, the whole does not."""
    monkeypatch.setattr("predictor.prometheus.client._EXTRA_SECONDS", 0.0)
    monkeypatch.setattr("predictor.prometheus.client._CHUNK_BYTES", 1)
    fake, client = ask(in_turn(Said(body=VECTOR)), Manners(per_second=1e6, answer_seconds=5.0))
    ticks = iter(range(10_000))
    client.world = World(monotonic=lambda: float(next(ticks)), sleep=client.world.sleep)
    with pytest.raises(TooHeavy, match="did not end in time"):
        client.instant("up", 1.0)
    assert len(fake.asked) == 2


def test_an_answer_without_end_is_cut(ask):
    _, client = ask(in_turn(Said(body=b"x" * 5000)), Manners(per_second=1e6, max_bytes=1000))
    with pytest.raises(TooHeavy, match="longer than 1000 bytes") as refused:
        client.instant("up", 1.0)
    assert refused.value.series


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Said(401, b"no"), "--token-file"),
        (Said(403, b"no"), "right to read"),
        (Said(404, b"no"), "/prometheus"),
        (Said(302, b"", {"Location": "https://login.example/"}), "login.example"),
        (refusal(400, "parse error: unexpected character"), "parse error"),
        (refusal(422, "found duplicate series for the match group"), "duplicate series"),
        (Said(body=b"<html>welcome</html>"), "is this its address"),
    ],
)
def test_what_does_not_pass_is_said_at_once_with_a_remedy(ask, said, words):
    fake, client = ask(in_turn(said))
    with pytest.raises(PrometheusError, match=words) as refused:
        client.instant("up", 1.0)
    assert type(refused.value) is PrometheusError
    assert [asked.method for asked in fake.asked] == (["POST", "GET"] if said.status == 403 else ["POST"])


@pytest.mark.parametrize("status", [403, 405, 501])
def test_a_proxy_that_lets_only_get_through_is_asked_by_get(ask, status):
    fake, client = ask(lambda asked: Said(status, b"") if asked.method == "POST" else Said())
    client.instant("up", 1.0)
    client.instant("up", 2.0)
    assert [asked.method for asked in fake.asked] == ["POST", "GET", "GET"]
    assert fake.asked[1].form["query"] == "up"


def test_queries_are_paced(ask, sleeps):
    _, client = ask(in_turn(Said()), Manners(per_second=4.0))
    client.world = World(monotonic=lambda: sleeps.now, sleep=sleeps)
    for _ in range(9):
        client.instant("up", 1.0)
    assert sleeps.now == pytest.approx(2.0)
    assert client.queries == 9


def test_the_clock_of_the_server_counts(ask):
    ahead = email.utils.formatdate(time.time() + 3600, usegmt=True)
    _, client = ask(in_turn(Said(headers={"Date": ahead})))
    client.greet()
    assert client.skew_seconds == pytest.approx(3600, abs=30)
    assert client.now() == pytest.approx(time.time() + 3600, abs=30)


def test_a_ca_that_is_none_is_named(tmp_path):
    path = tmp_path / "ca.pem"
    path.write_text("junk")
    client = Client(access_of("https://127.0.0.1:9", ca_file=str(path)))
    with pytest.raises(PrometheusError, match=r"ca\.pem"):
        client.greet()
