"""The pages on how to add something: their example, put where they say and registered as they say, passes its tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILE = re.compile(r"`(\S+/(\w+)\.py)`[^`\n]*:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

LOAD = """
import importlib.util
import sys

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""

POLICY = """
from agent.policy.registry import POLICIES
module = load("agent.policy.ceiling", {path!r})
later = [name for name in POLICIES if name not in ("batch_limits", "weight")]
moved = {{name: POLICIES.pop(name) for name in later}}
POLICIES.update({{module.Ceiling.name: module.Ceiling, **moved}})
"""

MODEL = """
import predictor.models
assert "same_hours" not in predictor.models.known()
load("predictor.models.same_hours", {path!r})
predictor.models._MODULES["same_hours"] = "predictor.models.same_hours"
"""

PLUGIN = """
import scheduler_plugins.plugins as plugins
plugins._MODULES = (*plugins._MODULES, load("scheduler_plugins.plugins.no_batch", {path!r}))
"""


@pytest.mark.parametrize(("thing", "register"), [("policy", POLICY), ("model", MODEL), ("plugin", PLUGIN)])
def test_the_example_of_a_page_works_as_it_stands(tmp_path, thing, register):
    page = (ROOT / "docs" / f"how-to-add-a-{thing}.md").read_text()
    files = {
        path: code for path, _, code in FILE.findall(page) if not code.startswith(("POLICIES", "_MODULES", "class"))
    }
    (source,) = [path for path in files if not path.startswith("tests/")]
    (test,) = [path for path in files if path.startswith("tests/")]
    for path, code in files.items():
        (tmp_path / Path(path).name).write_text(code)
    module = tmp_path / Path(source).name
    (tmp_path / "conftest.py").write_text(LOAD + register.format(path=str(module)))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / Path(test).name)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    for arguments in (["format", "--check"], ["check"]):
        lint = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(ROOT / source), "-"]
        checked = subprocess.run(
            lint, cwd=ROOT, input=files[source], capture_output=True, text=True, timeout=60, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("thing", ["policy", "model", "plugin"])
def test_files_and_names_that_a_page_tells_of_are_there(thing):
    page = (ROOT / "docs" / f"how-to-add-a-{thing}.md").read_text()
    named = re.findall(r"`((?:agent|predictor|scheduler_plugins|tests|docs)/[\w/.-]+)`", page)
    examples = {"ceiling", "same_hours", "no_batch", "NAME", "CONTROLLER"}
    known = [path for path in named if not any(word in path for word in examples)]
    assert known
    assert [path for path in known if not (ROOT / path).exists()] == []
