"""The agent stays small: it imports with only its own dependencies; and the distribution has every package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
NOT_ON_A_NODE = ["pandas", "statsmodels", "numpy", "scipy", "duckdb", "aiohttp", "click", "rich", "pytest"]
NOT_OURS = {"aiohttp", "aiohttp-retry"}
"""Comes with newer kubernetes packages for their own asynchronous client, which we never import."""


def base_closure(name: str) -> dict[str, metadata.Distribution]:
    """Distributions that `name` needs without extras, by normalised name, itself left out."""
    found: dict[str, metadata.Distribution] = {}
    pending: list[tuple[str, frozenset[str]]] = [(name, frozenset())]
    done: set[tuple[str, frozenset[str]]] = set()
    while pending:
        current, extras = pending.pop()
        if (current, extras) in done:
            continue
        done.add((current, extras))
        distribution = metadata.distribution(current)
        found[current] = distribution
        for text in distribution.requires or []:
            requirement = Requirement(text)
            environments = [{"extra": extra} for extra in (extras or {""})]
            if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
                pending.append((normal(requirement.name), frozenset(requirement.extras)))
    found.pop(name)
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def link(distribution: metadata.Distribution, into: Path) -> None:
    """Link the files of `distribution` into `into`; a package that several share (google) gets its parts only."""
    for file in distribution.files or []:
        if file.parts[0] in {"..", "/"} or "__pycache__" in file.parts:
            continue
        source, target = Path(str(distribution.locate_file(file))), into / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.exists() and not target.exists():
            target.symlink_to(source)


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Path:
    """A directory with what a node has installed and nothing else."""
    directory = tmp_path_factory.mktemp("node")
    for name, distribution in base_closure("slacktide").items():
        if name not in NOT_OURS:
            link(distribution, directory)
    return directory


def on_a_node(node: Path, code: str) -> subprocess.CompletedProcess[str]:
    standard = sysconfig.get_path("stdlib")
    native = sysconfig.get_config_var("DESTSHARED") or os.path.join(standard, "lib-dynload")
    path = [standard, native, str(ROOT), str(node)]
    setup = f"import sys; sys.path[:] = {path!r}; sys.dont_write_bytecode = True\n"
    command = [sys.executable, "-I", "-S", "-c", setup + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def agent_modules() -> list[str]:
    """What runs on a node: the agent's main when it is there, and always what it stands on."""
    ground = ["slacktide.settings", "slacktide.observe", "slacktide.resources", "slacktide.kernel.hierarchy"]
    return ["agent.main", *ground] if (ROOT / "agent" / "main.py").exists() else ground


@pytest.mark.parametrize("module", agent_modules())
def test_the_agent_imports_with_only_its_own_dependencies(node, module):
    outcome = on_a_node(node, f"import {module}; print({module}.__file__)")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.startswith(str(ROOT))


def test_the_environment_of_that_test_really_lacks_the_rest(node):
    code = f"import importlib.util as u; print([n for n in {NOT_ON_A_NODE} if u.find_spec(n)])"
    outcome = on_a_node(node, code)
    assert outcome.stdout == "[]\n", outcome.stderr


def test_importing_the_agent_does_not_load_what_only_some_nodes_use(node):
    late = ["kubernetes", "pydantic", "aiohttp", "requests"]
    outcome = on_a_node(node, f"import sys, {agent_modules()[0]}; print([n for n in {late} if n in sys.modules])")
    assert outcome.stdout == "[]\n", outcome.stderr


def test_the_agent_needs_every_dependency_it_declares_to_be_installed():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {normal(Requirement(text).name) for text in declared} <= base_closure("slacktide").keys()


def test_every_package_of_the_repository_is_in_the_distribution():
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    tops = {name for name in included if not name.endswith(".*")}
    assert set(included) == {name for top in tops for name in (top, f"{top}.*")}
    not_installed = {"benchmarks", "deploy", "tests"}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - not_installed
    assert tops == packages
    assert all((ROOT / top / "py.typed").exists() for top in tops)


def test_every_folder_with_modules_is_a_package():
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]["include"]
    for top in (name for name in included if not name.endswith(".*")):
        folders = {module.parent for module in (ROOT / top).rglob("*.py")}
        assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
