"""`slacktide drill`: on this machine over the agent's socket. With a cluster: tests/cluster/test_identity.py."""

from __future__ import annotations

import json

import pytest

from agent.drill_service import DrillServer, DrillService, DrillSettings
from cli.drillreach import Reach, agent_of, authority, connect, token_of
from cli.exits import CommandError
from slacktide.cluster.errors import Forbidden, NotFound
from slacktide.objects import ObjectMeta, Pod, PodStatus
from tests.cli.test_drills import Node


@pytest.fixture
def agent(app):
    with Node(opens=True) as node:
        settings = DrillSettings(listen=f"unix:{app.state().drill_socket}", victims_max=3)
        server = DrillServer(settings, DrillService("n1", node.board, lambda: settings))
        server.start()
        yield node
        server.stop()


def test_a_drill_of_this_machine(command, out, err, agent):
    assert command("drill", "--seconds", "1", "--victims", "2", "--dry-run", "--reason", "weekly") == 0
    order = agent.board.current().order
    assert (order.victims_max, order.dry_run, order.reason, order.duration_seconds) == (2, True, "weekly", 1.0)
    lines = out.text.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["detected", "throttled", "evicted", "recovered"]
    assert lines[3].split() == ["evicted", "-"]
    assert "BE is limited to 500m" in err.text


def test_as_json_and_with_a_node_that_is_another(command, out, agent):
    assert command("drill", "n1", "--seconds", "0.1", "-o", "json") == 0
    found = json.loads(out.text)
    assert found["recovered_millis"] > 0
    assert found["evicted_millis"] is None
    assert command("drill", "n2", "--seconds", "0.1") == 1
    assert "this is 'n1'" in out.text


def test_a_cluster_needs_the_name_of_a_node(command, err, app):
    app.kubectl = True
    assert command("drill") == 2
    assert "which node" in err.text


class Api:
    """A client that answers from `answers` by method and end of the path."""

    def __init__(self, pods=(), answer=None):
        self.pods = pods
        self.answer = answer
        self.asked = []

    def list(self, _kind, namespace, field_selector, label_selector):
        self.asked.append((namespace, field_selector, label_selector))
        return type("Listing", (), {"items": self.pods})

    def request(self, method, path, body=None):
        self.asked.append((method, path, json.loads(body) if body else None))
        if isinstance(self.answer, Exception):
            raise self.answer
        return json.dumps(self.answer).encode()


def pod(ip, phase="Running"):
    return Pod(metadata=ObjectMeta(name="a", namespace="s"), status=PodStatus(phase=phase, pod_ip=ip))


def test_the_agent_of_a_node():
    api = Api([pod("10.0.0.9", "Pending"), pod(""), pod("10.0.0.7")])
    assert agent_of(api, "s", "n1") == "10.0.0.7:7444"
    assert api.asked[0][:2] == ("s", "spec.nodeName=n1")
    assert agent_of(Api([pod("fd00::7")]), "s", "n1") == "[fd00::7]:7444"
    with pytest.raises(CommandError, match="no agent runs on node 'n1'"):
        agent_of(Api(), "s", "n1")


@pytest.mark.parametrize("answer", [NotFound(404, "NotFound", "x"), {"data": {}}, {}])
def test_an_authority_that_is_not_there_is_said(answer):
    with pytest.raises(CommandError, match=r"ConfigMap s/slacktide-ca.*--ca-file"):
        authority(Api(answer=answer), "s")


def test_the_token_is_for_drills_alone_and_lives_as_long_as_the_drill_may():
    api = Api(answer={"status": {"token": "t"}})
    assert token_of(api, "s/operator", 5.0) == "t"
    method, path, body = api.asked[0]
    assert (method, path) == ("POST", "/api/v1/namespaces/s/serviceaccounts/operator/token")
    assert body["spec"] == {"audiences": ["slacktide-drill"], "expirationSeconds": 600}
    token_of(api, "s/operator", 3000.0)
    assert api.asked[1][2]["spec"]["expirationSeconds"] == 3060


@pytest.mark.parametrize(
    ("account", "answer", "word"),
    [
        ("operator", {}, "NAMESPACE/NAME"),
        ("s/operator", NotFound(404, "NotFound", "x"), "no account s/operator"),
        ("s/operator", Forbidden(403, "Forbidden", 'cannot create "serviceaccounts/token"'), "may not drill"),
    ],
)
def test_why_there_is_no_token(account, answer, word):
    with pytest.raises(CommandError, match=word):
        token_of(Api(answer=answer), account, 5.0)


def test_a_token_of_a_file_makes_none(tmp_path):
    (tmp_path / "token").write_text("secret-of-drills")
    api = Api([pod("10.0.0.7")], {"data": {"ca.crt": "certificates"}})
    made = connect(api, "n1", Reach(namespace="s", account="s/o", token_file=str(tmp_path / "token")), 5.0)
    made.channel.close()
    assert made.metadata == (("authorization", "Bearer secret-of-drills"),)
    assert not [call for call in api.asked if call[0] == "POST"]
