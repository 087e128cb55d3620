"""`slacktide logs`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Literal

import click

from cli.app import App, common_options, examples
from cli.completing import pod_names
from cli.exits import FAILED, CommandError
from cli.streams import JsonLines, RawBytes

if TYPE_CHECKING:
    from slacktide.cluster import Client
    from slacktide.objects import Pod

POLL_SECONDS = 0.3
STREAMS: Final[dict[str, Literal["All", "Stdout", "Stderr"]]] = {"all": "All", "stdout": "Stdout", "stderr": "Stderr"}


@click.command(
    "logs",
    epilog=examples(
        "slacktide logs make-x7k2p", "slacktide logs -f --tail 20 web", "slacktide logs --stream stderr web"
    ),
)
@click.argument("name", shell_complete=pod_names)
@click.option("-f", "--follow", is_flag=True, help="Go on until the pod ends.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of what is there.")
@click.option("--stream", type=click.Choice(list(STREAMS)), default="all", show_default=True, help="Which output.")
@click.option("-c", "--container", help="Container of a pod that has several.")
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of a plain name.")
@common_options
@click.pass_obj
def command(
    app: App, name: str, follow: bool, tail: int | None, stream: str, container: str | None, namespace: str
) -> None:
    """Print what a pod printed."""
    from cli import pods
    from cli.follow import Follower

    client = app.local_client()
    pod = pods.find(client, name, namespace)
    pod = _with_output(client, pod, follow)
    space, plain = pod.metadata.namespace, pod.metadata.name
    sink = JsonLines(app.out.line) if app.out.json else RawBytes(sys.stdout.buffer)
    if follow:
        Follower(client, space, plain, sink.write, stream=STREAMS[stream], container=container, tail_lines=tail).run()
    else:
        for chunk in client.logs(space, plain, container=container, stream=STREAMS[stream], tail_lines=tail):
            sink.write(chunk)
    sink.close()


def _with_output(client: Client, pod: Pod, follow: bool) -> Pod:
    """The pod, once it has something to read. Raises CommandError where nothing ever came, or does not yet."""
    from cli import podview
    from slacktide.cluster import PODS
    from slacktide.objects import is_terminal

    while not podview.has_output(pod):
        why = podview.reason(pod)
        if is_terminal(pod) or not follow:
            state = f"{podview.status(pod)}{f' ({why})' if why else ''}"
            advice = "" if is_terminal(pod) else "; -f waits for it"
            raise CommandError(f"pod {pod.metadata.name} printed nothing, it is {state}{advice}", FAILED)
        time.sleep(POLL_SECONDS)
        pod = client.get(PODS, pod.metadata.name, pod.metadata.namespace)
    return pod
