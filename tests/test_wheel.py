"""The distribution as people install it: built, complete, importable, without what is only for development."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("slacktide", "agent", "predictor", "scheduler_plugins", "standalone", "cli")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that no build directory is left in the tree."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for package in (*PACKAGES, "tests", "benchmarks"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(source / "dist")]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (source / "dist").glob("*.whl")
    return path


def test_every_module_and_nothing_else_is_in_it(wheel):
    have = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    want = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for pattern in ("*.py", "*.pyi", "py.typed", "weights/*.npz", "weights/*.json")
        for path in (ROOT / package).rglob(pattern)
    }
    assert have == want


def test_its_commands_can_be_imported_from_it(wheel, tmp_path):
    modules = [target.partition(":")[0] for target in PROJECT["project"]["scripts"].values()]
    modules += ["standalone.api.main", "standalone.runner.main", "standalone.up", "standalone.load.__main__"]
    script = (
        "import importlib, sys\n"
        f"sys.path.insert(0, {str(wheel)!r})\n"
        f"found = [importlib.import_module(name).__file__ for name in {modules!r}]\n"
        f"assert all(path.startswith({str(wheel)!r}) for path in found), found\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
