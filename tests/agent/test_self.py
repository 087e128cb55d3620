"""What the agent itself is: small, without what it does not need, and one process beside its watchdog."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import psutil

from standalone.probe import get
from tests.agent.api_twin import ApiTwin
from tests.patience import PATIENCE

NOT_WANTED = ("kubernetes", "pandas", "numpy", "duckdb", "aiohttp", "grpc_reflection.v1alpha", "pynvml", "click")
"""Of grpc_reflection grpc itself loads the empty package where it is installed."""
MIB = 1 << 20


def test_a_start_loads_nothing_that_a_node_does_not_need():
    code = f"import sys, agent.main; print([name for name in {NOT_WANTED} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def status(path):
    try:
        return json.loads(get(path, "/status")[1])
    except (OSError, ValueError):
        return {}


def test_a_running_agent_is_small_and_makes_no_process_but_its_watchdog():
    with tempfile.TemporaryDirectory(prefix="st") as directory, ApiTwin(f"{directory}/api.sock", []):
        observe = f"{directory}/o.sock"
        command = [
            *(sys.executable, "-m", "agent", "--node", "n1", "--cluster.server", f"unix:{directory}/api.sock"),
            *("--state-dir", f"{directory}/state", "--observe.listen", f"unix:{observe}", "--turn-seconds", "0.1"),
            "--observe-only",
        ]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=os.getcwd()) as agent:
            try:
                deadline = time.monotonic() + 30 * PATIENCE
                while status(observe).get("turn", 0) < 20:
                    assert agent.poll() is None
                    assert time.monotonic() < deadline, "twenty turns did not happen in time"
                    time.sleep(0.05)
                process = psutil.Process(agent.pid)
                children = process.children(recursive=True)
                assert len(children) <= 1, [child.cmdline() for child in children]
                assert process.memory_info().rss < 100 * MIB
                agent.send_signal(signal.SIGTERM)
                assert agent.wait(20 * PATIENCE) == 0
            finally:
                agent.kill()
