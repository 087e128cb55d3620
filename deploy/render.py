"""Renders the chart into plain manifests and kustomize parts.

Usage: python deploy/render.py [--check] [--helm PROGRAM]. Exit code 0 is written or current, 1 is out of date.

    deploy/manifests/               for Kubernetes 1.33 and later, one file a component, with a kustomization
    deploy/kustomize/extender/      the extender, as a component of kustomize
    deploy/kustomize/conversion/    the policy that makes batch pods of best-effort pods, likewise, from 1.36 on

Certificates are not in it: deploy/certificates.py makes them. Hooks are not either: `slacktide withdraw` is the job
that helm runs after an uninstallation.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).resolve().parent
CHART: Final = DEPLOY / "chart" / "slacktide"
NAMESPACE: Final = "slacktide-system"
VALUES: Final = ("namespace.create=true", "tls.mode=existing")
OLDEST: Final = "1.33.0"
PARTS: Final = {"extender": (OLDEST, "extender.enabled=true"), "conversion": ("1.36.0",)}
"""Component of kustomize -> release of Kubernetes and values that add to the rest what is in it."""

_NOTE: Final = (
    "# Rendered from deploy/chart/slacktide by deploy/render.py; `make pytest` fails when it is out of date.\n"
)
_COMPONENT: Final = "app.kubernetes.io/component"
_OF_HELM: Final = ("helm.sh/chart", "app.kubernetes.io/managed-by")
_FIRST: Final = "common"

Object = dict[str, Any]


def template(helm: str, release: str, *values: str) -> list[Object]:
    """The chart's objects for a release of Kubernetes, with these values. Raises CalledProcessError."""
    sets = [part for value in values for part in ("--set", value)]
    flags = ("--namespace", NAMESPACE, "--kube-version", release, "--no-hooks")
    command = [helm, "template", "slacktide", str(CHART), *flags, *sets]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [_plain(found) for found in yaml.safe_load_all(done.stdout) if found]


def files(helm: str) -> dict[Path, str]:
    """Path and text of all that is rendered."""
    base = template(helm, OLDEST, *VALUES)
    made = dict(_by_component(base, DEPLOY / "manifests"))
    names = sorted(path.name for path in made)
    names.sort(key=lambda name: name != f"{_FIRST}.yaml")
    made[DEPLOY / "manifests" / "kustomization.yaml"] = _kustomization("Kustomization", names)
    there = {_id(found) for found in base}
    for part, (release, *more) in PARTS.items():
        extra = [found for found in template(helm, release, *VALUES, *more) if _id(found) not in there]
        made[DEPLOY / "kustomize" / part / f"{part}.yaml"] = _dump(extra)
        made[DEPLOY / "kustomize" / part / "kustomization.yaml"] = _kustomization("Component", [f"{part}.yaml"])
    return made


def _by_component(objects: list[Object], folder: Path) -> Iterator[tuple[Path, str]]:
    parts: dict[str, list[Object]] = {}
    for found in objects:
        component = found["metadata"].get("labels", {}).get(_COMPONENT, _FIRST)
        parts.setdefault(component, []).append(found)
    for component, members in parts.items():
        # Where the namespace is, the rest must come after it.
        members.sort(key=lambda found: found["kind"] != "Namespace")
        yield folder / f"{component}.yaml", _dump(members)


def _id(found: Mapping[str, Any]) -> tuple[str, str, str]:
    return found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]


def _plain(found: Object) -> Object:
    """Without the labels by which helm knows its own."""
    for place in (found, found.get("spec", {}).get("template", {})):
        labels = place.get("metadata", {}).get("labels", {})
        for label in _OF_HELM:
            labels.pop(label, None)
    return found


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _dump(objects: list[Object]) -> str:
    return _NOTE + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=10_000)


def _kustomization(kind: str, names: list[str]) -> str:
    version = "v1beta1" if kind == "Kustomization" else "v1alpha1"
    head = {"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, "resources": names}
    return _NOTE + yaml.safe_dump(head, sort_keys=False)


def stale(wanted: Mapping[Path, str]) -> list[str]:
    """Files that are missing, differ, or are there although nothing renders them."""
    found = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    folders = {path.parent for path in wanted}
    found += [path for folder in folders for path in folder.glob("*.yaml") if path not in wanted]
    return sorted(str(path.relative_to(DEPLOY.parent)) for path in found)


def main(argv: list[str]) -> int:
    """Write the files, or with `--check` compare them."""
    parser = argparse.ArgumentParser(prog="python deploy/render.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether they are current, write nothing")
    parser.add_argument("--helm", default="helm", metavar="PROGRAM", help="helm 3 or 4")
    asked = parser.parse_args(argv)
    try:
        wanted = files(asked.helm)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"{error}\n{getattr(error, 'stderr', '')}\n")
        return 1
    old = stale(wanted)
    if asked.check:
        sys.stderr.write("".join(f"{name} is out of date: run python deploy/render.py\n" for name in old))
        return 1 if old else 0
    for name in old:
        (DEPLOY.parent / name).unlink(missing_ok=True)
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
