"""The configurations that docs/scheduler-plugins.md shows, by schedulerName: stories run with what people read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.scheduler_plugins.rig import Rig

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "scheduler-plugins.md"
_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def texts() -> dict[str, str]:
    """YAML text of each example."""
    found = {}
    for text in _BLOCK.findall(PAGE.read_text()):
        data = yaml.safe_load(text)
        if data.get("kind") == "KubeSchedulerConfiguration":
            (profile,) = data["profiles"]
            found[profile["schedulerName"]] = text
    return found


def story(name: str, *extra: Any) -> Rig:
    """A scheduler that runs with the example `name`; its pods must name it."""
    return Rig(None, *extra, file=yaml.safe_load(texts()[name]))


def table(rig: Rig, pod: str) -> dict[str, Any]:
    """The newest cycle of a pod as the debug endpoint shows it, with scores by node."""
    shown = next(cycle.shown() for cycle in rig.records.last() if cycle.pod == f"default/{pod}")
    return shown | {"by_node": {row["node"]: row for row in shown.get("scores", [])}}
