from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import threading

import pytest

from standalone.api.main import main
from tests.standalone.api.client import Client, eventually, pod

PODS = "/api/v1/namespaces/default/pods"


def test_kill_9_loses_nothing_that_was_acknowledged(process):
    server = process()
    api = server.start()
    acknowledged: list[tuple[str, str]] = []
    enough = threading.Event()

    def write(worker):
        for number in range(100_000):
            try:
                answer = api.post(PODS, pod(f"w{worker}-{number}"))
            except OSError:
                return
            if answer.code == 201:
                acknowledged.append((answer.json["metadata"]["name"], answer.json["metadata"]["resourceVersion"]))
                if len(acknowledged) >= 200:
                    enough.set()

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    assert enough.wait(60)
    server.kill()
    for thread in threads:
        thread.join()
    api = server.start()
    listed = api.get(PODS).json
    found = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in listed["items"]}
    assert [name for name, version in acknowledged if found.get(name) != version] == []
    newest = max(int(version) for version in found.values())
    assert int(listed["metadata"]["resourceVersion"]) >= newest
    # A watch from before the kill goes on after it, and versions go on rising.
    with api.watch(PODS, resourceVersion=acknowledged[0][1]) as following:
        assert int(following()["object"]["metadata"]["resourceVersion"]) > int(acknowledged[0][1])
    assert int(api.post(PODS, pod("after")).json["metadata"]["resourceVersion"]) > newest


def test_sigterm_ends_it_cleanly_also_with_open_watches(process):
    server = process()
    api = server.start()
    assert os.stat(server.socket).st_mode & 0o777 == 0o600
    with api.watch(PODS, resourceVersion="0") as following:
        server.process.terminate()
        assert following() is None
    assert server.process.wait(10) == 0
    assert not os.path.exists(server.socket)
    assert os.path.exists(f"{server.folder}/db")


def test_a_second_server_on_the_same_files_is_refused(process):
    server = process()
    api = server.start()
    other = subprocess.run(server.arguments(), capture_output=True, text=True, timeout=30, check=False)
    assert other.returncode != 0
    assert "locked" in other.stderr
    assert api.get("/healthz").code == 200


def test_a_newer_database_is_refused(tmp_path, process):
    server = process()
    connection = sqlite3.connect(f"{server.folder}/db")
    connection.execute("PRAGMA user_version=999")
    connection.close()
    found = subprocess.run(server.arguments(), capture_output=True, text=True, timeout=30, check=False)
    assert found.returncode == 1
    assert "format 999" in found.stderr
    assert not os.path.exists(server.socket)


def test_no_space_refuses_writes_and_leaves_reads(process):
    server = process("--database-limit-bytes", "1Mi")
    api = server.start()
    api.post(PODS, pod("kept"))
    refused, number = None, 0
    while refused is None and number < 200:
        answer = api.post(PODS, {**pod(f"big{number}"), "note": "x" * 50_000})
        refused = answer if answer.code != 201 else None
        number += 1
    assert (refused.code, refused.reason) == (500, "InternalError")
    assert "database cannot be written" in refused.json["message"]
    assert "free space" in refused.json["message"]
    assert api.get(f"{PODS}/kept").code == 200
    for name in api.names(PODS):
        assert api.delete(f"{PODS}/{name}").code == 200
    assert api.post(PODS, pod("again")).code == 201
    assert server.process.poll() is None


def test_settings_that_cannot_be_used_end_it_with_2(process):
    server = process("--listen", "0.0.0.0:0", "--databse", "x")
    found = subprocess.run(server.arguments(), capture_output=True, text=True, timeout=30, check=False)
    assert found.returncode == 2
    assert "database" in found.stderr


def test_help_names_every_setting(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    for flag in (
        "--socket",
        "--database",
        "--log-dir",
        "--listen",
        "--token-file",
        "--kubeconfig-file",
        "--observe.listen",
    ):
        assert flag in text


_CLIENT = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(sys.argv[1])
s.sendall(b"GET /api/v1/pods HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
data = b""
while True:
    part = s.recv(65536)
    if not part: break
    data += part
print(data.decode())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv to be another user"
)
def test_another_user_is_turned_away(process):
    server = process()
    api = server.start()
    other = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "/usr/bin/env",
        "python3",
        "-c",
        _CLIENT,
        server.socket,
    ]
    os.chmod(server.folder, 0o755)
    closed = subprocess.run(other, capture_output=True, text=True, timeout=30, check=False)
    assert "PermissionError" in closed.stderr
    os.chmod(server.socket, 0o666)
    refused = subprocess.run(other, capture_output=True, text=True, timeout=30, check=False)
    assert "403" in refused.stdout.splitlines()[0]
    assert "user id 65534 may not use this server" in refused.stdout
    assert api.get("/api/v1/pods").code == 200


def test_tcp_needs_the_token(process):
    server = process()
    token_file, kubeconfig = f"{server.folder}/token", f"{server.folder}/kubeconfig"
    server.flags = ("--listen", "127.0.0.1:0", "--token-file", token_file, "--kubeconfig-file", kubeconfig)
    server.start()
    with open(token_file) as file:
        token = file.read().strip()
    with open(kubeconfig) as file:
        address = next(line for line in file if "server:" in line).split("@")[1].strip()
    assert len(token) >= 32
    for path in (token_file, kubeconfig):
        assert os.stat(path).st_mode & 0o777 == 0o600
    assert Client(tcp=address, headers={"Authorization": f"Bearer {token}"}).get("/api/v1/pods").code == 200
    for headers in (
        {},
        {"Authorization": "Bearer nonsense"},
        {"Authorization": "Basic !"},
        {"Authorization": f"Other {token}"},
    ):
        refused = Client(tcp=address, headers=headers).get("/api/v1/pods")
        assert (refused.code, refused.reason) == (401, "Unauthorized")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 0
    os.chmod(token_file, 0o644)
    found = subprocess.run(server.arguments(), capture_output=True, text=True, timeout=30, check=False)
    assert found.returncode == 2
    assert "chmod 600" in found.stderr


def test_metrics_and_health(process):
    server = process()
    server.flags = ("--observe.listen", f"unix:{server.folder}/o")
    api = server.start()
    api.get(PODS)
    with api.watch(PODS, resourceVersion="0"):
        observe = Client(f"{server.folder}/o")
        eventually(lambda: "slacktide_apiserver_watchers 1.0" in observe.get("/metrics").text.decode())
    text = observe.get("/metrics").text.decode()
    assert 'slacktide_apiserver_requests_total{code="200",method="GET",resource="pods"}' in text
    assert "slacktide_apiserver_resource_version" in text
    assert observe.get("/readyz").code == 200
