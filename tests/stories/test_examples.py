"""Every configuration on the page is accepted as it stands, through the door that a file comes in by."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler_plugins.config.load import load
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import SchedulerSettings
from tests.stories.examples import texts


def test_the_page_has_the_examples_that_the_stories_need() -> None:
    assert {"my-scheduler", "gpu-scheduler", "wear-scheduler", "packing-scheduler"} <= set(texts())


@pytest.mark.parametrize("name", texts())
def test_an_example_is_accepted_without_a_note(name: str, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(texts()[name])
    config = load(SchedulerSettings(configuration=str(file)), default_registry())
    assert [profile.name for profile in config.profiles] == [name]
    assert config.notes == ()
