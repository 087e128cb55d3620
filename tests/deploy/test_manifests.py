"""What is rendered from the chart: current, complete, fit for kustomize; and certificates for those without helm."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest
import yaml

from deploy import certificates, render
from tests.deploy.chart import ROOT, key, one, workloads

KUSTOMIZE = ROOT / "deploy" / "kustomize"


def load(text):
    return [found for found in yaml.load_all(text, yaml.CSafeLoader) if found]


def test_manifests_are_current(helm):
    assert render.stale(render.files(str(helm.program))) == []


def test_a_stale_file_is_named(tmp_path):
    good, old, gone = (render.DEPLOY / "manifests" / name for name in ("agent.yaml", "predictor.yaml", "gone.yaml"))
    wanted = {path: path.read_text() for path in good.parent.glob("*.yaml") if path != old}
    assert render.stale(wanted) == ["deploy/manifests/predictor.yaml"]
    assert render.stale({**wanted, old: "other", gone: "x"}) == [
        "deploy/manifests/gone.yaml",
        "deploy/manifests/predictor.yaml",
    ]
    assert good in wanted


def test_the_part_for_newer_clusters_has_the_conversion_alone(helm):
    text = render.files(str(helm.program))[render.DEPLOY / "kustomize" / "conversion" / "conversion.yaml"]
    assert {found["kind"] for found in load(text)} == {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}


@pytest.fixture
def build(kustomize):
    def run(folder):
        done = subprocess.run([kustomize, "build", str(folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return load(done.stdout)

    return run


def test_kustomize_builds_what_the_chart_makes(build, helm):
    made = {key(found) for found in build(ROOT / "deploy" / "manifests")}
    assert made == {key(found) for found in render.template(str(helm.program), render.OLDEST, *render.VALUES)}


def test_the_example_has_the_extender_and_other_images(build):
    objects = build(KUSTOMIZE / "example")
    assert one(objects, "Deployment", "slacktide-extender")
    specs = workloads(objects)
    images = {component: spec["containers"][0]["image"] for component, spec in specs.items()}
    assert images.pop("agent") == "registry.example.com/slacktide-agent:0.1.0"
    assert set(images.values()) == {"registry.example.com/slacktide:0.1.0"}
    assert specs["agent"]["containers"][0]["args"][-1] == "--evict.max-per-hour=6"


def test_plain_manifests_bear_no_mark_of_helm(helm):
    for path, text in render.files(str(helm.program)).items():
        assert "Helm" not in text, path.name
        assert "helm.sh" not in text, path.name
        assert "PRIVATE KEY" not in text, path.name


def test_certificates_are_for_what_the_manifests_mount(helm, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "certificates.py"], capture_output=True, text=True, check=True
    )
    made = load(done.stdout)
    rendered = render.template(
        str(helm.program), render.OLDEST, *render.VALUES, "extender.enabled=true", "agent.drills.enabled=true"
    )
    volumes = [volume for spec in workloads(rendered).values() for volume in spec["volumes"]]
    assert {found["metadata"]["name"] for found in made if found["kind"] == "Secret"} == {
        volume["secret"]["secretName"] for volume in volumes if "secret" in volume
    }
    (tmp_path / "ca.crt").write_text(one(made, "ConfigMap", "slacktide-ca")["data"]["ca.crt"])
    for component in certificates.COMPONENTS:
        data = one(made, "Secret", f"slacktide-{component}-tls")["data"]
        (tmp_path / "c.crt").write_bytes(base64.b64decode(data["tls.crt"]))
        for name in certificates.names(component, "slacktide-system"):
            command = ["openssl", "verify", "-x509_strict", "-verify_hostname", name]
            files = ["-CAfile", str(tmp_path / "ca.crt"), str(tmp_path / "c.crt")]
            done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
            assert done.returncode == 0, (component, name, done.stderr)
