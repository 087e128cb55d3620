"""Identities by token: what is remembered, for how long, and what happens while the API server does not answer."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.cluster.errors import BadRequest, Forbidden, ServerError, TooManyRequests, Unreachable
from slacktide.transport.reviews import NODE_CLAIM, Review, User
from slacktide.transport.tokens import QUIET_SECONDS, REFUSED_SECONDS, NotNow, Rejected, Tokens, bearer, expiry_of

NOW = 1_700_000_000.0
AGENT = User(username="system:serviceaccount:s:agent", extra={NODE_CLAIM: ("n1",)})


def token(expires=3600.0, number=0):
    parts = ({"alg": "RS256"}, {"exp": NOW + expires, "n": number})
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts), "sig"])


class Server:
    """An API server that answers by `answer`, and a clock that tests move."""

    def __init__(self):
        self.now = 100.0
        self.asked = 0
        self.answer = Review(AGENT)
        self.tokens = Tokens(
            self.ask, lambda: 600.0, clock=lambda: self.now, wall=lambda: NOW + self.now - 100.0, jitter=lambda: 1.0
        )

    def ask(self, text):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def server():
    return Server()


def test_a_good_token_is_asked_about_once_in_the_review_time(server):
    for _ in range(5):
        assert server.tokens.identify(token()).user.node == "n1"
    assert server.asked == 1
    server.now += 599.0
    assert server.tokens.remembered(token()) is not None
    server.now += 2.0
    assert server.tokens.remembered(token()) is None
    server.tokens.identify(token())
    assert server.asked == 2


def test_a_token_is_believed_no_longer_than_it_lives(server):
    identity = server.tokens.identify(token(expires=30.0))
    assert identity.look_at == identity.ends_at == server.now + 30.0


def test_a_token_that_our_clock_calls_expired_is_believed_for_a_minute(server):
    identity = server.tokens.identify(token(expires=-600.0))
    assert identity.ends_at == server.now + 60.0


def test_while_the_api_server_is_away_those_who_are_known_go_on_until_their_token_ends(server):
    server.tokens.identify(token(expires=3600.0))
    server.answer = Unreachable("no connection")
    for _ in range(4):
        server.now += 800.0
        assert server.tokens.identify(token(expires=3600.0)).user == AGENT
    server.now += 500.0
    with pytest.raises(NotNow, match="no connection"):
        server.tokens.identify(token(expires=3600.0))
    server.answer = Review(AGENT)
    server.now += QUIET_SECONDS
    assert server.tokens.identify(token(expires=3600.0)).user == AGENT


def test_nobody_new_is_let_in_meanwhile_and_the_server_is_not_flooded(server):
    server.answer = Unreachable("no connection")
    for number in range(50):
        with pytest.raises(NotNow):
            server.tokens.identify(token(number=number))
    assert server.asked == 1
    server.now += QUIET_SECONDS
    server.answer = Review(AGENT)
    assert server.tokens.identify(token(number=1)).user == AGENT


def test_a_refused_token_is_refused_at_once_for_a_while(server):
    server.answer = Review(None, "token has expired")
    for _ in range(3):
        with pytest.raises(Rejected, match="token has expired"):
            server.tokens.identify(token())
    assert server.asked == 1
    server.now += REFUSED_SECONDS
    server.answer = Review(AGENT)
    assert server.tokens.identify(token()).user == AGENT


def test_a_pod_that_was_deleted_is_noticed_at_the_next_review(server):
    server.tokens.identify(token())
    server.answer = Review(None, "pod is gone")
    server.now += 601.0
    with pytest.raises(Rejected, match="pod is gone"):
        server.tokens.identify(token())
    # It is not known any more: an outage does not bring it back.
    server.answer = Unreachable("away")
    server.now += REFUSED_SECONDS
    with pytest.raises(NotNow):
        server.tokens.identify(token())


def test_a_question_that_the_server_cannot_read_is_the_callers_fault_and_is_not_repeated_to_it(server):
    server.answer = BadRequest(400, "BadRequest", "cannot read xyz")
    with pytest.raises(Rejected) as caught:
        server.tokens.identify("xyz")
    assert "xyz" not in str(caught.value)


@pytest.mark.parametrize(
    "failure",
    [
        Forbidden(403, "Forbidden", "cannot create tokenreviews"),
        TooManyRequests(429, "TooManyRequests", "busy"),
        ServerError(500, "InternalError", "etcd"),
        Unreachable("away"),
    ],
)
def test_whatever_keeps_the_server_from_answering_is_no_verdict_on_the_token(server, failure):
    server.answer = failure
    with pytest.raises(NotNow):
        server.tokens.identify(token())
    server.now += QUIET_SECONDS
    server.answer = Review(AGENT)
    assert server.tokens.identify(token()).user == AGENT


def test_what_is_remembered_is_bounded_and_holds_no_token(server, monkeypatch):
    monkeypatch.setattr("slacktide.transport.tokens._MOST", 10)
    tokens = [token(number=number) for number in range(30)]
    for text in tokens:
        server.tokens.identify(text)
    assert len(server.tokens._known) == 10
    everything = repr(vars(server.tokens))
    assert not any(text in everything for text in tokens)


@given(
    st.text(max_size=200) | st.binary(max_size=200).map(lambda b: "a." + base64.urlsafe_b64encode(b).decode() + ".c")
)
def test_expiry_of_anything(text):
    found = expiry_of(text)
    assert found is None or isinstance(found, float)


@pytest.mark.parametrize(
    "metadata", [[], [("authorization", "Basic abc")], [("authorization", "Bearer ")], [("authorization-bin", b"x")]]
)
def test_no_token(metadata):
    with pytest.raises(Rejected, match="no token"):
        bearer(metadata)


def test_bearer():
    assert bearer([("user-agent", "x"), ("authorization", "bearer  abc ")]) == "abc"
