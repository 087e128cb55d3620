# ruff: noqa: INP001 - scripts beside what they build, not a package
"""Builds the images without a container engine: `python deploy/image/build.py [--output DIR] [NAME ...]`.

Base: Debian packages, by apt (rootfs.py). Python packages: wheels, by pip, in the versions of constraints.txt. Both
come from where this machine is configured to fetch them. buildah puts them together (`--isolation chroot`,
`--storage-driver vfs`, a storage of its own that is removed again). For each image DIR gets NAME.tar (an OCI archive)
and NAME.cdx.json (bill of materials, CycloneDX); the digests are printed.

The same sources and packages give the same bytes: all times are $SOURCE_DATE_EPOCH (default: the last commit's).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import bill
import rootfs
from rootfs import BuildError, run

ROOT: Final = Path(__file__).resolve().parents[2]
PIP: Final = "pip==26.3"
_PYTHON: Final = "3.11"
_NEWEST_GLIBC: Final = 36
_SOURCES: Final = ("agent", "cli", "predictor", "scheduler_plugins", "slacktide", "standalone")
_FILES: Final = ("pyproject.toml", "README.md")


class Image(NamedTuple):
    """One image: the extras of the package that it holds, and who runs it."""

    name: str
    extras: str
    user: int


IMAGES: Final = (
    Image("slacktide", "[predictor,scheduler,cli,otel]", rootfs.UNPRIVILEGED),
    # Cgroup files of the host belong to root.
    Image("slacktide-agent", "[otel]", 0),
)


class Builder:
    """One build in a directory that its caller removes."""

    def __init__(self, work: Path, epoch: int) -> None:
        self._work = work
        self._epoch = epoch
        self._storage = ["--storage-driver", "vfs", "--root", str(work / "storage"), "--runroot", str(work / "run")]
        self.packages: list[dict[str, str]] = []

    def base(self, cache: Path) -> None:
        """The directory that all images begin with."""
        root = self._work / "rootfs"
        self.packages = rootfs.make(rootfs.fetch(cache), root)
        rootfs.compile_library(root)

    def wheel(self) -> Path:
        """The wheel of the working tree, built from a copy so that the tree stays as it is."""
        copy = self._work / "source"
        copy.mkdir()
        for name in _SOURCES:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in _FILES:
            shutil.copy(ROOT / name, copy)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(self._epoch)}
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(self._work / "own")]
        run([*command, str(copy)], env=environment)
        (made,) = (self._work / "own").glob("*.whl")
        return made

    def image(self, image: Image, wheel: Path, output: Path) -> str:
        """Build one image into `output`; its digest."""
        wheels = self._work / image.name
        _download(f"{wheel}{image.extras}", wheels)
        tag = f"localhost/{image.name}:build"
        self._bud(image, wheel, wheels, tag)
        layout = self._work / f"{image.name}-oci"
        version = wheel.name.split("-")[1]
        self._buildah("push", "--quiet", tag, f"oci:{layout}:{version}")
        _archive(layout, output / f"{image.name}.tar", self._epoch)
        with self._mounted(tag) as root:
            text = bill.of(root, image.name, version, self.packages, self._epoch)
        (output / f"{image.name}.cdx.json").write_text(text, encoding="utf-8")
        return str(json.loads((layout / "index.json").read_text())["manifests"][0]["digest"])

    def _bud(self, image: Image, wheel: Path, wheels: Path, tag: str) -> None:
        context = self._work / f"{image.name}-context"
        context.mkdir()
        (self._work / "rootfs").rename(context / "rootfs")
        wheels.rename(context / "wheels")
        shutil.copy(wheel, context / "wheels")
        shutil.copy(rootfs.HERE / "install.py", context)
        arguments = {
            "REQUIREMENT": f"slacktide{image.extras}",
            "NAME": image.name,
            "VERSION": wheel.name.split("-")[1],
            "USER_ID": f"{image.user}:{image.user}",
        }
        flags = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
        how = ["--isolation", "chroot", "--timestamp", str(self._epoch), "--layers=false", "--network", "host"]
        where = ["--file", str(rootfs.HERE / "Containerfile"), "--tag", tag, str(context)]
        self._buildah("bud", "--quiet", *how, *flags, *where)
        (context / "rootfs").rename(self._work / "rootfs")

    @contextlib.contextmanager
    def _mounted(self, tag: str) -> Iterator[Path]:
        container = self._buildah("from", "--quiet", "--pull-never", tag).strip()
        try:
            yield Path(self._buildah("mount", container).strip())
        finally:
            self._buildah("rm", container)

    def _buildah(self, *arguments: str) -> str:
        command, *rest = arguments
        return run(["buildah", *self._storage, command, *rest])


def _download(requirement: str, directory: Path) -> None:
    machine = platform.machine()
    tags = [f"manylinux_2_{minor}" for minor in range(_NEWEST_GLIBC, 4, -1)]
    tags += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
    platforms = [part for tag in tags for part in ("--platform", f"{tag}_{machine}")]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    what = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", _PYTHON, *platforms]
    where = ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(directory)]
    run([*command, *what, *where, requirement, PIP])


def _archive(layout: Path, target: Path, epoch: int) -> None:
    """An OCI layout as one file whose bytes depend on its content alone."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = epoch
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    with tarfile.open(target, "w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(layout.rglob("*")):
            archive.add(path, str(path.relative_to(layout)), recursive=False, filter=plain)


def _epoch() -> int:
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]))


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "slacktide" / "image"


def build(names: Sequence[str], output: Path) -> dict[str, str]:
    """Build the images of these names; digest of each. Raises BuildError."""
    if os.geteuid() != 0:
        raise BuildError("images are built as root: file owners in them are others than you")
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="slacktide-image-") as directory:
        builder = Builder(Path(directory), _epoch())
        with tempfile.TemporaryDirectory(prefix="debs-", dir=directory) as debs:
            builder.base(Path(debs))
        wheel = builder.wheel()
        return {image.name: builder.image(image, wheel, output) for image in IMAGES if image.name in names}


def main() -> int:
    """Build; 1 with a reason when that cannot be."""
    every = [image.name for image in IMAGES]
    parser = argparse.ArgumentParser(prog="build.py", description="Builds the images of Slacktide.")
    parser.add_argument("names", nargs="*", choices=[*every, []], metavar="NAME", help=f"of {', '.join(every)}")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "images", help="where the results go")
    chosen = parser.parse_args()
    try:
        digests = build(chosen.names or every, chosen.output)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for name, digest in digests.items():
        path = chosen.output / f"{name}.tar"
        checksum = hashlib.sha256(path.read_bytes()).hexdigest()
        sys.stdout.write(f"{name} {digest} {path} {path.stat().st_size} bytes sha256:{checksum}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
