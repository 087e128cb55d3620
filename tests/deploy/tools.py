"""Builds helm 3, helm 4 and kustomize from their published Go modules, once for each content of their sources.

`python -m tests.deploy build` does it, into the cache beside the control plane's (`tests.cluster.tools`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster import tools
from tests.cluster.tools import ToolsMissing

HERE: Final = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """One program: the module directory below this one that requires it, its package there, variables to be set."""

    module: str
    package: str
    variables: tuple[str, ...] = ()

    @property
    def built(self) -> str:
        """Name that the compiler gives it."""
        parts = self.package.split("/")
        return parts[-2] if parts[-1].startswith("v") and parts[-1][1:].isdigit() else parts[-1]

    @property
    def linked(self) -> str:
        """Flags of the linker."""
        return " ".join(("-s", "-w", *(f"-X {variable}" for variable in self.variables)))


_HELM3: Final = "helm.sh/helm/v3"
RECIPES: Final = {
    # Without them it takes clusters for Kubernetes 1.20. Source: Makefile of helm v3.
    "helm3": Recipe(
        "helm3",
        f"{_HELM3}/cmd/helm",
        tuple(
            f"{_HELM3}/pkg/{package}.k8sVersion{part}"
            for package in ("lint/rules", "chartutil")
            for part in ("Major=1", "Minor=34")
        ),
    ),
    "helm4": Recipe("helm4", "helm.sh/helm/v4/cmd/helm"),
    "kustomize": Recipe("kustomize", "sigs.k8s.io/kustomize/kustomize/v5"),
}


def path(name: str) -> Path:
    """The built program. Raises ToolsMissing when it is not there."""
    found = _place(name) / name
    if not found.exists():
        raise ToolsMissing(f"no {name} here: run python -m tests.deploy build")
    return found


def build(name: str) -> Path:
    """Build one program if it is not there yet; other processes that want it wait. Raises ToolsMissing."""
    recipe, target = RECIPES[name], _place(name)
    target.mkdir(parents=True, exist_ok=True)
    with open(target / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / name).exists():
            with tempfile.TemporaryDirectory(dir=target) as made:
                tools.go_build(HERE / recipe.module, made, [recipe.package], ["-ldflags", recipe.linked])
                os.replace(f"{made}/{recipe.built}", target / name)
    return target / name


def _place(name: str) -> Path:
    digest = hashlib.sha256(repr(RECIPES[name]).encode())
    for file in sorted((HERE / RECIPES[name].module).iterdir()):
        digest.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    return tools.cache().parent / "chart-tools" / digest.hexdigest()[:16]
