"""Settings out of range: the agent process does not start, and names each with its line and its range."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agent.settings import AgentSettings
from slacktide.settings import describe
from tests.patience import PATIENCE

RANGED = [row for row in describe(AgentSettings) if row.range and row.type in {"number", "whole number"}]
CHOICES = [row for row in describe(AgentSettings) if row.type == "choice"]


def refused(tmp_path, values):
    """What an agent with these values says; it must not have done anything else."""
    lines, number = {}, {}
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        lines.setdefault(group, []).append((key, f"{name}: {value}"))
    text = []
    for group, entries in sorted(lines.items()):
        if group:
            text.append(f"{group}:")
        for key, line in entries:
            text.append(f"  {line}" if group else line)
            number[key] = len(text)
    file = tmp_path / "agent.yaml"
    file.write_text("\n".join(text) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "agent", "--config", str(file), "--state-dir", str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert not os.path.exists(tmp_path / "state")
    assert "Traceback" not in done.stderr
    return number, done.stderr.splitlines()


def bounds(row):
    low, high = row.range.split(" to ")
    return float(low), float(high)


def beyond(row, side):
    low, high = bounds(row)
    value = low - 1 if side == "below" else high + 1
    return int(value) if row.type == "whole number" else value


@pytest.mark.parametrize("side", ["below", "above"])
def test_every_number_out_of_its_range_is_named_with_line_and_range(tmp_path, side):
    number, said = refused(tmp_path, {row.key: beyond(row, side) for row in RANGED})
    for row in RANGED:
        told = [line for line in said if f" {row.key}" in line and f"line {number[row.key]}:" in line]
        assert len(told) == 1, (row.key, told)
        assert row.range in told[0], told[0]


NO_NUMBERS = (".nan", ".inf", "-.inf", "1e999", "null", "[]", "{}", "'7 parsecs'", "0x10z")


@pytest.mark.parametrize("shift", [0, 4])
def test_every_number_that_is_none_is_named(tmp_path, shift):
    values = {row.key: NO_NUMBERS[(place + shift) % len(NO_NUMBERS)] for place, row in enumerate(RANGED)}
    number, said = refused(tmp_path, values)
    for row in RANGED:
        told = [line for line in said if f" {row.key}" in line and f"line {number[row.key]}:" in line]
        assert len(told) == 1, (row.key, values[row.key], told)


def test_every_choice_that_is_none_lists_the_known(tmp_path):
    assert CHOICES
    number, said = refused(tmp_path, {row.key: "loud" for row in CHOICES})
    for row in CHOICES:
        told = [line for line in said if f" {row.key}" in line and f"line {number[row.key]}:" in line]
        assert len(told) == 1, (row.key, told)
        assert all(known in told[0] for known in row.range.split(", "))
