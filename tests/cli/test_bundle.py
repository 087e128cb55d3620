"""A support bundle has what helps, and no secret."""

from __future__ import annotations

import json
import os
import re
import stat
import tarfile

import pytest

from cli.bundle import REMOVED, cleaned, redact
from cli.bundling import Bundle, of_cluster
from slacktide.cluster.errors import Forbidden

TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLW9mLWl0"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIHush\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "gone", "kept"),
    [
        (f"sent {TOKEN} to n1", TOKEN, "to n1"),
        ("Authorization: Bearer abcdef123456 ok", "abcdef123456", "Authorization"),
        ('{"authorization": "Basic dXNlcjpodXNo"}', "dXNlcjpodXNo", "authorization"),
        ("https://user:hush@host:9090/x", "hush", "host:9090/x"),
        ("password: hush", "hush", "password"),
        ("db_password='hu sh'", "hu sh", "db_password"),
        ('api_key = "hush"', "hush", "api_key"),
        ("MY_SECRET=hush next", "hush", "next"),
        (f"before\n{KEY}\nafter", "MHcCAQEEIHush", "after"),
        ("-----BEGIN PRIVATE KEY-----\nMHcHush cut off here", "MHcHush", ""),
        ("bearer AbCdEf123.456", "AbCdEf123.456", ""),
    ],
)
def test_what_looks_like_a_secret_is_taken_out_of_texts(text, gone, kept):
    assert gone not in redact(text)
    assert REMOVED in redact(text)
    assert kept in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "slacktide_agent_turns_total 17",
        "node n1 closed: memory is low",
        "token_file: /var/run/secrets/slacktide/token",
        "time=2026-01-01T10:00:00Z level=info event=started",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text) == text


POD = {
    "metadata": {
        "name": "p",
        "managedFields": [{"manager": "x"}],
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": '{"env":"hush-1"}',
            "slacktide.io/tier": "BE",
        },
    },
    "spec": {
        "containers": [
            {
                "name": "main",
                "env": [{"name": "A", "value": "hush-2"}],
                "args": ["--key", "hush-3"],
                "command": ["hush-4"],
            }
        ],
        "initContainers": [{"name": "init", "envFrom": [{"secretRef": {"name": "hush-5"}}]}],
        "nodeName": "n1",
    },
    "status": {"phase": "Running"},
}


def test_objects_keep_what_decides_and_lose_what_may_be_secret():
    found = cleaned(POD)
    assert "hush" not in json.dumps(found)
    assert "managedFields" not in found["metadata"]
    assert found["metadata"]["annotations"]["slacktide.io/tier"] == "BE"
    assert (found["spec"]["nodeName"], found["status"]["phase"]) == ("n1", "Running")
    assert POD["spec"]["containers"][0]["args"] == ["--key", "hush-3"], "the original is left alone"


def test_our_own_components_keep_their_arguments_but_no_environment():
    found = cleaned(POD, ours=True)["spec"]["containers"][0]
    assert (found["args"], found["env"]) == (["--key", "hush-3"], REMOVED)


def names_and_text(path):
    with tarfile.open(path) as tar:
        return {name.partition("/")[2]: tar.extractfile(name).read().decode() for name in tar.getnames() if "/" in name}


def test_a_bundle_of_this_machine(command, twin, app, root, tmp_path, out, err):
    state = app.state()
    os.makedirs(os.path.dirname(state.log_file("agent")), exist_ok=True)
    with open(state.log_file("agent"), "w") as file:
        file.write(f"event=turn\nevent=lost token={TOKEN}\n")
    with open(state.config_file("predictor"), "w") as file:
        file.write("ttl_seconds: 60\npassword: hush\n")
    app.connect = lambda _: Cluster()
    path = tmp_path / "case-7.tar.gz"
    assert command("doctor", "--bundle", str(path)) in (0, 1)
    found = names_and_text(path)
    assert {"about.json", "doctor.json", "agent/log.txt", "predictor/settings.yaml", "missing.json"} <= found.keys()
    assert "event=turn" in found["agent/log.txt"]
    assert json.loads(found["pods.json"])[0]["spec"]["nodeName"] == "n1"
    assert not any(secret in text for text in found.values() for secret in (TOKEN, "hush"))
    assert "/metrics of agent" in json.loads(found["missing.json"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "case-7.tar.gz" in out.text


class Cluster:
    """Raw lists in pages of one, and logs; one kind is forbidden."""

    def __init__(self):
        self.asked = []
        ours = {**POD, "metadata": {"name": "slacktide-agent-x"}}
        self.lists = {
            "/api/v1/nodes": [{"metadata": {"name": "n1"}}, {"metadata": {"name": "n2"}}],
            "/api/v1/pods": [POD],
            "/api/v1/events": [
                {"source": {"component": "slacktide-agent"}, "message": "evicted p"},
                {"source": {"component": "kubelet"}, "message": "pulled"},
            ],
            "/api/v1/namespaces/s/pods": [ours],
            "/apis/apps/v1/namespaces/s/deployments": [],
            "/apis/coordination.k8s.io/v1/namespaces/s/leases": [],
        }

    def request(self, method, path, query):
        self.asked.append((method, path))
        if path not in self.lists:
            raise Forbidden(403, "Forbidden", f"cannot list {path}")
        items = self.lists[path]
        at = int(query.get("continue", 0))
        more = {"continue": str(at + 1)} if at + 1 < len(items) else {}
        return json.dumps({"metadata": more, "items": items[at : at + 1]}).encode()

    def logs(self, namespace, name, container, tail_lines):
        class Lines(list):
            def close(self):
                return

        return Lines([b"event=turn\n", f"password={'hush-9'}\n".encode()])


def test_a_bundle_of_a_cluster_has_all_pages_and_says_what_it_may_not_see(tmp_path):
    cluster = Cluster()
    bundle = of_cluster(cluster, "s", [{"name": "versions"}])
    bundle.write(str(tmp_path / "b.tar.gz"))
    found = names_and_text(tmp_path / "b.tar.gz")
    assert [one["metadata"]["name"] for one in json.loads(found["nodes.json"])] == ["n1", "n2"]
    assert "evicted p" in found["events.json"]
    assert "pulled" not in found["events.json"]
    assert "event=turn" in found["components/slacktide-agent-x-main.log"]
    assert "cannot list" in json.loads(found["missing.json"])["daemonsets"]
    assert not any(f"hush-{number}" in text for text in found.values() for number in (1, 2, 5, 9))
    assert all(method == "GET" and "secrets" not in path for method, path in cluster.asked)


def test_a_bundle_that_cannot_be_written():
    with pytest.raises(Exception, match=re.escape("cannot write /nowhere/b.tar.gz")):
        Bundle().write("/nowhere/b.tar.gz")
