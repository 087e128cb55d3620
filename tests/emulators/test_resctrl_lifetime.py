"""Mounting, and that nothing stays behind: by hand, when tests fail, when they or the emulator are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from tests.emulators.mounts import ended, fails, wait_for
from tests.emulators.resctrl import PROFILES, mounted, mounting
from tests.emulators.resctrl.fixture import resctrl  # noqa: F401  # pytest finds a fixture by its name in the module
from tests.emulators.resctrl.mounting import REPOSITORY, is_mounted, missing, unmount
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
MODULE = [sys.executable, "-m", "tests.emulators.resctrl"]

DIES = """
import os, sys, time
from pathlib import Path
from tests.emulators.resctrl import mounted
with mounted("intel-2s", Path(sys.argv[1])) as handle:
    print(handle.pid, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("held", [False, True])
def test_it_unmounts_itself_when_the_test_is_killed(tmp_path, held):
    process = subprocess.Popen(
        [sys.executable, "-c", DIES, str(tmp_path)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    path = str(tmp_path / "resctrl")
    emulator = psutil.Process(int(process.stdout.readline()))
    assert is_mounted(path)
    descriptor = os.open(f"{path}/tasks", os.O_RDONLY) if held else None
    process.kill()
    process.communicate()
    try:
        wait_for(lambda: not is_mounted(path))
        wait_for(lambda: ended(emulator))
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            emulator.kill()
        unmount(path)
        if descriptor is not None:
            # What was open on a file system that is gone is closed all the same, and says so.
            with contextlib.suppress(OSError):
                os.close(descriptor)


def test_a_killed_emulator_leaves_nothing(tmp_path):
    with mounted("intel-2s", tmp_path) as handle:
        os.kill(handle.pid, signal.SIGKILL)
        wait_for(lambda: ended(psutil.Process(handle.pid)))
        assert fails(os.listdir, handle.path) in {"ENOTCONN", "ECONNABORTED"}
        with pytest.raises(ConnectionError):
            handle.control.options()
    assert not is_mounted(handle.path)
    assert os.listdir(handle.path) == []


def test_a_fault_of_the_emulator_is_not_taken_for_an_answer(tmp_path):
    facts = replace(PROFILES["intel-2s"].monitoring, extra_files={"broken": None})
    broken = replace(PROFILES["intel-2s"], monitoring=facts)
    with pytest.raises(RuntimeError, match="fault of its own"), mounted(broken, tmp_path) as handle:
        assert fails(os.listdir, f"{handle.path}/mon_data") == "EINVAL"
    assert not is_mounted(handle.path)


def test_it_unmounts_when_the_test_fails(tmp_path):
    code = DIES.replace("sys.stdin.readline()", "raise SystemExit(3)")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        timeout=60 * PATIENCE,
        check=False,
    )
    assert (done.returncode, is_mounted(str(tmp_path / "resctrl"))) == (3, False)


def test_what_cannot_be_mounted_is_told_with_the_log(resctrl):  # noqa: F811  # the parameter is the fixture
    with pytest.raises(RuntimeError, match="mount options refused: EINVAL"):
        resctrl("haswell", ["cdp"])


def command_by_hand(socket, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tests.emulators.resctrl.tell", socket, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_by_hand(tmp_path, ending):
    path, control = str(tmp_path / "mount"), str(tmp_path / "control")
    os.mkdir(path)
    command = [*MODULE, path, "--profile", "amd-rome", "--control", control]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == f"amd-rome is mounted at {path}; Ctrl-C unmounts\n"
        assert command_by_hand(control, "options") == (0, "[]\n", "")
        assert command_by_hand(control, "plug", "cpu=3", "online=false") == (0, "null\n", "")
        assert command_by_hand(control, "demand", "group=no", "bytes_per_second=1", "footprint_bytes=1")[0] == 1
        with open(f"{path}/cpus_list", encoding="utf-8") as file:
            assert file.read() == "0-2,4-63\n"
        second = subprocess.run(
            [*MODULE, path], cwd=REPOSITORY, capture_output=True, text=True, timeout=60 * PATIENCE, check=False
        )
        assert (second.returncode, "EBUSY" in second.stderr) == (1, True)
        with open(f"{path}/schemata", encoding="utf-8") as file:
            assert "23=2048" in file.read()
        process.send_signal(ending)
        assert process.wait(10 * PATIENCE) == 0
        assert not is_mounted(path)
        assert not os.path.exists(control)
    finally:
        process.kill()
        process.communicate()
        unmount(path)


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda patch: patch.setattr(mounting, "_effective_capabilities", lambda: 0), "mounting needs CAP_SYS_ADMIN"),
        (lambda patch: patch.setattr(mounting, "DEVICE", "/dev/no-fuse"), "/dev/no-fuse cannot be opened: No such"),
        (lambda patch: patch.setattr(mounting, "BINDING", "no_fuse_binding"), "the package no_fuse_binding is not"),
        (lambda patch: patch.setenv("FUSE_LIBRARY_PATH", "/dev/null"), "libfuse does not load: OSError"),
    ],
)
def test_why_nothing_can_be_mounted(monkeypatch, break_it, reason):
    break_it(monkeypatch)
    assert mounting.missing.__wrapped__().startswith(reason)


def test_profiles_are_listed():
    done = subprocess.run(
        [*MODULE, "--list-profiles"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(PROFILES)
    bare = subprocess.run(MODULE, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert bare.returncode == 2
