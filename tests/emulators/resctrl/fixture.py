"""A fixture for tests that want a mounted machine: `from tests.emulators.resctrl.fixture import resctrl`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.emulators.resctrl.mounting import Handle, missing, mounted
from tests.emulators.resctrl.profiles import Profile

Mounter = Callable[..., Handle]


@pytest.fixture
def resctrl(tmp_path: Path) -> Iterator[Mounter]:
    """Mounts machines by name or as data: `resctrl("intel-2s").path`. Unmounts after the test.

    Skips the test where nothing can be mounted.
    """
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        count = 0

        def mount(profile: str | Profile = "intel-2s", options: Iterable[str] | None = None, **flags: bool) -> Handle:
            nonlocal count
            count += 1
            return stack.enter_context(mounted(profile, tmp_path / f"machine{count}", options, **flags))

        yield mount
