"""What is said of an API server that serves nobody: one line when it begins, one when it is over."""

from __future__ import annotations

import logging

import pytest

from slacktide.cluster import errors
from slacktide.cluster.contact import Contact

AWAY = errors.Unreachable("GET /api/v1/pods: no connection")
BUSY = errors.TooManyRequests(429, "TooManyRequests", "too many requests")


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, logger="cluster.contact")
    return lambda: [record.msg["event"] for record in caplog.records if record.name == "cluster.contact"]


def forbidden(verb):
    return errors.Forbidden(403, "Forbidden", f'User "u" cannot {verb} resource "pods" in API group ""')


def test_many_failures_of_many_are_one_line_each_way(said):
    now = [0.0]
    contact = Contact(lambda: now[0])
    for _ in range(20):
        for who in ("pods", "nodes", "lease"):
            contact.failed(who, AWAY)
    assert len(said()) == 1
    assert contact.problem() == str(AWAY)
    contact.well("pods")
    contact.well("nodes")
    assert len(said()) == 1, "one still waits"
    contact.well("lease")
    assert len(said()) == 2
    assert contact.problem() is None
    contact.well("lease")
    assert len(said()) == 2


def test_another_class_of_trouble_is_another_line(said):
    contact = Contact()
    contact.failed("pods", AWAY)
    contact.failed("pods", BUSY)
    assert len(said()) == 3, "away, over, busy"
    assert contact.problem() == str(BUSY)


def test_each_missing_right_is_said(said):
    contact = Contact()
    for verb in ("list", "watch", "list"):
        contact.failed(f"{verb} pods", forbidden(verb))
    assert len(said()) == 2
