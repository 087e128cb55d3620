"""Settings of the scheduler: what cannot be used is said with all problems at once."""

from __future__ import annotations

import pytest

from scheduler_plugins.host import build_framework
from scheduler_plugins.main import main
from scheduler_plugins.plugins import default_registry
from scheduler_plugins.settings import ProfileSettings, SchedulerSettings
from slacktide.errors import SettingsError
from slacktide.settings import load
from tests.scheduler_plugins.build import Silent, handle


def test_default_profile_is_complete() -> None:
    settings = load(SchedulerSettings, "scheduler", [], {}).settings
    profile = build_framework(settings, default_registry(), handle(), Silent())
    assert [p.name for p in profile.plugins] == list(default_registry().names())
    assert settings.scheduler_name == "slacktide-scheduler"


def test_unknown_plugins_are_all_named_with_the_nearest() -> None:
    profile = ProfileSettings(plugins=["NodeNmae", "Gnag", "PrioritySort", "DefaultBinder"])
    with pytest.raises(SettingsError) as caught:
        build_framework(SchedulerSettings(profile=profile), default_registry(), handle(), Silent())
    assert len(caught.value.problems) == 2
    assert "did you mean NodeName" in caught.value.problems[0]


def test_weights_come_from_flags() -> None:
    loaded = load(SchedulerSettings, "scheduler", ["--profile.weights", "BatchForecast=7"], {})
    assert loaded.settings.profile.weights == {"BatchForecast": 7}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--bind-workers", "0"], "bind_workers"),
        (["--profile.plugins", "Nonsense"], "no scheduler plugin"),
        (["--profile.weights", "NodeName=2"], "does not score"),
        (["--sheduler-name", "x"], "scheduler-name"),
    ],
)
def test_bad_settings_end_with_code_2_and_a_sentence(argv, words, capsys) -> None:
    assert main([*argv, "--cluster.server", "unix:/nonexistent/api.sock"]) == 2
    assert words in capsys.readouterr().err
