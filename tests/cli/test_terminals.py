"""The command as a process: on a real terminal, narrow or without colours, and where nobody reads to the end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

CODE = "import sys; from cli.main import main; sys.exit(main(sys.argv[1:]))"
QUIET = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm-256color"}
DOCTOR = ("--state", "/nonexistent/state", "doctor")


def command(*words):
    return [sys.executable, "-c", CODE, *words]


def on_a_terminal(columns, *words, **environ):
    """What a terminal of so many columns shows, and the exit code."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        process = subprocess.Popen(
            command(*words), stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env={**QUIET, **environ}
        )
        os.close(theirs)
        shown = b""
        # The kernel says EIO when the last of those who have the other end open has gone.
        with contextlib.suppress(OSError):
            while more := os.read(ours, 65536):
                shown += more
        process.communicate(timeout=60)
        return shown.decode().replace("\r\n", "\n"), process.returncode
    finally:
        os.close(ours)


@pytest.mark.parametrize("columns", [40, 100])
def test_no_line_is_wider_than_the_terminal(columns):
    shown, _ = on_a_terminal(columns, *DOCTOR, NO_COLOR="1")
    lines = shown.splitlines()
    assert len(lines) > 20
    assert max(map(len, lines)) <= columns
    assert "\x1b" not in shown


def test_a_terminal_has_colours():
    shown, _ = on_a_terminal(200, *DOCTOR)
    assert "\x1b[32mok\x1b[0m" in shown


@pytest.mark.parametrize("words", [("--help",), ("version",), ("completion", "bash"), (*DOCTOR, "-o", "json"), DOCTOR])
def test_a_reader_that_has_gone_is_141_without_a_trace(words):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command(*words), stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=QUIET
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_locale_without_utf8(encoding):
    environ = {**QUIET, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        command("--state", "/tmp/Zürich", "doctor", "-o", "json"),
        capture_output=True,
        timeout=60,
        check=False,
        env=environ,
    )
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["checks"]
    assert b"Traceback" not in done.stderr
    table = subprocess.run(
        command("--state", "/tmp/Zürich", "doctor"), capture_output=True, timeout=60, check=False, env=environ
    )
    assert table.stdout.decode(encoding).startswith("CHECK")
    assert b"Traceback" not in table.stderr
