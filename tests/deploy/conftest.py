"""helm and kustomize, where they are built, and a control plane on which pods need accounts, as in a real cluster."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

from slacktide.cluster import NAMESPACES
from slacktide.cluster.errors import AlreadyExists
from tests.cluster import harness
from tests.cluster.tools import ToolsMissing
from tests.deploy import tools
from tests.deploy.chart import NAMESPACE, Helm


def program(name):
    try:
        return tools.path(name)
    except ToolsMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def helm():
    return Helm(program("helm3"))


@pytest.fixture(scope="session", params=["helm3", "helm4"])
def any_helm(request):
    return Helm(program(request.param))


@pytest.fixture(scope="session")
def kustomize():
    return program("kustomize")


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    reason = harness.missing()
    if reason is not None:
        pytest.skip(reason)
    flags = {"--disable-admission-plugins": "TaintNodesByCondition"}
    started = harness.ControlPlane(tmp_path_factory.mktemp("plane"), flags=flags)
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture
def client(plane):
    with contextlib.closing(plane.client()) as made:
        yield made


@pytest.fixture
def namespace(client):
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    with contextlib.suppress(AlreadyExists):
        client.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
    return NAMESPACE


@pytest.fixture
def short():
    """A directory whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        yield Path(folder)
