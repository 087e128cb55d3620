from __future__ import annotations

import pytest

from slacktide.cluster.client import Client
from slacktide.cluster.credentials import Endpoint, TokenFileSource
from tests.slacktide.cluster.fakeapi import FakeApi


@pytest.fixture
def api():
    server = FakeApi()
    yield server
    server.close()


@pytest.fixture
def make_client():
    clients = []

    def make(url: str, **options) -> Client:
        source = TokenFileSource(Endpoint(url), options.pop("token_file", ""))
        options.setdefault("timeout_seconds", 5.0)
        client = Client(source, user_agent="test", **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(api, make_client):
    return make_client(api.url)
