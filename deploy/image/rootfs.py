# ruff: noqa: INP001 - scripts beside what they build, not a package
"""The base of the images: a directory made of Debian packages, without a package manager or a shell in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
CODENAME: Final = "bookworm"
UNPRIVILEGED: Final = 65532
"""User and group of what needs no root."""

_MERGED: Final = ("bin", "sbin", "lib", "lib64")
_DIRECTORIES: Final = {"tmp": 0o1777, "run": 0o755, "proc": 0o555, "sys": 0o555, "dev": 0o755, "root": 0o700}
_DROPPED: Final = ("usr/share/man", "usr/share/lintian", "usr/share/locale", "usr/share/bug", "usr/share/menu")
# Modules that only development or a terminal needs.
_UNUSED: Final = ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo", "test", "curses")


class BuildError(Exception):
    """Something that the build needs is not there; the text says what to do."""


def packages() -> list[str]:
    """Names of the Debian packages."""
    lines = (HERE / "packages.txt").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def run(command: list[str], **more: object) -> str:
    """Output of a command. Raises BuildError with the end of what it said."""
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, **more)  # type: ignore[call-overload]  # keyword arguments of subprocess.run, passed on
    except FileNotFoundError as error:
        raise BuildError(f"{command[0]} is not installed: apt-get install {command[0]}") from error
    if done.returncode:
        words = "\n".join((done.stderr or done.stdout).strip().splitlines()[-12:])
        raise BuildError(f"{' '.join(command[:3])} failed with {done.returncode}:\n{words}")
    return str(done.stdout)


def fetch(directory: Path) -> list[Path]:
    """Download the packages into `directory`; their files, by name. apt checks their signatures. Raises BuildError."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    if f"VERSION_CODENAME={CODENAME}" not in release:
        raise BuildError(f"deploy/image/packages.txt is for Debian {CODENAME}; run this on such a machine")
    directory.mkdir(parents=True, exist_ok=True)
    # The unprivileged user that apt would fetch with cannot write here.
    run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *packages()], cwd=directory)
    return sorted(directory.glob("*.deb"))


def make(archives: list[Path], root: Path) -> list[dict[str, str]]:
    """Unpack into `root`; what each package is (Package, Version, Architecture, Source). Raises BuildError."""
    root.mkdir()
    root.chmod(0o755)
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for name, mode in _DIRECTORIES.items():
        (root / name).mkdir(exist_ok=True)
        (root / name).chmod(mode)
    status = root / "var/lib/dpkg/status.d"
    found = []
    for archive in archives:
        # The links above must stay: dpkg-deb --extract would put directories in their place.
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as tar:
            run(["tar", "--extract", "--keep-directory-symlink", "--directory", str(root)], stdin=tar.stdout)
        fields = run(["dpkg-deb", "--field", str(archive)])
        found.append(_fields(fields))
        status.mkdir(parents=True, exist_ok=True)
        # Scanners of images look here where there is no package manager.
        (status / found[-1]["Package"]).write_text(fields, encoding="utf-8")
    _trim(root)
    _accounts(root)
    return found


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith(" "))
    return {key: value.strip() for key, _, value in pairs}


def _trim(root: Path) -> None:
    for name in _DROPPED:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in _UNUSED:
        shutil.rmtree(root / "usr/lib/python3.11" / name, ignore_errors=True)
    # Licences stay, changelogs go.
    for path in sorted((root / "usr/share/doc").rglob("*")):
        if path.is_file() and path.name != "copyright":
            path.unlink()


def _accounts(root: Path) -> None:
    etc = root / "etc"
    etc.mkdir(exist_ok=True)
    lines = ("root:x:0:0:root:/root:/sbin/nologin", f"nonroot:x:{UNPRIVILEGED}:{UNPRIVILEGED}::/tmp:/sbin/nologin")
    (etc / "passwd").write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    (etc / "group").write_text(f"root:x:0:\nnonroot:x:{UNPRIVILEGED}:\n", encoding="ascii")
    (etc / "nsswitch.conf").write_text("hosts: files dns\n", encoding="ascii")


def compile_library(root: Path) -> None:
    """Byte code for Python's own library, made by the Python of the image so that it is what that one reads."""
    words = (
        "import compileall, py_compile\n"
        "mode = py_compile.PycInvalidationMode.UNCHECKED_HASH\n"
        "compileall.compile_dir('/usr/lib/python3.11', maxlevels=20, quiet=2, workers=1, invalidation_mode=mode)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    run(["chroot", str(root), "/usr/bin/python3", "-c", words], env=environment)


if __name__ == "__main__":
    sys.exit("this is a part of build.py")
