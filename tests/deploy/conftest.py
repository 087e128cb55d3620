"""helm and kustomize, where they are built."""

from __future__ import annotations

import pytest

from tests.cluster.tools import ToolsMissing
from tests.deploy import tools
from tests.deploy.chart import Helm


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
