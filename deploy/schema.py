"""Writes the settings of the daemons into the chart's values.schema.json, so that helm refuses what a daemon would.

Usage: python deploy/schema.py [--check]. Exit code 0 is written or current, 1 is out of date.
Settings that the chart decides by other values are left out: they would have no effect below `settings`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# Only now, so that the script describes the checkout that it lies in and not what happens to be installed.
import msgspec  # noqa: E402 - see above

from agent.settings import AgentSettings  # noqa: E402 - see above
from deploy.written import write_or_check  # noqa: E402 - see above
from predictor.settings import PredictorSettings  # noqa: E402 - see above
from scheduler_plugins.extender.settings import ExtenderSettings  # noqa: E402 - see above
from scheduler_plugins.settings import SchedulerSettings  # noqa: E402 - see above
from slacktide.settings import Settings  # noqa: E402 - see above

TARGET: Final = ROOT / "deploy" / "chart" / "slacktide" / "values.schema.json"
SETTINGS: Final[dict[str, type[Settings]]] = {
    "agent": AgentSettings,
    "predictor": PredictorSettings,
    "scheduler": SchedulerSettings,
    "extender": ExtenderSettings,
}
_COMMON: Final = (
    "observe",
    "cluster.server",
    "cluster.kubeconfig",
    "cluster.context",
    "cluster.token_file",
    "resources",
)
MANAGED: Final[dict[str, tuple[str, ...]]] = {
    "agent": (
        *_COMMON,
        *("node", "state_dir", "proc_root", "sys_root", "predictor", "own_cgroup", "own_memory_bytes"),
        *("observe_only", "collect.perf", "collect.gpu", "weight.core_scheduling"),
        *("report.ca_file", "report.token_file", "report.certificate_file", "report.key_file", "report.insecure"),
        *("report.server_name", "drill.listen", "drill.tls_certificate_file", "drill.tls_key_file"),
        *("drill.tls_client_ca_file", "drill.allowed_callers", "drill.load"),
    ),
    "predictor": (*_COMMON, "listen", "insecure", "history_dir", "identity", "tls", "auth.audience", "auth.agents"),
    "scheduler": (*_COMMON, "configuration", "scheduler_name", "identity"),
    "extender": (*_COMMON, "listen", "tls", "bind"),
}
"""Keys that the chart sets, or that have no meaning in a pod; a group stands for all in it."""

_TIME: Final = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h|d)$"
_SIZE: Final = r"^[0-9]+(Ki|Mi|Gi|Ti)$"


def schema() -> dict[str, Any]:
    """The chart's schema with today's settings."""
    whole: dict[str, Any] = json.loads(TARGET.read_text(encoding="utf-8"))
    whole["$defs"] = {f"{name}Settings": _of(name) for name in SETTINGS}
    return whole


def text() -> str:
    """The same as the file has it."""
    return json.dumps(schema(), indent=2) + "\n"


def _of(component: str) -> dict[str, Any]:
    (_,), parts = msgspec.json.schema_components([SETTINGS[component]])
    made: dict[str, Any] = _inlined({"$ref": f"#/$defs/{SETTINGS[component].__name__}"}, parts)
    for key in MANAGED[component]:
        _remove(made, key.split("."))
    made["description"] = f"Settings of the {component} that no other value here decides (docs/settings.md)."
    return made


def _inlined(node: Any, parts: dict[str, Any]) -> Any:
    """The schema without references, defaults and titles; what is counted in seconds or bytes takes text, too."""
    if isinstance(node, list):
        return [_inlined(item, parts) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(parts[node["$ref"].rpartition("/")[2]], parts)
    made = {key: _inlined(value, parts) for key, value in node.items() if key not in ("default", "title")}
    for name, value in made.get("properties", {}).items():
        made["properties"][name] = _with_units(name, value)
    return made


def _with_units(name: str, value: dict[str, Any]) -> dict[str, Any]:
    pattern = {"seconds": _TIME, "bytes": _SIZE}.get(name.rpartition("_")[2])
    if pattern is None or value.get("type") not in ("number", "integer"):
        return value
    description = value.pop("description", "")
    return {"description": description, "anyOf": [value, {"type": "string", "pattern": pattern}]}


def _remove(node: dict[str, Any], path: list[str]) -> None:
    """Take one key out, and what holds it once that is empty."""
    properties = node["properties"]
    inner = properties.get(path[0])
    if inner is not None and len(path) > 1:
        _remove(inner, path[1:])
        if inner["properties"]:
            return
    properties.pop(path[0], None)


def main(argv: list[str]) -> int:
    """Write the schema, or with `--check` compare it."""
    return write_or_check(TARGET, text(), argv, "python deploy/schema.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
