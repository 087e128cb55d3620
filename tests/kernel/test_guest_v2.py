"""The kernel tests once more, on a real, pure cgroup v2 with PSI: in a guest, whatever this machine itself has."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.kernel import guest
from tests.patience import VARIABLE

SECONDS = 1080
"""How long the guest may take, from its start on: it is emulated, about ten times slower than this machine."""

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(SECONDS + 180),
    pytest.mark.skipif(guest.why_not() is not None, reason=f"no guest: {guest.why_not()}"),
]

REPOSITORY = Path(__file__).parents[2]

SUITE = (
    "tests/kernel/test_runner_cgroups.py",
    "tests/kernel/test_agent_cgroups.py",
    "tests/kernel/test_agent_spread.py",
    "tests/kernel/test_agent_batch_limits.py",
    "tests/kernel/test_agent_reclaim.py",
    "tests/kernel/test_agent_pids.py",
    "tests/kernel/test_errno_table.py",
    "tests/kernel/test_agent_knobs.py",
)

OF_V1_ONLY = {
    "tests/kernel/test_agent_cgroups.py::test_a_quota_reaches_a_pod_whose_container_has_one",
    "tests/kernel/test_agent_cgroups.py::test_burst_and_a_lower_quota",
    "tests/kernel/test_agent_batch_limits.py::test_a_memory_limit_below_what_is_in_use_is_refused_told_and_tried_again",
    "tests/kernel/test_agent_knobs.py::test_a_memory_limit_below_usage_is_told_and_not_forced_on_v1",
}
"""And those that say so in their names, with test_v1_."""

TOO_SLOW = (
    "--deselect",
    "tests/kernel/test_agent_spread.py::test_a_killed_agent_leaves_masks_the_next_adopts_and_a_stop_restores",
)
"""Starts two agents, one of them beside a dead one's watchdog: the emulated machine does not get there in time."""

PYTEST = (sys.executable, "-m", "pytest", "-p", "pytest_timeout", "-p", "no:cacheprovider")
"""Only what the suite needs is loaded: imports are what a guest spends most of its time with."""

SCRIPT = """
mkdir /run/bytecode
tar -xf /mnt/bytecode.tar -C /run/bytecode
cd {repository}
{pytest} --basetemp /run/pytest --timeout 240 --junitxml /mnt/report.xml -v {suite}
"""


def collected(bytecode):
    """Node ids of the suite. What this imports is compiled on the way, so that the guest need not."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    options = {"cwd": REPOSITORY, "env": environment, "capture_output": True, "text": True, "timeout": 120}
    for module in ("agent.main", "standalone.runner.shim.main"):
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True, **options)
    found = subprocess.run([*PYTEST, "--collect-only", "-q", *TOO_SLOW, *SUITE], check=False, **options)
    assert found.returncode == 0, found.stdout + found.stderr
    return {line for line in found.stdout.splitlines() if "::" in line}


def outcomes(report):
    """Node id -> (outcome, text) of a JUnit report."""
    found = {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}"
        worst = next((case.find(kind) for kind in ("failure", "error", "skipped") if case.find(kind) is not None), None)
        found[name] = ("passed", "") if worst is None else (worst.tag, f"{worst.get('message')}\n{worst.text}")
    return found


def tail(path, count=4000):
    return path.read_text(errors="replace")[-count:] if path.exists() else "(nothing)"


def test_the_kernel_tests_pass_on_a_real_cgroup_v2(tmp_path):
    expected = collected(tmp_path / "bytecode")
    exchange = tmp_path / "exchange"
    exchange.mkdir()
    with tarfile.open(exchange / "bytecode.tar", "w") as archive:
        archive.add(tmp_path / "bytecode", ".")
    script = SCRIPT.format(
        repository=shlex.quote(str(REPOSITORY)), pytest=shlex.join(PYTEST), suite=shlex.join((*TOO_SLOW, *SUITE))
    )
    begin = time.monotonic()
    status = guest.run(
        exchange,
        script,
        SECONDS,
        {
            "PATH": os.environ["PATH"],
            "HOME": "/root",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPYCACHEPREFIX": "/run/bytecode",
            VARIABLE: "16",
        },
    )
    print(f"the guest took {time.monotonic() - begin:.0f} s")
    report = exchange / "report.xml"
    assert report.exists(), f"no report (status {status})\n{tail(exchange / 'output')}\n{tail(exchange / 'console')}"
    found = outcomes(report)
    failed = {name: text for name, (outcome, text) in found.items() if outcome in {"failure", "error"}}
    assert not failed, "\n\n".join(f"in the guest: {name}\n{text}" for name, text in failed.items())
    assert set(found) == expected
    of_v1_only = OF_V1_ONLY | {name for name in expected if "::test_v1_" in name}
    assert {name for name, (outcome, _) in found.items() if outcome == "skipped"} == of_v1_only
    assert status == 0, tail(exchange / "output")
