"""The two places where nodes are drilled: this machine over the agent's socket, a cluster over TLS.

A site knows its nodes and the agent of each, what the API says of them, who else drills, and where drills are kept.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from cli.drillbudget import Budget, at_once
from cli.drillfacts import Facts, NodeFacts, budgets_of, find, node_facts, nodes_of
from cli.drillorder import Order
from cli.drillrecords import ClusterRecords, FileRecords, Records
from cli.drills import OPTIONS
from cli.exits import USAGE, CommandError
from slacktide.transport import Connection

if TYPE_CHECKING:
    from cli.app import App
    from cli.drillplan import Told
    from cli.drillreach import Reach
    from slacktide.cluster import Client
    from slacktide.objects import Node
    from standalone.state import StateDir

RECORDS_FOLDER: Final = "drills"


class Site(Protocol):
    """Where drills happen."""

    in_cluster: bool

    @property
    def records(self) -> Records:
        """Where drills are remembered."""
        ...  # a protocol member has no body

    def nodes(self, name: str | None, selector: str) -> list[str]:
        """The node of that name, or those of a label selector. Raises CommandError."""
        ...  # a protocol member has no body

    def connect(self, node: str, seconds: float) -> Connection:
        """A connection to the agent of a node, good for so long. Raises CommandError."""
        ...  # a protocol member has no body

    def facts(self, order: Order, told: Told) -> Facts:
        """What the API says of the node and of the pods that the agent would evict. Raises CommandError."""
        ...  # a protocol member has no body

    def place(self, order: Order, say: Callable[[str], None]) -> contextlib.AbstractContextManager[Callable[[], str]]:
        """A place among the drills that may run at once; gives a function that says when it was lost."""
        ...  # a protocol member has no body


def site_of(app: App, reach: Reach) -> contextlib.AbstractContextManager[Site]:
    """The site that the command is about. Raises CommandError when nothing is up."""
    return _cluster(app, reach) if app.in_cluster else _machine(app)


@contextlib.contextmanager
def _cluster(app: App, reach: Reach) -> Iterator[Site]:
    with contextlib.closing(app.client()) as client:
        yield InCluster(client, reach, app.wall)


@contextlib.contextmanager
def _machine(app: App) -> Iterator[Site]:
    state = app.state()
    with contextlib.closing(app.local_client()) as client:
        status = app.agent_status(state)
        yield OnThisMachine(state, client, status.node if status is not None else "", app.wall)


class InCluster:
    """Nodes of a cluster."""

    in_cluster = True

    def __init__(self, client: Client, reach: Reach, wall: Callable[[], float]) -> None:
        self._client = client
        self._wall = wall
        self._reach = reach
        self._known: Sequence[Node] | None = None

    @property
    def records(self) -> Records:
        """See `Site`."""
        return ClusterRecords(self._client, self._reach.namespace)

    def nodes(self, name: str | None, selector: str) -> list[str]:
        """See `Site`."""
        if name is not None:
            return [find(self._all(), name).metadata.name]
        found = [node.metadata.name for node in nodes_of(self._client, selector)]
        if not found:
            raise CommandError(f"no node has the labels {selector!r}", USAGE)
        return found

    def connect(self, node: str, seconds: float) -> Connection:
        """See `Site`."""
        from cli.drillreach import connect

        return connect(self._client, node, self._reach, seconds)

    def facts(self, order: Order, told: Told) -> Facts:
        """See `Site`."""
        # Asked anew for each plan: a drill before this one may have closed a node.
        self._known = None
        # How old its forecast is, is not for a caller's clock that may be wrong.
        now = told.now(self._wall())
        nodes = [node_facts(node, now) for node in self._all()]
        (mine,) = (node for node in nodes if node.name == order.node)
        others = sum(node.open_for_be for node in nodes if node is not mine)
        return Facts(node=mine, others_open=others, budgets=budgets_of(self._client, told.victims))

    @contextlib.contextmanager
    def place(self, order: Order, say: Callable[[str], None]) -> Iterator[Callable[[], str]]:
        """See `Site`."""
        namespace = self._reach.namespace
        holder = f"{caller()}/{order.node}/{secrets.token_hex(4)}"
        budget = Budget(self._client, namespace, at_once(self._client, namespace), holder)
        with budget.take(say) as held:
            yield held.broken

    def _all(self) -> Sequence[Node]:
        if self._known is None:
            self._known = nodes_of(self._client)
        return self._known


class OnThisMachine:
    """The one node of a state directory. `name` is empty where the agent did not say it."""

    in_cluster = False

    def __init__(self, state: StateDir, client: Client, name: str, wall: Callable[[], float]) -> None:
        self._state = state
        self._wall = wall
        self._client = client
        self._name = name

    @property
    def records(self) -> Records:
        """See `Site`."""
        return FileRecords(self._state.folder(RECORDS_FOLDER))

    def nodes(self, name: str | None, selector: str) -> list[str]:
        """See `Site`."""
        if selector:
            raise CommandError("--selector is for the nodes of a cluster: this machine is one node", USAGE)
        return [self._name if name is None else name]

    def connect(self, node: str, seconds: float) -> Connection:  # noqa: ARG002 - a socket asks for no token
        """See `Site`."""
        import grpc

        return Connection(grpc.insecure_channel(f"unix:{self._state.drill_socket}", options=list(OPTIONS)))

    def facts(self, order: Order, told: Told) -> Facts:
        """See `Site`. What the API server of this machine does not tell keeps nobody from a drill."""
        try:
            nodes = [one for one in nodes_of(self._client) if one.metadata.name == order.node]
            mine = node_facts(nodes[0], told.now(self._wall())) if nodes else NodeFacts(name=order.node)
            return Facts(node=mine, budgets=budgets_of(self._client, told.victims))
        except CommandError as error:
            return Facts(node=NodeFacts(name=order.node), unknown=(str(error),))

    @contextlib.contextmanager
    def place(
        self,
        order: Order,  # noqa: ARG002 - one node, and its agent runs one drill at a time
        say: Callable[[str], None],  # noqa: ARG002 - same
    ) -> Iterator[Callable[[], str]]:
        """See `Site`."""
        yield lambda: ""


def caller() -> str:
    """Who asks: user and machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user has no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
