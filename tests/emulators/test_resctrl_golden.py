"""The golden vectors on every emulated machine: on the model alone, and through the mount."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from tests.emulators.resctrl import PROFILES, FakeHost, Model, missing, mounted
from tests.emulators.resctrl.mounting import REPOSITORY
from tests.emulators.resctrl.verify import DirectoryTree, ModelTree, busy, fits, machine, play, vectors

PLAYABLE = [name for name in PROFILES if name not in {"foreign", "few-rmids"}]
"""Vectors need a mount without groups, and an id for each of the groups that they make."""
MOUNTED = ["intel-2s", "amd-rome", "cdp", "mbps", "haswell", "mon-only", "alloc-only", "abmc", "old-kernel", "bmec"]


@pytest.mark.parametrize("profile", PLAYABLE)
def test_every_vector_on_the_model(profile):
    tree = ModelTree(Model(PROFILES[profile], host=FakeHost(1, 2)))
    facts = machine(tree)
    before = tree.read("schemata")
    wrong = {}
    for vector in vectors():
        if fits(vector, facts.has):
            outcome = play(tree, vector, facts)
            words = [] if PROFILES[profile].old_words else outcome.wording
            if outcome.wrong or words:
                wrong[vector["name"]] = outcome.wrong + words
    assert wrong == {}
    assert (tree.read("schemata"), busy(tree)) == (before, [])


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("profile", MOUNTED)
def test_every_vector_through_the_mount(profile, tmp_path):
    with mounted(profile, tmp_path) as handle:
        tree = DirectoryTree(handle.path)
        facts = machine(tree)
        played = {vector["name"]: play(tree, vector, facts) for vector in vectors() if fits(vector, facts.has)}
        assert {name: outcome.wrong for name, outcome in played.items() if outcome.wrong} == {}
        assert len(played) >= 3
        assert busy(tree) == []


def test_every_vector_is_played_somewhere():
    machines = [machine(ModelTree(Model(PROFILES[name], host=FakeHost(1)))).has for name in PLAYABLE]
    assert [vector["name"] for vector in vectors() if not any(fits(vector, has) for has in machines)] == []


def test_a_difference_is_found():
    model = Model(PROFILES["intel-2s"], host=FakeHost(1, 2))
    tree = ModelTree(model)
    facts = machine(tree)
    vector = next(vector for vector in vectors() if vector["name"] == "same domain twice")
    altered = json.loads(json.dumps(vector).replace("EINVAL", "EBUSY"))
    assert len(play(tree, altered, facts).wrong) == 2
    worded = json.loads(json.dumps(vector).replace("Duplicate", "duplicate"))
    assert (play(tree, worded, facts).wrong, len(play(tree, worded, facts).wording)) == ([], 2)
    assert errno.errorcode[errno.EINVAL] == "EINVAL"


def verify(path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.emulators.resctrl.verify", path]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_vectors_are_played_on_a_mount_by_hand_unless_it_has_groups(tmp_path):
    with mounted("intel-2s", tmp_path) as handle:
        outcome = verify(handle.path)
        assert outcome.returncode == 0, outcome.stdout
        assert outcome.stdout.splitlines()[-1].endswith("vectors played, 0 differ")
        os.mkdir(f"{handle.path}/theirs")
        refused = verify(handle.path)
        assert (refused.returncode, "theirs" in refused.stderr) == (2, True)
        assert os.path.isdir(f"{handle.path}/theirs")
    assert verify(str(tmp_path)).returncode == 2
