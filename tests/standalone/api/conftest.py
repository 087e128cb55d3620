from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from prometheus_client import CollectorRegistry

from standalone.api.server import ApiServer
from standalone.api.settings import ApiSettings
from tests.standalone.api.client import Client, Process


@pytest.fixture(scope="module")
def served():
    """A server in this process, shared by the tests of a module; each uses a namespace of its own."""
    folder = tempfile.mkdtemp(prefix="sapi", dir="/tmp")
    settings = ApiSettings(
        socket=f"{folder}/s",
        database=f"{folder}/db",
        log_dir=f"{folder}/logs",
        listen="127.0.0.1:0",
        token_file=f"{folder}/token",
        kubeconfig_file=f"{folder}/kubeconfig",
    )
    server = ApiServer(settings, CollectorRegistry())
    try:
        server.start()
        yield server, settings
    finally:
        server.stop()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def api(served):
    return Client(served[1].socket)


@pytest.fixture
def space(api, request):
    """Path of a fresh namespace."""
    name = f"t{os.urandom(4).hex()}"
    assert api.post("/api/v1/namespaces", {"metadata": {"name": name}}).code == 201
    return f"/api/v1/namespaces/{name}"


@pytest.fixture
def process():
    """Makes servers in processes of their own; all are stopped at the end."""
    made = []

    def make(*flags):
        made.append(Process(*flags))
        return made[-1]

    yield make
    for found in made:
        found.close()
