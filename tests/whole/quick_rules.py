"""The alert rules with shorter durations, so that a test need not wait for hours: a minute becomes a second.

Only `for` and the windows in brackets are divided by `SCALE`. Thresholds stay as they are, also those that are seconds:
what they are compared with is measured in the product's own time.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "rules.yaml"
SCALE = 60

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WINDOW = re.compile(r"\[(\d+)([smhd])\]")


def short(duration):
    """`10m` is `10000ms`."""
    number, unit = int(duration[:-1]), duration[-1]
    return f"{number * _UNITS[unit] * 1000 // SCALE}ms"


def quick_rules():
    """The document of deploy/prometheus/rules.yaml with its durations divided."""
    document = yaml.safe_load(RULES.read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _WINDOW.sub(lambda found: f"[{short(found[1] + found[2])}]", rule["expr"])
            if "for" in rule:
                rule["for"] = short(rule["for"])
    return document


def write_quick_rules(folder):
    """The same as a file for Prometheus."""
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(quick_rules()))
    return path
