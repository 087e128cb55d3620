from __future__ import annotations

import subprocess
import sys

import pytest

from agent.main import main
from agent.policy.registry import POLICIES
from agent.settings import AgentSettings
from slacktide.errors import SettingsError
from slacktide.settings import describe, load


def test_every_setting_is_described_and_every_number_has_a_range():
    for row in describe(AgentSettings):
        assert row.description, row.key
        if row.type in {"number", "whole number"}:
            assert row.range, row.key


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--turn-seconds", "0"], ["turn_seconds", "0.1 to 60"]),
        (["--turn-seconds", "1parsec"], ["turn_seconds"]),
        (["--beat-seconds", "2", "--turn-seconds", "1"], ["beat_seconds", "longer than"]),
        (["--suppress.engage-percent", "99"], ["engage_percent", "above"]),
        (["--turn-second", "1"], ["turn-second"]),
        (["--policies", "wieght"], ["wieght", f"known: {', '.join(POLICIES)}"]),
        (["--cgroup-root", "../x"], ["cgroup_root", "leaves its root"]),
        (["--state-dir", "/proc/nothing"], ["state_dir", "/proc/nothing"]),
    ],
)
def test_bad_settings_end_with_a_readable_message(flags, words, capfd, tmp_path):
    code = main(["--state-dir", str(tmp_path), "--cluster.server", f"unix:{tmp_path}/api.sock", *flags])
    assert code == (1 if "/proc/nothing" in flags else 2)
    message = capfd.readouterr().err
    assert all(word in message for word in words), message


def test_defaults_are_consistent():
    settings = load(AgentSettings, "agent", [], {}).settings
    assert settings == AgentSettings()
    with pytest.raises(SettingsError, match="unknown"):
        load(AgentSettings, "agent", [], {"SLACKTIDE_AGENT_TURN_SECOND": "1"})


def test_the_agent_imports_nothing_heavy():
    heavy = ("numpy", "pandas", "statsmodels", "duckdb", "aiohttp", "click", "kubernetes")
    code = f"import sys, agent.main; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
