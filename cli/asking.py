"""The one way to a component's JSON route: its socket on this machine, the API server's proxy to its pod in a cluster.

Whoever is asked may be away: an answer is a `Told`, which says in words what was tried where nothing came. In a cluster
the rights are those of the person who asks: `list pods` and `get pods/proxy` in Slacktide's namespace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from slacktide.objects import ObjectMeta, View

if TYPE_CHECKING:
    from cli.app import App
    from slacktide.cluster import Client
    from slacktide.cluster.errors import ClusterError
    from standalone.state import StateDir

T = TypeVar("T")

NAMESPACE: Final = "slacktide-system"
"""Where Slacktide runs in a cluster, unless it is said otherwise."""

PORT: Final = 9464
"""Observe port of a component whose pod names none."""

PORT_NAME: Final = "metrics"
_LOCAL_SECONDS: Final = 3.0
_NO_QUERY: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Generic[T]):
    """What one place answered. Where `value` is None, `problem` says what was tried and why nothing came.

    `who` is the component and where it runs, in words; `node` the node that it runs on, empty where that is not known.
    """

    who: str
    value: T | None
    problem: str = ""
    node: str = ""


class Components(Protocol):
    """Who can be asked."""

    def ask(
        self, component: str, route: str, answer: type[T], *, node: str = "", query: Mapping[str, str] = _NO_QUERY
    ) -> Sequence[Told[T]]:
        """GET `route` of each instance of `component` (`agent`, `predictor`, `scheduler`), on `node` alone if given.

        At least one Told; raises nothing for one who is away, refuses, or answers something else.
        """
        ...  # a protocol member has no body


def components(app: App, client: Client, namespace: str = NAMESPACE) -> Components:
    """Those of the cluster that `client` is of, or of this machine. Raises CommandError when nothing is up."""
    return InCluster(client, namespace) if app.in_cluster else OnThisMachine(app.state())


def answered(told: Sequence[Told[T]]) -> Told[T]:
    """The first that answered; else the first, with the problems of all."""
    for one in told:
        if one.value is not None:
            return one
    problems = "; ".join(dict.fromkeys(one.problem for one in told))
    return Told(who=told[0].who, value=None, problem=problems, node=told[0].node)


class OnThisMachine:
    """Daemons of a state directory, over their observe sockets."""

    def __init__(self, state: StateDir) -> None:
        self._state = state

    def ask(
        self,
        component: str,
        route: str,
        answer: type[T],
        *,
        node: str = "",  # noqa: ARG002 - this machine is the only one
        query: Mapping[str, str] = _NO_QUERY,
    ) -> Sequence[Told[T]]:
        """See `Components`."""
        from standalone.probe import get

        path, who = self._state.observe_socket(component), f"the {component}"
        try:
            code, body = get(path, _target(route, query), timeout=_LOCAL_SECONDS)
        except OSError as error:
            log = self._state.log_file(component)
            return [Told(who=who, value=None, problem=f"{who} does not answer on {path} ({error}); its log: {log}")]
        if code == 404:
            return [Told(who=who, value=None, problem=_older(who, route))]
        if code != 200:
            return [Told(who=who, value=None, problem=f"{who} answers {code}: {_words(body)}")]
        return [_decoded(who, body, answer, "")]


class _Port(View, frozen=True):
    name: str = ""
    container_port: int = 0


class _Container(View, frozen=True):
    ports: tuple[_Port, ...] = ()


class _Spec(View, frozen=True):
    node_name: str = ""
    containers: tuple[_Container, ...] = ()


class _Status(View, frozen=True):
    phase: str = ""


class _ComponentPod(View, frozen=True):
    """As much of one of Slacktide's own pods as is needed to ask it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def port(self) -> int:
        ports = (port for container in self.spec.containers for port in container.ports)
        return next((port.container_port for port in ports if port.name == PORT_NAME), PORT)


