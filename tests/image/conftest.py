"""Images for the tests: built once for the session, or those in $SLACKTIDE_IMAGES (what `make image` made)."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.image.bundle import Archive, bundle

ROOT = Path(__file__).resolve().parents[2]
AGENT = "slacktide-agent"
WHOLE = "slacktide"


def build(output, *names):
    """Build images into `output`. Skips, with the reason, where that cannot be."""
    if shutil.which("buildah") is None or os.geteuid() != 0:
        pytest.skip("no images here: buildah and root are needed (apt-get install buildah)")
    command = [sys.executable, ROOT / "deploy" / "image" / "build.py", "--output", output, *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        pytest.skip(f"no images here: {done.stderr.strip().splitlines()[0]}")
    return done.stdout


def runtime():
    """A runtime that works here. crun refuses machines that mount both versions of cgroups."""
    if shutil.which("runc") is None:
        pytest.skip("nothing runs an image here: apt-get install runc")
    return "runc"


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Directory with the archive of the agent's image, and with the other one where it was built."""
    given = os.environ.get("SLACKTIDE_IMAGES")
    if given:
        return Path(given)
    made = tmp_path_factory.mktemp("images")
    build(made, AGENT)
    return made


class Container:
    """An image that can be run, again and again; its files lie in `directory`."""

    def __init__(self, archive, directory):
        self.archive = archive
        self.directory = directory
        self.runtime = [runtime(), "--root", str(directory / "state")]
        archive.unpack(directory / "rootfs")

    def run(self, *args, shared=None):
        """Run to the end; the finished process."""
        with self.started(*args, shared=shared) as process:
            out, err = process.communicate(timeout=90)
        return process.returncode, out, err

    @contextlib.contextmanager
    def started(self, *args, shared=None):
        """Run `args`; ended and removed afterwards."""
        bundle(self.archive, self.directory, [str(one) for one in args], shared=shared)
        name = f"slacktide-{secrets.token_hex(4)}"
        command = [*self.runtime, "run", "--bundle", str(self.directory), name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                subprocess.run([*self.runtime, "kill", name, "KILL"], check=False, capture_output=True)
            process.communicate()
            subprocess.run([*self.runtime, "delete", "--force", name], check=False, capture_output=True)


@contextlib.contextmanager
def unpacked(images, name, tmp_path_factory):
    path = images / f"{name}.tar"
    if not path.exists():
        pytest.skip(f"{name} was not built: make image, then SLACKTIDE_IMAGES=build/images")
    directory = tmp_path_factory.mktemp("slacktide-bundle")
    with contextlib.closing(Archive(path)) as archive:
        try:
            yield Container(archive, directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def agent(images, tmp_path_factory):
    """The agent's image."""
    with unpacked(images, AGENT, tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="session")
def whole(images, tmp_path_factory):
    """The image of predictor, scheduler, extender and command line."""
    with unpacked(images, WHOLE, tmp_path_factory) as made:
        yield made
