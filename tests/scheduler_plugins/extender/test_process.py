"""The extender as a process, beside the embedded API server as a process."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slacktide import names
from slacktide.cluster import PODS
from slacktide.objects import Pod
from tests.pki import Pki
from tests.scheduler_plugins.build import be, pod
from tests.scheduler_plugins.extender.support import body, post, until
from tests.scheduler_plugins.test_process import Machine

NAMED = "subjectAltName=IP:127.0.0.1\n"
JSON = {"Content-Type": "application/json"}


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


def start(machine: Machine, *more: str) -> tuple[subprocess.Popen[bytes], str]:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    cluster = ("--cluster.server", f"unix:{machine.socket}")
    observe = ("--observe.listen", f"unix:{machine.path}/observe.sock")
    process = machine.start("scheduler_plugins.extender_main", *cluster, *observe, "--listen", address, *more)
    return process, address


def kept(address: str, asked: Pod, *nodes: str) -> list[str] | None:
    """NodeNames of the answer; None while nobody listens or the question failed."""
    try:
        status, answer, _ = post(address, "/filter", body(Pod=asked, NodeNames=list(nodes)))
    except OSError:
        return None
    assert status == 200
    return None if answer["Error"] else answer["NodeNames"]


def test_it_answers_ls_before_the_api_is_there_and_be_by_the_forecast_after(machine: Machine) -> None:
    process, address = start(machine)
    assert until("LS passes", lambda: kept(address, pod(), "n1", "n2")) == ["n1", "n2"]
    assert kept(address, be(), "n1") is None
    assert " 503 " in machine.observed("/readyz").partition("\r\n")[0] + " "
    machine.start_api()
    machine.offer(1000, "n1")
    machine.offer(3000, "n2")
    until("both nodes are known", lambda: kept(address, be("p", 500), "n1", "n2") == ["n1", "n2"])
    assert kept(address, be("p", 2000), "n1", "n2") == ["n2"]
    machine.offer(100, "n2")
    until("the smaller forecast is seen", lambda: kept(address, be("p", 2000), "n1", "n2") == [])
    assert " 200 " in machine.observed("/readyz")
    assert 'slacktide_extender_requests_total{outcome="passed",verb="filter"}' in machine.observed("/metrics")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_what_it_binds_counts_at_once_and_what_ends_counts_no_more(machine: Machine) -> None:
    machine.start_api()
    machine.offer(1000)
    _, address = start(machine, "--bind", "true")
    until("the node is known", lambda: kept(address, be("x", 800), "n1") == ["n1"])
    machine.create("p", 800)
    uid = machine.client.get(PODS, "p", "default").metadata.uid
    order = json.dumps({"PodName": "p", "PodNamespace": "default", "PodUID": uid, "Node": "n1"}).encode()
    status, answer, _ = post(address, "/bind", order)
    assert (status, answer) == (200, {"Error": ""})
    assert machine.bound() == {"p": "n1"}
    until("the placement is counted", lambda: kept(address, be("x", 800), "n1") == [])
    machine.client.delete(PODS, "p", "default", grace_period_seconds=0)
    until("its room is free again", lambda: kept(address, be("x", 800), "n1") == ["n1"])


def test_it_goes_on_with_what_it_knows_while_the_api_is_away(machine: Machine) -> None:
    machine.start_api()
    machine.offer(1000)
    _, address = start(machine)
    until("the node is known", lambda: kept(address, be("x", 800), "n1") == ["n1"])
    api = machine._running[0]
    api.kill()
    api.wait()
    assert kept(address, be("x", 800), "n1") == ["n1"]
    assert kept(address, be("x", 1200), "n1") == []
    machine.start_api()
    machine.offer(2000)
    until("what changed meanwhile is seen", lambda: kept(address, be("x", 1200), "n1") == ["n1"])


def test_settings_that_cannot_be_used_end_it_with_2_and_every_reason(machine: Machine) -> None:
    process, _ = start(machine, "--profile.plugins", "BatchForcast,Nothing", "--tls.key-file", "/no/key")
    assert process.wait(40) == 2
    log = (machine.path / "scheduler_plugins.extender_main.log").read_text()
    assert "did you mean BatchForecast" in log
    assert "'Nothing'" in log


def test_a_missing_file_of_settings_ends_it_with_2_and_its_name(machine: Machine) -> None:
    process, _ = start(machine, "--config", f"{machine.path}/settings.yaml")
    assert process.wait(40) == 2
    log = (machine.path / "scheduler_plugins.extender_main.log").read_text()
    assert f"{machine.path}/settings.yaml" in log
    assert "No such file" in log


def test_a_certificate_that_cannot_be_used_ends_it_with_2_and_says_which(machine: Machine) -> None:
    pki = Pki(machine.path)
    certificate, _ = pki.issue("one", "/CN=one", NAMED)
    _, key = pki.issue("two", "/CN=two", NAMED)
    process, _ = start(machine, "--tls.certificate-file", certificate, "--tls.key-file", key)
    assert process.wait(40) == 2
    log = (machine.path / "scheduler_plugins.extender_main.log").read_text()
    assert certificate in log
    assert "key values mismatch" in log
    assert "PRIVATE KEY" not in log


def test_an_expired_certificate_is_said_once_refused_by_callers_and_replaced_without_a_restart(
    machine: Machine,
) -> None:
    pki = Pki(machine.path)
    shown = [machine.path / name for name in ("shown.crt", "shown.key")]

    def show(pair: tuple[str, str]) -> None:
        for source, target in zip(pair, shown, strict=True):
            shutil.copy(source, f"{target}.new")
            Path(f"{target}.new").replace(target)

    show(pki.issue("old", "/CN=old", NAMED, days=-1))
    files = ("--tls.certificate-file", str(shown[0]), "--tls.key-file", str(shown[1]))
    process, address = start(machine, *files)
    believing = ssl.create_default_context(cafile=pki.ca)

    def asked() -> str:
        """What a caller that believes our authority sees: the words of its refusal, or the names kept."""
        connection = http.client.HTTPSConnection(address, timeout=20, context=believing)
        with contextlib.closing(connection):
            try:
                connection.request("POST", "/filter", body(Pod=pod(), NodeNames=["n1"]), JSON)
                return str(json.loads(connection.getresponse().read())["NodeNames"])
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
            except OSError:
                return ""

    until("the caller refuses it", lambda: asked() == "certificate has expired")
    log = machine.path / "scheduler_plugins.extender_main.log"
    until("it is said", lambda: "has expired" in log.read_text())
    show(pki.issue("new", "/CN=new", NAMED))
    until("the new one is shown", lambda: asked() == "['n1']")
    assert log.read_text().count("has expired") == 1
    assert process.poll() is None


def test_the_tier_label_of_a_pod_decides_whether_it_is_judged(machine: Machine) -> None:
    machine.start_api()
    machine.offer(1000)
    _, address = start(machine)
    until("the node is known", lambda: kept(address, be("x", 800), "n1") == ["n1"])
    protected = be("x", 5000, metadata={"labels": {names.TIER_LABEL: "ls"}})
    assert kept(address, protected, "n1") == ["n1"]
    assert kept(address, be("x", 5000), "n1") == []
