import pytest

from tests.whole.support import started


@pytest.fixture(scope="module")
def shared():
    with started() as running:
        yield running


@pytest.fixture
def up(shared):
    yield shared
    shared.clear()
