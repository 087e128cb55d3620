"""`slacktide run`."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from cli.app import App, common_options, examples
from cli.exits import RUN_FAILED, USAGE, CommandError, code_of
from cli.streams import JsonLines, RawBytes, serialised

if TYPE_CHECKING:
    from cli.podspec import Wish
    from cli.session import Outcome, StopSignals
    from slacktide.cluster import Client
    from slacktide.objects import Pod

CREATE_SECONDS: Final = 10.0
"""How long a new pod is offered to an API server that does not answer, for example because it restarts."""
RETRY_SECONDS: Final = 0.3


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "slacktide run --tier be -- make -j8",
        "slacktide run --tier be --cpu 4 --memory 2Gi --name nightly --detach -- ./nightly.sh",
        "slacktide run --tier ls --cpu 500m --memory 512Mi -- ./server --port 8080",
        "slacktide run --env TOKEN --env MODE=fast -- sh -c 'echo $MODE'",
    ),
)
@click.argument("words", metavar="CMD [ARG]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--tier",
    type=click.Choice(["be", "ls"]),
    default="be",
    show_default=True,
    help="be: best-effort, uses what is idle and gives way. ls: latency-sensitive, protected.",
)
@click.option("--cpu", default="1", show_default=True, metavar="CPUS", help="CPUs to ask for: 2, 1.5 or 500m.")
@click.option("--memory", default="256Mi", show_default=True, metavar="BYTES", help="Memory to ask for: 512Mi, 2Gi.")
@click.option("--limit-cpu", default="", metavar="CPUS", help="Never more CPUs than this.")
@click.option("--limit-memory", default="", metavar="BYTES", help="Killed above this much memory.")
@click.option("--name", default="", help="Name of the pod; without it, one is made from CMD.")
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the pod.")
@click.option("-e", "--env", "env", multiple=True, metavar="NAME[=VALUE]", help="Set, or pass on, a variable.")
@click.option("-w", "--workdir", default="", metavar="DIR", help="Directory to run in.  [default: this one]")
@click.option(
    "--grace",
    type=click.IntRange(0, 86400),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Time between SIGTERM and SIGKILL when the pod is stopped.",
)
@click.option(
    "--start-timeout", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Give up (4) if not started by then."
)
@click.option("-d", "--detach", is_flag=True, help="Print the pod's name and return; it stays until `slacktide rm`.")
@click.option(
    "--keep/--rm", "keep", default=False, help="Keep the pod for `ps` and `logs` when it has ended.  [default: --rm]"
)
@common_options
@click.pass_obj
def command(app: App, /, words: tuple[str, ...], **options: Any) -> int:
    """Run CMD as a pod on this machine.

    Streams its output and exits with its code. Ctrl-C stops it, a second one kills it. It has no standard input.
    Of the variables here, it gets those that tools need to be found (PATH, HOME, LANG, ...); pass on others with --env.

    \b
    Exit codes: those of CMD; 125 the pod was refused, evicted or deleted; 126 CMD cannot be executed;
    127 CMD not found; 128+n ended by signal n (130 after Ctrl-C). All: docs/cli.md
    """
    from cli.podspec import manifest
    from cli.session import StopSignals
    from slacktide.errors import SlacktideError

    detach, keep, start_timeout = options.pop("detach"), options.pop("keep"), options.pop("start_timeout")
    body = manifest(_wish(app, words, options), secrets.token_hex(8))
    client = app.local_client()
    stop = StopSignals() if detach else app.stop_signals()
    try:
        pod = _create(client, body, lambda: stop.count > 0)
        if detach:
            return _detached(app, pod)
        outcome = _attached(app, client, pod, stop, start_timeout)
    except SlacktideError as error:
        code = code_of(error)
        raise CommandError(str(error), code if code == USAGE else RUN_FAILED) from error
    if not keep:
        _remove(client, outcome.pod)
    if outcome.text:
        app.out.say(outcome.text)
    return outcome.code


def _wish(app: App, words: tuple[str, ...], options: dict[str, Any]) -> Wish:
    from cli.podspec import Wish, environment

    directory = os.path.abspath(options.pop("workdir") or os.getcwd())
    if not os.path.isdir(directory):
        raise click.UsageError(f"--workdir {directory} is no directory")
    return Wish(
        command=words,
        directory=directory,
        env=environment(app.environ, options.pop("env")),
        grace_seconds=options.pop("grace"),
        **options,
    )


def _create(client: Client, body: dict[str, Any], stopped: Callable[[], bool]) -> Pod:
    """Create the pod. A server that is away may be restarting: it is asked again, and never makes a second pod."""
    from slacktide.cluster import PODS
    from slacktide.cluster.errors import AlreadyExists, ServerError, TooManyRequests, Unreachable

    deadline = time.monotonic() + CREATE_SECONDS
    while True:
        try:
            return client.create(PODS, body, body["metadata"]["namespace"])
        except AlreadyExists:
            return _own(client, body)
        except (Unreachable, ServerError, TooManyRequests) as error:
            if stopped() or time.monotonic() > deadline:
                raise CommandError(f"the API server cannot take the pod: {error}", RUN_FAILED) from None
        time.sleep(RETRY_SECONDS)


def _own(client: Client, body: dict[str, Any]) -> Pod:
    """The pod of that name if it is the one we asked for, when only the answer was lost."""
    from cli.podspec import REQUEST_ANNOTATION
    from slacktide.cluster import PODS

    meta = body["metadata"]
    pod = client.get(PODS, meta["name"], meta["namespace"])
    if pod.metadata.annotations.get(REQUEST_ANNOTATION) == meta["annotations"][REQUEST_ANNOTATION]:
        return pod
    name = meta["name"]
    raise CommandError(f"there is a pod {name} already: choose another --name, or `slacktide rm {name}`", USAGE)


def _detached(app: App, pod: Pod) -> int:
    meta = pod.metadata
    if app.out.json:
        app.out.document({"namespace": meta.namespace, "name": meta.name, "uid": meta.uid})
    else:
        app.out.text(meta.name)
    return 0


def _attached(app: App, client: Client, pod: Pod, stop: StopSignals, start_timeout: float | None) -> Outcome:
    from cli.session import Session

    emit = serialised(app.out.line)
    sinks: dict[str, RawBytes | JsonLines]
    if app.out.json:
        sinks = {name: JsonLines(emit, stream=name) for name in ("stdout", "stderr")}
    else:
        sinks = {"stdout": RawBytes(sys.stdout.buffer), "stderr": RawBytes(sys.stderr.buffer)}
    outcome = Session(client, pod, sinks, stop, app.out.say, start_timeout=start_timeout).run()
    if app.out.json:
        meta = outcome.pod.metadata
        app.out.line({"pod": meta.name, "namespace": meta.namespace, "exit_code": outcome.code, "detail": outcome.text})
    return outcome


def _remove(client: Client, pod: Pod) -> None:
    """Take the ended pod away. Where that fails it stays visible in `ps`, which is no reason to hide its exit code."""
    from cli import pods
    from slacktide.cluster.errors import ClusterError

    with contextlib.suppress(ClusterError):
        pods.delete(client, pod, 0)
