"""Who is asked, over which way, and what is said where nothing comes."""

import os
from types import SimpleNamespace

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from cli.asking import InCluster, OnThisMachine, answered, components
from slacktide.cluster.errors import BadRequest, Forbidden, NotFound, ServerError, Unreachable
from slacktide.observe import Health, ObserveServer
from standalone.state import find


class Word(msgspec.Struct, frozen=True):
    word: str


@pytest.fixture
def serve(root):
    """Called with routes: a daemon's endpoint at the socket of `agent`."""
    servers = []

    def begin(**routes):
        path = find(root).observe_socket("agent")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        answers = {f"/{name}": (lambda body=body: body) for name, body in routes.items()}
        server = ObserveServer(f"unix:{path}", CollectorRegistry(), Health(), answers)
        server.start()
        servers.append(server)

    yield begin
    for server in servers:
        server.stop()


def test_a_daemon_of_this_machine_answers_over_its_socket(root, serve):
    serve(said=b'{"word": "yes"}', torn=b'{"wor')
    machine = OnThisMachine(find(root))
    (told,) = machine.ask("agent", "/said", Word)
    assert (told.value, told.problem) == (Word("yes"), "")
    (torn,) = machine.ask("agent", "/torn", Word)
    assert torn.value is None
    assert "cannot read" in torn.problem
    (older,) = machine.ask("agent", "/later", Word)
    assert "has no /later: it is of another version" in older.problem
    (away,) = machine.ask("predictor", "/said", Word)
    assert "the predictor does not answer on " in away.problem
    assert away.problem.endswith("predictor.log")


def test_a_route_that_fails_says_what_the_daemon_said(root):
    path = find(root).observe_socket("agent")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    server = ObserveServer(f"unix:{path}", CollectorRegistry(), Health(), {"/said": lambda: 1 // 0})
    server.start()
    try:
        (told,) = OnThisMachine(find(root)).ask("agent", "/said", Word)
    finally:
        server.stop()
    assert "answers 500: ZeroDivisionError" in told.problem


class Api:
    """As much of a client as is asked; pods by (component, node)."""

    def __init__(self, pods=(), answers=None, error=None):
        self.pods, self.answers, self.error, self.asked = pods, answers or {}, error, []

    def list(self, kind, namespace=None, field_selector="", label_selector=""):
        self.asked.append((namespace, field_selector, label_selector))
        if self.error is not None:
            raise self.error
        return SimpleNamespace(items=tuple(msgspec.convert(pod, kind.view) for pod in self.pods))

    def request(self, method, path, query=None, **_):
        self.asked.append((method, path, dict(query or {})))
        answer = self.answers[path.partition("/pods/")[2].partition(":")[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer


def pod(name, node="n1", phase="Running", port=None):
    ports = [{"name": "grpc", "containerPort": 7443}] + ([{"name": "metrics", "containerPort": port}] if port else [])
    spec = {"nodeName": node, "containers": [{"ports": ports}]}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}


def test_a_component_of_a_cluster_is_asked_through_the_api_server():
    api = Api([pod("b"), pod("a", port=9999)], {"a": b'{"word": "one"}', "b": b'{"word": "two"}'})
    told = InCluster(api, "st").ask("scheduler", "/debug/x", Word, query={"uid": "u"})
    assert [one.value for one in told] == [Word("one"), Word("two")]
    assert api.asked[0] == ("st", "", "app.kubernetes.io/name=slacktide,app.kubernetes.io/component=scheduler")
    assert api.asked[1:] == [
        ("GET", "/api/v1/namespaces/st/pods/a:9999/proxy/debug/x", {"uid": "u"}),
        ("GET", "/api/v1/namespaces/st/pods/b:9464/proxy/debug/x", {"uid": "u"}),
    ]
    assert told[0].who == "the scheduler st/a"
    assert answered(told) is told[0]


def test_the_agent_of_one_node_is_asked_alone():
    api = Api([pod("a")], {"a": b'{"word": "one"}'})
    (told,) = InCluster(api, "st").ask("agent", "/x", Word, node="n1")
    assert api.asked[0][1] == "spec.nodeName=n1"
    assert told.node == "n1"


DENIED = (
    'pods "a:9464" is forbidden: User "jane" cannot get resource "pods/proxy" in API group "" in the namespace "st"'
)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Forbidden(403, "Forbidden", DENIED), "jane may not get pods/proxy in namespace st: a Role in namespace st "),
        (Forbidden(403, "Forbidden", DENIED), '{apiGroups: [""], resources: ["pods/proxy"], verbs: ["get"]}'),
        (NotFound(404, "", "nothing at this path; known: /metrics"), "has no /x: it is of another version"),
        (NotFound(404, "NotFound", 'pods "a" not found'), "was not heard (GET /api/v1/namespaces/st/pods/a:9464"),
        (ServerError(503, "", "error trying to reach service: connection refused"), "connection refused"),
        (BadRequest(400, "BadRequest", "address not allowed"), "address not allowed"),
        (Unreachable("timed out"), "timed out"),
    ],
)
def test_who_is_not_heard_is_said_and_why(error, words):
    (told,) = InCluster(Api([pod("a")], {"a": error}), "st").ask("agent", "/x", Word, node="n1")
    assert told.value is None
    assert words in told.problem


def test_pods_that_do_not_run_or_are_not_there_or_may_not_be_listed():
    (told,) = InCluster(Api([pod("a", phase="Pending")]), "st").ask("agent", "/x", Word)
    assert told.problem == "the agent st/a is Pending"
    (told,) = InCluster(Api(), "st").ask("agent", "/x", Word, node="n7")
    assert told.problem.startswith("no pod of the agent of node n7 is in namespace st")
    denied = 'pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "st"'
    (told,) = InCluster(Api(error=Forbidden(403, "Forbidden", denied)), "st").ask("agent", "/x", Word)
    assert "cannot be looked for in namespace st: jane may not list pods" in told.problem


def test_of_several_the_first_answer_counts_and_silence_is_told_whole():
    api = Api([pod("a"), pod("b")], {"a": Unreachable("timed out"), "b": b'{"word": "two"}'})
    assert answered(InCluster(api, "st").ask("scheduler", "/x", Word)).value == Word("two")
    api.answers["b"] = Unreachable("cut")
    silent = answered(InCluster(api, "st").ask("scheduler", "/x", Word))
    assert "timed out" in silent.problem
    assert "cut" in silent.problem


def test_the_command_decides_who_is_asked(app, twin):
    assert isinstance(components(app, twin), OnThisMachine)
    app.kubectl = True
    assert isinstance(components(app, twin), InCluster)
