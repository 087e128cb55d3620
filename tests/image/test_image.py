"""The images as they are built and run: what is in them, what is not, who runs them, and the same bytes twice."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.image.conftest import AGENT, ROOT, build
from tests.patience import PATIENCE

# Building takes minutes on a busy machine, most of them for downloads.
pytestmark = pytest.mark.timeout(1800)

NOT_FOR_AGENTS = ("numpy", "pandas", "statsmodels", "scipy", "duckdb", "click", "rich", "pip", "setuptools", "pytest")
LOOK = "import importlib.util, json, sys; print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n)]))"


@pytest.fixture
def shared(tmp_path):
    """A directory that a container may write to; short, for sockets lie in it."""
    directory = tmp_path / "s"
    directory.mkdir()
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(0o755)
    return directory


def answer(path, route):
    """Status and body of an observe route on a Unix socket; None while nobody answers."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(str(path))
        connection.request("GET", route)
        response = connection.getresponse()
        return response.status, response.read().decode()
    except OSError:
        return None
    finally:
        connection.close()


def wait_for(process, path, route):
    deadline = time.monotonic() + 60 * PATIENCE
    while (said := answer(path, route)) is None or said[0] != 200:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
    return said[1]


def child_of(process):
    """The program that the runtime started."""
    # Whichever of its threads it was.
    pids = [pid for path in Path(f"/proc/{process.pid}/task").glob("*/children") for pid in path.read_text().split()]
    assert len(pids) == 1
    return int(pids[0])


def test_the_agents_image_has_what_the_agent_imports_and_nothing_else(agent):
    code, out, err = agent.run("python3", "-c", f"import agent.main, agent.restore\n{LOOK}", *NOT_FOR_AGENTS)
    assert (code, json.loads(out or "[]")) == (0, []), err


@pytest.mark.parametrize("program", ["sh", "bash", "apt-get", "dpkg", "perl", "pip"])
def test_there_is_no_shell_and_no_package_manager(agent, program):
    paths = [agent.directory / "rootfs" / where / program for where in ("usr/bin", "usr/local/bin", "usr/sbin")]
    assert [path for path in paths if os.path.lexists(path)] == []


def test_no_trace_of_the_machine_that_built_it(agent):
    """Neither directories of the checkout nor times other than the one that was asked for."""
    root = agent.directory / "rootfs"
    times = set()
    for path in (*root.rglob("*.py"), *root.rglob("RECORD"), *root.rglob("*.json")):
        if path.is_symlink():
            continue
        times.add(int(path.lstat().st_mtime))
        assert str(ROOT).encode() not in path.read_bytes()
    assert len(times) == 1
    assert list(root.rglob("direct_url.json")) == []


def test_byte_code_is_there_and_used(agent):
    """A read-only file system has no place to keep it: without, each start would compile everything."""
    words = "import agent.loop, json; print(json.dumps([agent.loop.__cached__, agent.loop.__file__]))"
    code, out, err = agent.run("python3", "-c", words)
    assert code == 0, err
    cached, source = (agent.directory / "rootfs" / path.lstrip("/") for path in json.loads(out))
    # Bit 0: judged by content; bit 1 not set: not even that is looked at. Source: PEP 552.
    assert int.from_bytes(cached.read_bytes()[4:8], "little") == 1
    assert source.exists()


def test_the_agent_runs_from_its_image(agent, shared):
    flags = ["--observe-only", "true", "--state-dir", f"{shared}/state", "--observe.listen", f"unix:{shared}/o"]
    where = ["--cluster.server", f"unix:{shared}/nobody", "--node", "n1"]
    with agent.started("slacktide-agent", *flags, *where, shared=shared) as process:
        wait_for(process, shared / "o", "/healthz")
        assert "slacktide_" in answer(shared / "o", "/metrics")[1]
        os.kill(child_of(process), signal.SIGTERM)
        out, err = process.communicate(timeout=60 * PATIENCE)
        assert process.returncode == 0, (out, err)


def test_predictor_and_scheduler_run_without_root(whole, shared):
    assert whole.archive.config["User"] == "65532:65532"
    listen = ["--listen", f"unix:{shared}/p", "--observe.listen", f"unix:{shared}/o"]
    flags = ["--history-dir", f"{shared}/history", "--cluster.server", f"unix:{shared}/nobody"]
    with whole.started("slacktide-predictor", *listen, *flags, shared=shared) as process:
        wait_for(process, shared / "o", "/healthz")
        assert os.stat(f"/proc/{child_of(process)}").st_uid == 65532
        os.kill(child_of(process), signal.SIGTERM)
        out, err = process.communicate(timeout=60 * PATIENCE)
        assert process.returncode == 0, (out, err)
    for program in ("slacktide-scheduler", "slacktide-extender"):
        assert whole.run(program, "--version")[0] == 0
    assert whole.run("slacktide", "version")[0] == 0


def test_the_bill_of_materials_names_what_is_in_it(agent, images):
    bill = json.loads((images / f"{AGENT}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", AGENT)
    listed = {one["purl"].partition("@")[0] for one in bill["components"] if "purl" in one}
    root = agent.directory / "rootfs"
    debian = {f"pkg:deb/debian/{path.name.replace('+', '%2B')}" for path in (root / "var/lib/dpkg/status.d").iterdir()}
    assert debian
    assert debian <= listed
    installed = [path.name.partition("-")[0] for path in (root / "usr/local/lib").rglob("*.dist-info")]
    python = {name.partition("/")[2] for name in listed if name.startswith("pkg:pypi/")}
    named = {one["name"].lower().replace("-", "_").replace(".", "_") for one in bill["components"]}
    assert {name.lower() for name in installed} <= named
    assert {"grpcio", "psutil"} <= python


def test_two_builds_give_the_same_bytes(images, tmp_path):
    if os.environ.get("SLACKTIDE_IMAGES"):
        pytest.skip("images were given: what they were built from is not known")
    build(tmp_path, AGENT)
    for name in (f"{AGENT}.tar", f"{AGENT}.cdx.json"):
        sums = [subprocess.check_output(["sha256sum", where / name]).split()[0] for where in (images, tmp_path)]
        assert sums[0] == sums[1], name
