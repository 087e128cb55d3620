from __future__ import annotations

import json

import pytest

from slacktide.cluster import errors
from slacktide.errors import SlacktideError


def failure(code: int, reason: str, **details) -> bytes:
    body = {"kind": "Status", "status": "Failure", "message": "because", "reason": reason, "code": code}
    return json.dumps({**body, "details": details}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (410, "Gone", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (504, "Timeout", errors.ServerError),
        (405, "MethodNotAllowed", errors.ApiError),
    ],
)
def test_status_becomes_its_class(code, reason, expected):
    error = errors.from_response(code, failure(code, reason), {})
    assert type(error) is expected
    assert (error.status, error.reason, error.message) == (code, reason, "because")
    assert isinstance(error, SlacktideError)


def test_already_exists_is_a_conflict_but_not_the_other_way_round():
    assert issubclass(errors.AlreadyExists, errors.Conflict)
    assert not isinstance(errors.from_response(409, failure(409, "Conflict"), {}), errors.AlreadyExists)


def test_retry_after_of_header_wins_over_body():
    body = failure(429, "TooManyRequests", retryAfterSeconds=10)
    assert errors.from_response(429, body, {"Retry-After": "3"}).retry_after == 3.0
    assert errors.from_response(429, body, {}).retry_after == 10.0
    assert errors.from_response(429, failure(429, "TooManyRequests", retryAfterSeconds=0), {}).retry_after == 0.0


@pytest.mark.parametrize("header", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "inf", "nan", ""])
def test_unusable_retry_after_is_not_said_rather_than_zero(header):
    assert errors.from_response(429, failure(429, ""), {"Retry-After": header}).retry_after is None


@pytest.mark.parametrize(
    "body", [b"", b"404 page not found\n", b"<html>", b"\xff\xfe", b"[]", b'{"kind": "Pod"}', b'{"kind": 3}']
)
def test_body_that_is_no_status_is_kept_as_text(body):
    error = errors.from_response(404, body, {})
    assert type(error) is errors.NotFound
    assert error.reason == ""
    assert error.message


def test_long_page_of_a_proxy_is_cut():
    assert len(errors.from_response(502, b"x" * 100_000, {}).message) == 2000


def test_causes():
    body = failure(429, "TooManyRequests", causes=[{"reason": "DisruptionBudget", "message": "needs 2"}])
    error = errors.from_response(429, body, {})
    assert error.has_cause("DisruptionBudget")
    assert not error.has_cause("Other")
    assert errors.from_response(429, failure(429, "", causes=None), {}).causes == []
