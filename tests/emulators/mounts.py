"""Shorthands of tests that use a mounted emulator."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time

import psutil
import pytest

from tests.emulators.resctrl.fixture import resctrl  # noqa: F401  # pytest finds a fixture by its name in the module
from tests.patience import PATIENCE


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.01)


def read(handle, path):
    with open(f"{handle.path}/{path}", encoding="utf-8") as file:
        return file.read()


def write(handle, path, text):
    descriptor = os.open(f"{handle.path}/{path}", os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def fails(call, *arguments, **named):
    with pytest.raises(OSError, match=r"\[Errno") as caught:
        call(*arguments, **named)
    return errno.errorcode[caught.value.errno]


def ended(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def child(code, *arguments):
    """A Python process that has said that it is up."""
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
