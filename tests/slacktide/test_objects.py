from __future__ import annotations

import json

import msgspec
import pytest

from slacktide import objects
from slacktide.objects import Event, Lease, Node, Pod, is_terminal, is_terminating, pod_key, to_body

# A pod as `kubectl get pod -o json` shows it, with much that Slacktide has no field for.
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{}\n",
            "cni.projectcalico.org/podIP": "10.1.2.3/32",
        },
        "creationTimestamp": "2026-03-01T10:00:00Z",
        "generateName": "web-7d4b9c-",
        "labels": {"app": "web", "pod-template-hash": "7d4b9c"},
        "managedFields": [
            {"apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}, "manager": "kubelet"}
        ],
        "name": "web-7d4b9c-x2x9p",
        "namespace": "shop",
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "blockOwnerDeletion": True,
                "controller": True,
                "kind": "ReplicaSet",
                "name": "web-7d4b9c",
                "uid": "5f0a",
            }
        ],
        "resourceVersion": "123456789",
        "uid": "0b9c2b5e-6c56-4b8e-9a43-0e3b9b2b6a11",
    },
    "spec": {
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
        "containers": [
            {
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                ],
                "image": "registry.example/web:1",
                "imagePullPolicy": "IfNotPresent",
                "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 10},
                "name": "web",
                "ports": [
                    {"containerPort": 8080, "hostIP": "10.0.0.1", "hostPort": 80, "name": "http", "protocol": "TCP"}
                ],
                "readinessProbe": {"failureThreshold": 3, "grpc": {"port": 9}, "tcpSocket": {"port": 8080}},
                "resources": {
                    "claims": [],
                    "limits": {"cpu": "1", "memory": "512Mi"},
                    "requests": {"cpu": "500m", "memory": 268435456},
                },
                "terminationMessagePath": "/dev/termination-log",
                "volumeMounts": [{"mountPath": "/var/run/secrets", "name": "token", "readOnly": True}],
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "initContainers": [{"name": "proxy", "image": "p", "restartPolicy": "Always", "resources": {}}],
        "nodeName": "node-1",
        "overhead": {"cpu": "10m"},
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "schedulingGates": [{"name": "example.com/gate"}],
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
        "tolerations": [
            {
                "effect": "NoExecute",
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "tolerationSeconds": 300,
            }
        ],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "volumes": [{"name": "token", "projected": {"sources": []}}],
    },
    "status": {
        "conditions": [
            {
                "lastProbeTime": None,
                "lastTransitionTime": "2026-03-01T10:00:09Z",
                "observedGeneration": 1,
                "status": "True",
                "type": "Ready",
            }
        ],
        "containerStatuses": [
            {
                "allocatedResources": {"cpu": "500m"},
                "containerID": "containerd://" + "a" * 64,
                "image": "registry.example/web:1",
                "imageID": "registry.example/web@sha256:1",
                "lastState": {
                    "terminated": {"containerID": "containerd://b", "exitCode": 137, "reason": "OOMKilled", "signal": 9}
                },
                "name": "web",
                "ready": True,
                "resources": {"requests": {"cpu": "500m"}},
                "restartCount": 1,
                "started": True,
                "state": {"running": {"startedAt": "2026-03-01T10:00:08Z"}},
                "user": {"linux": {"gid": 0}},
            }
        ],
        "hostIP": "10.0.0.1",
        "hostIPs": [{"ip": "10.0.0.1"}],
        "phase": "Running",
        "podIP": "10.1.2.3",
        "qosClass": "Burstable",
        "startTime": "2026-03-01T10:00:00Z",
    },
}


def test_a_pod_from_a_cluster_is_read():
    pod = msgspec.json.decode(json.dumps(POD), type=Pod)
    assert pod_key(pod) == "shop/web-7d4b9c-x2x9p"
    assert pod.metadata.owner_references[0].controller is True
    web = pod.spec.containers[0]
    assert web.resources.requests == {"cpu": "500m", "memory": 268435456}
    assert (web.ports[0].host_port, web.ports[0].host_ip) == (80, "10.0.0.1")
    assert web.readiness_probe.tcp_socket.port == 8080
    assert web.env[1].value_from == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert pod.spec.init_containers[0].restart_policy == "Always"
    assert pod.spec.priority == 0
    assert pod.spec.scheduling_gates[0].name == "example.com/gate"
    assert pod.spec.tolerations[0].toleration_seconds == 300
    status = pod.status.container_statuses[0]
    assert (status.container_id, status.image_id) == ("containerd://" + "a" * 64, "registry.example/web@sha256:1")
    assert status.last_state.terminated.exit_code == 137
    assert status.resources.requests == {"cpu": "500m"}
    assert (pod.status.host_ip, pod.status.pod_ip, pod.status.qos_class) == ("10.0.0.1", "10.1.2.3", "Burstable")


def test_an_empty_pod_has_the_defaults_of_the_api():
    pod = msgspec.json.decode(b"{}", type=Pod)
    assert pod == Pod()
    assert (pod.spec.scheduler_name, pod.spec.restart_policy, pod.spec.priority) == (
        "default-scheduler",
        "Always",
        None,
    )
    assert msgspec.json.encode(pod) == b"{}"


def test_views_are_immutable():
    with pytest.raises(AttributeError):
        Pod().metadata.name = "x"


def test_what_is_read_is_written_under_the_same_names():
    pod = msgspec.convert(POD, Pod)
    written = msgspec.to_builtins(pod)
    assert written["spec"]["containers"][0]["ports"][0]["hostIP"] == "10.0.0.1"
    assert written["status"]["containerStatuses"][0]["containerID"] == "containerd://" + "a" * 64
    assert contained(written, POD)
    assert msgspec.convert(written, Pod) == pod


def contained(part, whole) -> bool:
    """Whether every leaf of `part` stands in `whole` at the same place."""
    if isinstance(part, dict):
        return all(key in whole and contained(value, whole[key]) for key, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(contained, part, whole))
    return part == whole


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (objects.PodCondition(type="Ready", status="Unknown"), {"type": "Ready", "status": "Unknown"}),
        (objects.NodeCondition(type="Ready", status="Unknown"), {"type": "Ready", "status": "Unknown"}),
        (objects.ContainerStatus(name="a"), {"name": "a"}),
    ],
)
def test_what_the_api_needs_is_never_left_out_as_a_default(view, expected):
    assert msgspec.to_builtins(view) == expected


def test_to_body_names_what_it_is():
    event = Event(metadata=objects.ObjectMeta(name="e"), type="Normal", count=1, reason="Throttled")
    body = to_body(event)
    assert (body["apiVersion"], body["kind"], body["type"], body["count"]) == ("v1", "Event", "Normal", 1)
    assert to_body(Lease())["apiVersion"] == "coordination.k8s.io/v1"
    assert to_body(Node())["kind"] == "Node"


def test_terminal_and_terminating():
    for phase, ended in {
        "": False,
        "Pending": False,
        "Running": False,
        "Unknown": False,
        "Succeeded": True,
        "Failed": True,
    }.items():
        assert is_terminal(Pod(status=objects.PodStatus(phase=phase))) is ended
    assert not is_terminating(Pod())
    assert is_terminating(Pod(metadata=objects.ObjectMeta(deletion_timestamp="2026-01-01T00:00:00Z")))


def test_a_field_of_the_wrong_type_is_an_error_that_names_it():
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.nodeName"):
        msgspec.json.decode(b'{"spec": {"nodeName": 5}}', type=Pod)
