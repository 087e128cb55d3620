"""Renders the chart, and reads what it made."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "chart" / "slacktide"
NAMESPACE = "slacktide-system"
WORKLOADS = ("DaemonSet", "StatefulSet", "Deployment", "Job")
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

EVERYTHING = {
    "namespace": {"create": True},
    "agent": {"gpu": {"enabled": True}, "resctrl": True, "coreScheduling": True, "drills": {"enabled": True}},
    "drills": {"schedule": "0 10 * * 2"},
    "extender": {"enabled": True, "bind": True, "clientCa": CERTIFICATE},
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
    "otel": {"endpoint": "https://collector.monitoring:4317", "percent": 5},
}
MATRIX: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": EVERYTHING,
    "observe only": {"agent": {"observeOnly": True, "perf": False}},
    "observe only, drills, GPUs": {
        "agent": {"observeOnly": True, "drills": {"enabled": True, "operator": False}, "gpu": {"enabled": True}}
    },
    "no scheduler": {"scheduler": {"enabled": False}, "extender": {"enabled": True}},
    "stock scheduler's configuration": {
        "scheduler": {
            "name": "batch",
            "configuration": {
                "leaderElection": {"resourceName": "mine", "resourceNamespace": "kube-public"},
                "profiles": [{"schedulerName": "batch"}],
            },
        }
    },
    "certificates that exist": {
        "tls": {"mode": "existing", "ca": CERTIFICATE, "existingSecrets": {"predictor": "one", "extender": "two"}},
        "extender": {"enabled": True},
    },
    "cert-manager": {"tls": {"mode": "certManager"}, "agent": {"drills": {"enabled": True}}},
    "one of each, no volume, no policies": {
        "predictor": {"replicas": 1, "persistence": {"enabled": False}},
        "scheduler": {"replicas": 1},
        "networkPolicy": {"enabled": False},
        "uninstall": {"enabled": False},
        "priorityClass": {"create": False},
    },
    "IPv6, digests, registry": {
        "ipFamily": "IPv6",
        "image": {"repository": "r.test/slacktide", "digest": "sha256:" + "0" * 64},
        "agentImage": {"repository": "r.test/agent", "digest": "sha256:" + "1" * 64},
        "imagePullSecrets": [{"name": "r"}],
        "agent": {"seLinuxOptions": {"type": "spc_t"}},
    },
    "names and settings": {
        "resourceNames": {"cpu": "example.com/cpu", "memory": "example.com/memory"},
        "agent": {"settings": {"evict": {"max_per_hour": 3}, "turn_seconds": "2s", "report": {"spool_bytes": "1Mi"}}},
        "predictor": {"settings": {"mid": {"enabled": True}, "forecast": {"risk": 0.02}}},
        "scheduler": {"settings": {"bind_workers": 2}},
        "extender": {"enabled": True, "settings": {"profile": {"plugins": ["BatchForecast", "ActualLoad"]}}},
    },
}
"""Combinations of values that change what is made, by what they are."""


class Refused(Exception):
    """helm said no; the text is what it said."""


@dataclass(frozen=True)
class Helm:
    """A built helm."""

    program: Path

    def run(self, *arguments: str, **environment: str) -> str:
        """Its output. Raises Refused."""
        with tempfile.TemporaryDirectory() as home:
            places = {f"HELM_{name}_HOME": home for name in ("CACHE", "CONFIG", "DATA")}
            done = subprocess.run(
                [str(self.program), *arguments],
                env={"PATH": "/usr/bin:/bin", "HOME": home, **places, **environment},
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
        if done.returncode:
            raise Refused(done.stderr + done.stdout)
        return done.stdout

    def text(self, values: dict[str, Any] | None = None, *flags: str, chart: Path = CHART) -> str:
        """What the chart makes with these values. Raises Refused."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values or {}, file)
            file.flush()
            given = ("--values", file.name, "--namespace", NAMESPACE, "--kube-version", "1.36.0", *flags)
            return self.run("template", "slacktide", str(chart), *given)

    def template(self, values: dict[str, Any] | None = None, *flags: str, chart: Path = CHART) -> list[dict[str, Any]]:
        """The same as objects."""
        text = self.text(values, *flags, chart=chart)
        return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]


def key(found: dict[str, Any]) -> tuple[str, str, str]:
    """What is unique to an object: kind, namespace, name."""
    return found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    """The object of that kind and name."""
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def workloads(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Component -> its pod spec."""
    made = [found for found in objects if found["kind"] in WORKLOADS]
    made += [found["spec"]["jobTemplate"] for found in objects if found["kind"] == "CronJob"]
    return {
        found["metadata"]["labels"]["app.kubernetes.io/component"]: found["spec"]["template"]["spec"] for found in made
    }
