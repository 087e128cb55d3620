"""A whole Slacktide of one's own for a demo, a benchmark or a test: started, used, and gone without a trace."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import NoReturn

from slacktide.cluster import Client, connect
from slacktide.errors import SlacktideError
from slacktide.settings import ClusterSettings
from standalone.state import StateDir, find

START_SECONDS = 60.0
STOP_SECONDS = 45.0


class StackError(SlacktideError):
    """Slacktide did not start or stop; the message carries what it said."""


@contextlib.contextmanager
def running(state: str | None = None, settings: Mapping[str, str] | None = None) -> Iterator[tuple[StateDir, Client]]:
    """Start Slacktide in a state directory of its own and give it and a client; stop it at the end.

    A state directory that was given is kept, one that was made here is removed. `settings` are environment variables
    of its daemons (SLACKTIDE_AGENT_...). SIGTERM ends it in order, too, unless somebody handles it. Raises StackError.
    """
    with _terminable():
        yield from _running(state, settings)


def _running(state: str | None, settings: Mapping[str, str] | None) -> Iterator[tuple[StateDir, Client]]:
    directory = state or tempfile.mkdtemp(prefix="slacktide-")
    try:
        try:
            _command(["up", "--detach"], directory, START_SECONDS, settings)
            found = find(directory)
            if found is None:
                raise StackError(f"slacktide up made no state directory at {directory}")
            client = connect(ClusterSettings(server=f"unix:{found.api_socket}"), user_agent="slacktide-load")
            try:
                yield found, client
            finally:
                client.close()
        finally:
            # Also after a start that failed or was interrupted half way: some of it may run.
            _command(["down"], directory, STOP_SECONDS)
    finally:
        if state is None:
            shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM unwinds the stack as Ctrl-C does: what runs detached would stay for ever."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a handler
    raise SystemExit(128 + number)


def _command(arguments: list[str], state: str, seconds: float, settings: Mapping[str, str] | None = None) -> None:
    said = " ".join(arguments)
    # In a session of its own: Ctrl-C in a terminal is for us, and we end what runs in order.
    process = subprocess.Popen(
        [sys.executable, "-m", "cli", "--state", state, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, **(settings or {})},
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise StackError(f"slacktide {said} took over {seconds:.0f} s") from None
    except BaseException:
        # A start that is cut in the middle leaves a supervisor that nobody can find yet: let it come to its end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=seconds)
        process.kill()
        raise
    if process.returncode != 0:
        raise StackError(f"slacktide {said} failed with exit code {process.returncode}: {output.strip()}")
