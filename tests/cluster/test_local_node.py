"""Pods as processes of this machine: what a container sees, and that nothing of it stays."""

from __future__ import annotations

import base64
import json
import os
import secrets

import pytest

from slacktide.cluster import NODES, PODS
from slacktide.cluster.kinds import Kind
from slacktide.kernel.hierarchy import discover
from slacktide.objects import ObjectMeta, View
from standalone.sweep import directories
from tests.cluster.local_node import LocalNode, why_not
from tests.cluster.product import wait_for

pytestmark = [pytest.mark.kernel, pytest.mark.skipif(why_not() is not None, reason=why_not() or "")]


class Plain(View, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


CONFIG_MAPS = Kind("v1", "ConfigMap", "configmaps", True, Plain)
SECRETS = Kind("v1", "Secret", "secrets", True, Plain)
ACCOUNTS = Kind("v1", "ServiceAccount", "serviceaccounts", True, Plain)
SERVICES = Kind("v1", "Service", "services", True, Plain)

SERVER = "\n".join(
    [
        'echo "$WHO $(cat /etc/demo/word) $(cat /etc/other/deep/key) $(cat /var/run/secrets/demo/token)" > /data/said',
        "grep server /etc/hosts > /data/hosts",
        "test -e /etc/passwd && cp /data/said /data/again",
        'cd /data && exec python3 -m http.server --bind "$ADDRESS" 8080',
    ]
)


def server(namespace):
    """A pod with a volume of every kind, that serves what it saw."""
    variables = {"WHO": "metadata.name", "ADDRESS": "status.podIP"}
    token = {"audience": "demo", "expirationSeconds": 600, "path": "token"}
    return {
        "metadata": {"name": "server", "labels": {"app": "server"}},
        "spec": {
            "nodeName": "local",
            "serviceAccountName": "demo",
            "terminationGracePeriodSeconds": 5,
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "command": ["sh", "-c"],
                    "args": [SERVER],
                    "env": [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": p}}} for n, p in variables.items()],
                    "readinessProbe": {"httpGet": {"path": "/said", "port": 8080}},
                    "volumeMounts": [
                        {"name": "config", "mountPath": "/etc/demo"},
                        {"name": "secret", "mountPath": "/etc/other/deep"},
                        {"name": "token", "mountPath": "/var/run/secrets/demo"},
                        {"name": "data", "mountPath": "/data"},
                    ],
                }
            ],
            "volumes": [
                {"name": "config", "configMap": {"name": "demo"}},
                {"name": "secret", "secret": {"secretName": "demo"}},
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
                {"name": "data", "emptyDir": {}},
            ],
        },
    }


def claims(token):
    part = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def test_a_container_sees_its_volumes_and_the_machine_sees_none_of_it(plane, client, namespace, tmp_path):
    word = secrets.token_hex(4)
    client.create(CONFIG_MAPS, {"metadata": {"name": "demo"}, "data": {"word": word}}, namespace)
    client.create(
        SECRETS, {"metadata": {"name": "demo"}, "data": {"key": base64.b64encode(b"hidden").decode()}}, namespace
    )
    client.create(ACCOUNTS, {"metadata": {"name": "demo"}}, namespace)
    selector = {"selector": {"app": "server"}, "ports": [{"port": 8080}], "clusterIP": "None"}
    client.create(SERVICES, {"metadata": {"name": "server"}, "spec": selector}, namespace)
    before = set(os.listdir("/etc"))
    with LocalNode(plane, client, tmp_path) as node:
        client.create(PODS, server(namespace), namespace)

        def ready():
            pod = client.get(PODS, "server", namespace)
            return pod if any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions) else None

        pod = wait_for(ready, lambda: f"ready pod: {node.log(namespace, 'server')}")
        (data,) = tmp_path.glob("pods/*/volumes/data")
        who, said, hidden, token = (data / "again").read_text().split()
        assert (who, said, hidden) == ("server", word, "hidden")
        assert claims(token)["kubernetes.io"]["node"]["name"] == "local"
        assert claims(token)["aud"] == ["demo"]
        assert len(directories(discover(), node.cgroup_root)) > 0
        assert set(os.listdir("/etc")) == before
        # A process that ends is started again; a second pod finds the service by its name.
        first = pod.status.container_statuses[0].container_id
        (container,) = next(iter(node._pods.values())).containers
        container.process.kill()
        wait_for(
            lambda: (found := ready()) and found.status.container_statuses[0].container_id != first,
            "restarted container",
        )
        asks = f"python3 -c 'import urllib.request as u; print(u.urlopen(\"http://server.{namespace}.svc:8080/said\").read())'"
        body = {
            "metadata": {"name": "job"},
            "spec": {
                "nodeName": "local",
                "restartPolicy": "Never",
                "serviceAccountName": "demo",
                "containers": [{"name": "main", "image": "none", "command": ["sh", "-c", asks]}],
            },
        }
        client.create(PODS, body, namespace)
        wait_for(
            lambda: client.get(PODS, "job", namespace).status.phase == "Succeeded",
            lambda: f"end of the job: {node.log(namespace, 'job')}",
        )
        assert word in node.log(namespace, "job")
        client.delete(PODS, "server", namespace)
        wait_for(lambda: len(client.list(PODS, namespace).items) == 1, "end of the pod")
    assert directories(discover(), node.cgroup_root) == []
    client.delete(NODES, "local")
