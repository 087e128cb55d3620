"""Builds kubelet, containerd and runc from their published Go modules, and the two images that the tests run.

`python -m tests.kubelet build` does it, into the cache beside the control plane's (`tests.cluster.tools`), once for
each content of the sources. QEMU, busybox and the guest's kernel come from `tests/kernel/guest-tools`.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster import tools
from tests.cluster.tools import ToolsMissing

SOURCES: Final = Path(__file__).parent / "node"
IMAGES: Final = {"pause": ("/bin/busybox", "sleep", "2147483647"), "busybox": ("/bin/sh",)}
"""Name of an image -> its entry point. Both hold a static busybox and nothing else."""

_CONTAINERD: Final = "github.com/containerd/containerd/v2/cmd"


@dataclass(frozen=True)
class Recipe:
    """How one Go module below SOURCES is built. `packages` are what is built of it, each into a program of its name.

    seccomp: it has C in it, and is linked with that library.
    """

    packages: tuple[str, ...]
    flags: tuple[str, ...]
    seccomp: bool = False

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of the programs."""
        return tuple(package.rpartition("/")[2] for package in self.packages)


RECIPES: Final = {
    # Sandboxes have a seccomp profile whatever a pod asks for; runc without the library refuses them.
    "runc": Recipe(
        ("github.com/opencontainers/runc",),
        ("-tags", "netgo,osusergo,seccomp", "-ldflags", "-s -w -extldflags -static"),
        seccomp=True,
    ),
    "containerd": Recipe(
        (f"{_CONTAINERD}/containerd", f"{_CONTAINERD}/containerd-shim-runc-v2", f"{_CONTAINERD}/ctr"),
        ("-tags", "no_btrfs,no_devmapper,no_zfs,no_aufs", "-ldflags", "-s -w"),
    ),
    "kubelet": Recipe(("slacktide.test/kubelet",), ("-ldflags", tools.FLAGS)),
}
PROGRAMS: Final = tuple(name for recipe in RECIPES.values() for name in recipe.programs)


def cache() -> Path:
    """Where built programs are kept."""
    return tools.cache().parent / "node-tools"


def key() -> str:
    """Digest of everything that programs and images are made from."""
    digest = hashlib.sha256(repr((RECIPES, IMAGES)).encode())
    for path in sorted(p for p in SOURCES.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def directory() -> Path:
    """Where programs and images of this checkout are. Raises ToolsMissing when they are not built."""
    found = cache() / key()
    missing = [name for name in (*PROGRAMS, *map(_tar, IMAGES)) if not (found / name).exists()]
    if missing:
        raise ToolsMissing(f"no kubelet here ({', '.join(missing)} not built): run python -m tests.kubelet build")
    return found


def build() -> Path:
    """Build what is not there yet; other processes that want the same wait. Raises ToolsMissing."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise ToolsMissing("no busybox to make images of: make guest-tools")
    target = cache() / key()
    target.mkdir(parents=True, exist_ok=True)
    with open(target / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with tempfile.TemporaryDirectory(dir=target) as made:
            for name, recipe in RECIPES.items():
                if not all((target / program).exists() for program in recipe.programs):
                    environment = _with_seccomp(made) if recipe.seccomp else {"CGO_ENABLED": "0"}
                    tools.go_build(SOURCES / name, made, recipe.packages, recipe.flags, environment)
                    for program in recipe.programs:
                        os.replace(f"{made}/{program}", target / program)
            for name, command in IMAGES.items():
                Path(made, name).write_bytes(image(name, command, Path(busybox).read_bytes()))
                os.replace(f"{made}/{name}", target / _tar(name))
    return target


def _with_seccomp(directory: str) -> dict[str, str]:
    """Environment to build with libseccomp, from Debian's package, which is unpacked and not installed."""
    if shutil.which("gcc") is None:
        raise ToolsMissing("no gcc to build runc with: apt-get install gcc libc6-dev")
    tree = Path(directory, "seccomp")
    tree.mkdir()
    for command in (["apt-get", "-qq", "download", "libseccomp-dev"], ["sh", "-c", "dpkg-deb --extract *.deb ."]):
        try:
            done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ToolsMissing(f"runc needs libseccomp, and {command[0]} cannot fetch it: {error.strerror}") from error
        if done.returncode:
            raise ToolsMissing(f"runc needs libseccomp-dev: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    # Go asks pkg-config, which knows nothing of a package that is not installed.
    config = tree / "pkg-config"
    answers = f"--cflags) echo -I{tree}/usr/include ;; *) echo -L{tree}/usr/lib/x86_64-linux-gnu -lseccomp ;;"
    config.write_text(f"#!/bin/sh\ncase $1 in {answers} esac\n")
    config.chmod(0o755)
    return {"CGO_ENABLED": "1", "PKG_CONFIG": str(config)}


def image(name: str, command: tuple[str, ...], busybox: bytes) -> bytes:
    """An image as a docker archive: one layer with busybox, no registry asked.

    Source: github.com/moby/docker-image-spec, v1.2, "Combined Image JSON + Filesystem Changeset Format".
    """
    applets = ("cat", "dd", "echo", "ls", "sh", "sleep", "true")
    links = [(f"bin/{applet}", "busybox") for applet in applets]
    layer = _archive({"bin/busybox": busybox, "etc/passwd": b"root:x:0:0:root:/:/bin/sh\n"}, links)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    body = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(body).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [reference(name)], "Layers": ["layer.tar"]}]
    return _archive({config_name: body, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()})


def reference(name: str) -> str:
    """What an image is called in a pod."""
    return f"docker.io/library/{name}:local"


def _tar(name: str) -> str:
    return f"{name}.tar"


def _archive(files: dict[str, bytes], links: list[tuple[str, str]] = []) -> bytes:  # noqa: B006 - only read
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
        for name, target in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
    return buffer.getvalue()
