"""What commands share: who is asked (this machine or a cluster), and in which format the answer goes out.

Everything outside the process is reached through fields of `App`, so a test hands in twins.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from cli.exits import USAGE, CommandError, not_running
from cli.output import FORMATS, Format, Output

if TYPE_CHECKING:
    from cli.asking import Components
    from cli.session import StopSignals
    from slacktide.cluster import Client
    from slacktide.settings import ClusterSettings
    from slacktide.status import AgentStatus
    from standalone.state import StateDir

_F = TypeVar("_F", bound=Callable[..., Any])

_SKEW_SECONDS: Final = 5.0
"""Clocks that differ by less are taken for the same: the server's is known to a second or two."""


def connect(state: StateDir) -> Client:
    """Client of the API server of this state directory."""
    from slacktide.cluster import connect_unix

    return connect_unix(state.api_socket, user_agent="slacktide")


def reach(settings: ClusterSettings) -> Client:
    """Client of a cluster."""
    from slacktide.cluster import connect as to

    return to(settings, user_agent="slacktide")


def agent_status(state: StateDir) -> AgentStatus | None:
    """What the agent says about its last turn; None when it does not answer."""
    import msgspec

    from slacktide.status import AgentStatus
    from standalone.probe import get

    try:
        code, body = get(state.observe_socket("agent"), "/status")
        return msgspec.json.decode(body, type=AgentStatus) if code == 200 else None
    except (OSError, msgspec.MsgspecError):
        return None


def components(app: App, client: Client, namespace: str) -> Components:
    """Who can be asked: daemons of this machine, or pods in `namespace` of a cluster. Raises CommandError."""
    from cli.asking import components as of

    return of(app, client, namespace)


def is_up(root: str) -> bool:
    """Whether a supervisor holds this state directory."""
    from standalone.state import holder

    return holder(root) is not None


def caught_signals() -> StopSignals:
    """Signals that ask for an end, caught from now on."""
    from cli.session import StopSignals

    stop = StopSignals()
    stop.install()
    return stop


@dataclass
class App:
    """State of one invocation. With `kubectl` the command was called as its plugin: a cluster is meant."""

    state_option: str | None = None
    kubeconfig: str = ""
    context: str = ""
    kubectl: bool = False
    out: Output = field(default_factory=Output)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    connect: Callable[[StateDir], Client] = connect
    reach: Callable[[ClusterSettings], Client] = reach
    agent_status: Callable[[StateDir], AgentStatus | None] = agent_status
    components: Callable[[App, Client, str], Components] = components
    is_up: Callable[[str], bool] = is_up
    stop_signals: Callable[[], StopSignals] = caught_signals
    wall: Callable[[], float] = time.time
    """Seconds since the epoch by the clock of this machine."""
    _cluster: Client | None = field(default=None, init=False, repr=False)
    _skew_said: bool = field(default=False, init=False, repr=False)

    @property
    def root(self) -> str:
        """Path of the state directory, whether it exists or not."""
        from standalone.state import resolve

        return resolve(self.state_option, self.environ, os.geteuid())

    def state(self) -> StateDir:
        """The state directory of a running Slacktide. Raises CommandError: 3 nothing is up, 2 a cluster is meant."""
        if self.in_cluster:
            raise CommandError("this is about one machine, not about a cluster: call it as `slacktide` there", USAGE)
        from standalone.state import find

        found = find(self.root)
        if found is None or not self.is_up(self.root):
            raise not_running(self.root)
        return found

    def now(self) -> float:
        """Seconds since the epoch, for ages of what a server said; ask it first.

        By the clock of the cluster's API server where this machine's is far off, which is said once.
        """
        here = self.wall()
        there = None if self._cluster is None else self._cluster.server_seconds()
        if there is None or abs(there - here) <= _SKEW_SECONDS:
            return here
        if not self._skew_said:
            self._skew_said = True
            off = f"{abs(there - here):.0f} s {'behind' if there > here else 'ahead of'}"
            self.out.say(f"this machine's clock is {off} the API server's; ages are by the server's")
        return there

    @property
    def in_cluster(self) -> bool:
        """Whether a cluster is asked instead of the Slacktide of this machine."""
        return self.kubectl or bool(self.kubeconfig or self.context)

    def client(self) -> Client:
        """Client of the API server. Raises CommandError (3) when nothing is up."""
        return self.cluster_client() if self.in_cluster else self.local_client()

    def cluster_client(self) -> Client:
        """Client of a cluster, for what is never about this machine: --kubeconfig and --context, or the current one."""
        from slacktide.settings import ClusterSettings

        quiet_logs()
        self._cluster = self.reach(ClusterSettings(kubeconfig=self.kubeconfig, context=self.context))
        return self._cluster

    def close(self) -> None:
        """End the connections to a cluster; once the command is over."""
        if self._cluster is not None:
            self._cluster.close()

    def local_client(self) -> Client:
        """Client of this machine's API server, for what is about pods that are processes here. Raises CommandError."""
        quiet_logs()
        return self.connect(self.state())


def quiet_logs() -> None:
    """Keep log lines of libraries out of the result: a command says itself what a person must know."""
    import logging

    logging.basicConfig(stream=sys.stderr, level=logging.CRITICAL)


def _remember_state(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(App).state_option = value


def _remember_output(context: click.Context, _: click.Parameter, value: Format | None) -> None:
    if value is not None:
        context.ensure_object(App).out.format = value


def _remember_kubeconfig(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(App).kubeconfig = value


def _remember_context(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(App).context = value


def common_options(command: _F) -> _F:
    """--state and --output, accepted before and after the command's name."""
    state = click.option(
        "--state",
        metavar="DIR",
        expose_value=False,
        callback=_remember_state,
        is_eager=True,
        help="State directory. [env: SLACKTIDE_STATE; default: /var/lib/slacktide, or ~/.local/state/slacktide]",
    )
    output = click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        expose_value=False,
        callback=_remember_output,
        is_eager=True,
        help="Tables for people, json or yaml for programs; of lists also wide tables and names alone.",
    )
    return state(output(command))


def cluster_options(command: _F) -> _F:
    """`common_options`, and --kubeconfig and --context for commands that answer for a cluster as well."""
    kubeconfig = click.option(
        "--kubeconfig",
        metavar="FILE",
        expose_value=False,
        callback=_remember_kubeconfig,
        is_eager=True,
        help="Ask that cluster instead of the Slacktide of this machine.",
    )
    context = click.option(
        "--context",
        metavar="NAME",
        expose_value=False,
        callback=_remember_context,
        is_eager=True,
        help="Ask the cluster of that context of the kubeconfig.",
    )
    return kubeconfig(context(common_options(command)))


def examples(*lines: str) -> str:
    r"""Text for `epilog`: click keeps the lines of a paragraph that starts with \b."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
