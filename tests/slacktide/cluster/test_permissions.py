"""Which right is missing is known from reviews at start, and from the first denial after that."""

from __future__ import annotations

import threading

import pytest

from slacktide.cluster import errors
from slacktide.cluster.permissions import Permission, Rights, denial_of, permissions
from tests.slacktide.cluster.fakeapi import Reply, status, wait_for

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
USER = "system:serviceaccount:slacktide-system:slacktide-agent"
WANTED = (*permissions("list watch", "pods", "know pods"), *permissions("create", "pods/eviction", "evict"))


def denied(what, user=USER):
    return errors.Forbidden(403, "Forbidden", f'pods "a" is forbidden: User "{user}" cannot {what}')


@pytest.fixture
def server(api):
    """Answers reviews: what is in `lacking` is refused."""
    lacking = set()

    def review(call):
        attributes = call.body["spec"]["resourceAttributes"]
        what = "/".join(filter(None, (attributes["resource"], attributes.get("subresource"))))
        return Reply({"status": {"allowed": f"{attributes['verb']} {what}" not in lacking}}, 201)

    api.on("POST", REVIEWS, review)
    api.lacking = lacking
    return api


@pytest.fixture
def rights(client):
    made = []

    def make(again_seconds=0.02):
        made.append(Rights(client, WANTED, again_seconds=again_seconds))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('list resource "pods" in API group "" at the cluster scope', Permission(verb="list", resource="pods")),
        (
            'create resource "pods/eviction" in API group "" in the namespace "x"',
            Permission(verb="create", resource="pods", subresource="eviction", namespace="x"),
        ),
        (
            'update resource "leases" in API group "coordination.k8s.io" in the namespace "x": RBAC: role not found',
            Permission(verb="update", resource="leases", group="coordination.k8s.io", namespace="x"),
        ),
    ],
)
def test_denial_names_the_right(text, expected):
    assert denial_of(denied(text)) == (USER, expected)


def test_403_of_admission_is_no_missing_right():
    quota = 'pods "a" is forbidden: exceeded quota: compute, requested: pods=1, used: pods=1, limited: pods=1'
    assert denial_of(errors.Forbidden(403, "Forbidden", quota)) is None


def test_all_rights_are_asked_for_once_and_then_never(server, rights):
    found = rights()
    wait_for(lambda: len(server.made("POST", REVIEWS)) == len(WANTED), "all reviews")
    assert not threading.Event().wait(0.2)
    assert len(server.made("POST", REVIEWS)) == len(WANTED)
    assert found.problem() is None


def test_missing_right_is_named_until_it_is_granted(server, rights):
    server.lacking.add("create pods/eviction")
    found = rights()
    problem = wait_for(found.problem, "the problem")
    assert "create pods/eviction (evict)" in problem
    assert "docs/security.md" in problem
    server.lacking.clear()
    wait_for(lambda: found.problem() is None, "the grant to be seen")


def test_right_that_is_taken_later_is_known_by_its_denial(server, client, rights):
    found = rights(again_seconds=0.05)
    wait_for(lambda: len(server.made("POST", REVIEWS)) == len(WANTED), "all reviews")
    server.lacking.add("create pods/eviction")
    text = f'User "{USER}" cannot create resource "pods/eviction" in API group "" in the namespace "x"'
    server.on("POST", "/api/v1/namespaces/x/pods/a/eviction", status(403, "Forbidden", text))
    with pytest.raises(errors.Forbidden):
        client.request("POST", "/api/v1/namespaces/x/pods/a/eviction")
    problem = wait_for(found.problem, "the problem")
    assert "create pods/eviction" in problem
    assert USER in problem
    server.lacking.clear()
    wait_for(lambda: found.problem() is None, "the grant to be seen")


def test_server_that_cannot_be_asked_says_it_by_denials(api, client, rights):
    text = f'User "{USER}" cannot create resource "selfsubjectaccessreviews" in API group "authorization.k8s.io"'
    api.on("POST", REVIEWS, status(403, "Forbidden", text))
    found = rights()
    wait_for(lambda: len(api.made("POST", REVIEWS)) >= len(WANTED), "all reviews")
    assert found.problem() is None
    refused = f'User "{USER}" cannot list resource "pods" in API group "" at the cluster scope'
    api.on("GET", "/api/v1/pods", status(403, "Forbidden", refused))
    with pytest.raises(errors.Forbidden):
        client.request("GET", "/api/v1/pods")
    assert "list pods" in wait_for(found.problem, "the problem")
    wait_for(lambda: found.problem() is None, "what is denied no more is forgotten")


def test_nothing_is_known_while_the_server_is_away(make_client):
    client = make_client("unix:/nonexistent/api.sock")
    found = Rights(client, WANTED, again_seconds=0.01)
    found.start()
    assert found.problem() is None
    found.stop()
