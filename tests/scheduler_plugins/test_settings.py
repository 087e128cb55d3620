"""Settings of the scheduler: what cannot be used is said with all problems at once."""

from __future__ import annotations

import pytest

from scheduler_plugins.main import main


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--bind-workers", "0"], "bind_workers"),
        (["--configuration", "/nonexistent/scheduler.yaml"], "/nonexistent/scheduler.yaml"),
        (["--sheduler-name", "x"], "scheduler-name"),
    ],
)
def test_bad_settings_end_with_code_2_and_a_sentence(argv, words, capsys) -> None:
    assert main([*argv, "--cluster.server", "unix:/nonexistent/api.sock"]) == 2
    assert words in capsys.readouterr().err
