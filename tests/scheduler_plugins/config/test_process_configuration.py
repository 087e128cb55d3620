"""The scheduler as a process, configured by a file: two profiles, an extender, a lease of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler_plugins.main import main
from slacktide import names
from slacktide.cluster import LEASES, PODS
from slacktide.errors import SlacktideError
from slacktide.settings import ClusterSettings
from tests.scheduler_plugins.config.files import HEADER
from tests.scheduler_plugins.extenders.server import FakeExtender
from tests.scheduler_plugins.test_process import Machine, until


@pytest.fixture
def machine() -> Iterator[Machine]:
    # A socket path must be short, which a path below pytest's own directory is not.
    path = Path(tempfile.mkdtemp(prefix="slk-"))
    one = Machine(path)
    try:
        yield one
    finally:
        one.stop()
        shutil.rmtree(path)


def start(machine: Machine, text: str) -> subprocess.Popen[bytes]:
    file = machine.path / "scheduler.yaml"
    file.write_text(HEADER + textwrap.dedent(text))
    where = ("--cluster.server", f"unix:{machine.socket}", "--configuration", str(file))
    return machine.start("scheduler_plugins", *where, "--observe.listen", f"unix:{machine.path}/observe.sock")


def create(machine: Machine, name: str, scheduler: str) -> None:
    amounts = {names.BATCH_CPU: "100"}
    container = {
        "name": "main",
        "image": names.HOST_PROCESS_IMAGE,
        "resources": {"requests": amounts, "limits": amounts},
    }
    spec = {"schedulerName": scheduler, "containers": [container]}
    machine.client.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})


def keep_only(name: str) -> Any:
    def answer(question: dict[str, Any]) -> Any:
        others = {one: "the extender says no" for one in question["NodeNames"] if one != name}
        return {"NodeNames": [name] if name in question["NodeNames"] else [], "FailedNodes": others}

    return answer


def test_a_file_with_two_profiles_and_an_extender_runs(machine: Machine) -> None:
    machine.start_api()
    machine.offer(8000, "n1")
    machine.offer(8000, "n2")
    extender = FakeExtender({"filter": keep_only("n2")})
    try:
        text = f"""\
            leaderElection: {{resourceName: my-lease, resourceNamespace: default}}
            podInitialBackoffSeconds: 1
            podMaxBackoffSeconds: 1
            profiles:
            - schedulerName: first
            - schedulerName: second
            extenders:
            - urlPrefix: {extender.url}
              filterVerb: filter
              nodeCacheCapable: true
            """
        start(machine, text)
        create(machine, "a", "first")
        create(machine, "b", "second")
        create(machine, "c", names.SCHEDULER_NAME)
        until("both profiles place their pods", lambda: machine.bound() == {"a": "n2", "b": "n2"})
        assert {question["Pod"]["metadata"]["name"] for _, question in extender.asked} == {"a", "b"}
        assert machine.client.get(LEASES, "my-lease", "default").spec.holder_identity
        extender.answers["filter"] = keep_only("nowhere")
        create(machine, "d", "first")
        until("the extender's reason", lambda: "2 the extender says no" in machine.condition("d"))
        extender.answers["filter"] = lambda question: {"Error": "out of order"}
        create(machine, "e", "second")
        until("the extender's error", lambda: "out of order" in machine.condition("e"))
        extender.answers["filter"] = keep_only("n1")
        until("the failed pod is tried again", lambda: machine.bound().get("e") == "n1")
        assert "c" not in machine.bound()
    finally:
        extender.stop()


def test_bad_files_end_with_code_2_and_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(HEADER + "parallelism: 0\nprofiles: [{plugins: {filter: {enabled: [{name: NodeNmae}]}}}]\n")
    assert main(["--configuration", str(file), "--cluster.server", "unix:/nonexistent/api.sock"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("slacktide scheduler: ")]
    wanted = [f"slacktide scheduler: file {file} line {n}: " for n in (3, 4)]
    assert [line.startswith(start) for line, start in zip(lines, wanted, strict=True)] == [True, True]
    assert "did you mean NodeName?" in lines[1]


def test_the_kubeconfig_of_the_file_counts_where_the_settings_say_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(HEADER + "clientConnection: {kubeconfig: /nonexistent/of-the-file}\n")
    asked: list[str] = []

    def connect(cluster: ClusterSettings, user_agent: str) -> Any:
        asked.append(cluster.kubeconfig)
        raise SlacktideError(f"{user_agent} is not let in")

    monkeypatch.setattr("scheduler_plugins.main.connect", connect)
    for more in ((), ("--cluster.kubeconfig", "/nonexistent/of-the-settings")):
        assert main(["--configuration", str(file), *more]) == 1
    assert asked == ["/nonexistent/of-the-file", "/nonexistent/of-the-settings"]
