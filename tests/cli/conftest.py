import io
import os
import sys
import tempfile
import threading

import pytest

from cli.app import App
from cli.main import main
from standalone.state import Lock, create, prepare
from tests.cli.twin import Twin


@pytest.fixture
def root():
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        create(folder)
        with Lock(folder):
            prepare(folder)
        yield folder


@pytest.fixture
def twin():
    twin = Twin()
    yield twin
    twin.go_away()


class Ran:
    """A command that runs in a thread: main() itself, with its two streams captured."""

    def __init__(self, argv, app):
        self.code = None
        self._argv, self._app = argv, app
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        self.code = main(self._argv, self._app)

    def start(self):
        self._thread.start()
        return self

    def wait(self):
        self._thread.join(20)
        assert not self._thread.is_alive(), "the command did not end"
        return self.code


class Captured:
    """A standard stream as the command sees it: text over bytes, not a terminal."""

    def __init__(self):
        self.raw = io.BytesIO()
        self.stream = io.TextIOWrapper(self.raw, write_through=True)

    @property
    def text(self):
        return self.raw.getvalue().decode()


@pytest.fixture
def out():
    return Captured()


@pytest.fixture
def err():
    return Captured()


@pytest.fixture
def redirect(out, err, monkeypatch):
    """Called inside the test: pytest puts its own streams in place after the fixtures have run."""

    def now():
        monkeypatch.setattr(sys, "stdout", out.stream)
        monkeypatch.setattr(sys, "stderr", err.stream)

    return now


@pytest.fixture
def app(twin, root):
    environ = {"PATH": os.environ["PATH"], "SECRET": "hush", "LC_ALL": "C"}
    return App(
        state_option=root,
        environ=environ,
        connect=lambda _: twin,
        agent_status=lambda _: None,
        is_up=lambda _: True,
    )


@pytest.fixture
def start(app, redirect):
    def begin(*argv):
        redirect()
        return Ran(list(argv), app).start()

    return begin


@pytest.fixture
def command(app, redirect):
    def run(*argv):
        redirect()
        return main(list(argv), app)

    return run