class InCluster:
    """Pods of a cluster in `namespace`, through the API server: `GET .../pods/NAME:PORT/proxy/ROUTE`."""

    def __init__(self, client: Client, namespace: str = NAMESPACE) -> None:
        self._client = client
        self._namespace = namespace

    def ask(
        self, component: str, route: str, answer: type[T], *, node: str = "", query: Mapping[str, str] = _NO_QUERY
    ) -> Sequence[Told[T]]:
        """See `Components`. Pods that do not run are said, and not asked."""
        from slacktide.cluster.errors import ClusterError

        whose = f"the {component}{f' of node {node}' if node else ''}"
        try:
            pods = self._pods(component, node)
        except ClusterError as error:
            problem = f"{whose} cannot be looked for in namespace {self._namespace}: {said(error)}"
            return [Told(who=whose, value=None, problem=problem, node=node)]
        if not pods:
            problem = (
                f"no pod of {whose} is in namespace {self._namespace}: "
                f"see `kubectl -n {self._namespace} get pods -o wide`"
            )
            return [Told(who=whose, value=None, problem=problem, node=node)]
        return [self._one(pod, component, route, answer, query) for pod in pods]

    def _pods(self, component: str, node: str) -> list[_ComponentPod]:
        from slacktide.cluster import PODS
        from slacktide.cluster.kinds import Kind

        kind = Kind(PODS.api_version, PODS.kind, PODS.plural, PODS.namespaced, _ComponentPod)
        labels = f"app.kubernetes.io/name=slacktide,app.kubernetes.io/component={component}"
        where = f"spec.nodeName={node}" if node else ""
        found = self._client.list(kind, self._namespace, field_selector=where, label_selector=labels).items
        return sorted(found, key=lambda pod: pod.metadata.name)

    def _one(
        self, pod: _ComponentPod, component: str, route: str, answer: type[T], query: Mapping[str, str]
    ) -> Told[T]:
        from slacktide.cluster.errors import ClusterError

        name, node = pod.metadata.name, pod.spec.node_name
        who = f"the {component} {self._namespace}/{name}"
        if pod.status.phase != "Running":
            return Told(who=who, value=None, problem=f"{who} is {pod.status.phase or 'not started'}", node=node)
        space, target = quote(self._namespace, safe=""), f"{quote(name, safe='')}:{pod.port}"
        path = f"/api/v1/namespaces/{space}/pods/{target}/proxy{route}"
        try:
            body = self._client.request("GET", path, query=query)
        except ClusterError as error:
            return Told(who=who, value=None, problem=_unheard(who, route, path, error), node=node)
        return _decoded(who, body, answer, node)


def said(error: ClusterError) -> str:
    """An error of the API in words; of a missing right, which rule would give it."""
    from slacktide.cluster.errors import Forbidden
    from slacktide.cluster.permissions import denial_of

    denial = denial_of(error) if isinstance(error, Forbidden) else None
    if denial is None:
        return str(error)
    user, lacks = denial
    what = f"{lacks.resource}/{lacks.subresource}" if lacks.subresource else lacks.resource
    rule = f'{{apiGroups: ["{lacks.group}"], resources: ["{what}"], verbs: ["{lacks.verb}"]}}'
    kind = f"Role in namespace {lacks.namespace}" if lacks.namespace else "ClusterRole"
    return f"{user or 'you'} may not {lacks}: a {kind} needs the rule {rule}"


def _unheard(who: str, route: str, path: str, error: ClusterError) -> str:
    """Why the API server brought no answer of a component."""
    from slacktide.cluster.errors import NotFound

    if isinstance(error, NotFound) and "nothing at this path" in error.message:
        return _older(who, route)
    return f"{who} was not heard (GET {path}): {said(error)}"


def _older(who: str, route: str) -> str:
    return f"{who} has no {route}: it is of another version than this command"


def _decoded(who: str, body: bytes, answer: type[T], node: str) -> Told[T]:
    try:
        return Told(who=who, value=msgspec.json.decode(body, type=answer), node=node)
    except msgspec.MsgspecError as error:
        problem = f"{who} answers what this command cannot read: {error}"
        return Told(who=who, value=None, problem=problem, node=node)


def _target(route: str, query: Mapping[str, str]) -> str:
    return f"{route}?{urlencode(query)}" if query else route


def _words(body: bytes) -> str:
    return body.decode("utf-8", "replace").strip()[:500]
