# ruff: noqa: INP001 - a script beside what it writes, not a package
"""Writes docs/settings.md from the settings classes of the six daemons; `--check` only says whether it is current.

Usage: python docs/generate_settings.py [--check]. Exit code 0 is written or current, 1 is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

# Only now, so that the script describes the checkout that it lies in and not what happens to be installed.
from agent.settings import AgentSettings  # noqa: E402 - see above
from deploy.written import write_or_check  # noqa: E402 - see above
from predictor.settings import PredictorSettings  # noqa: E402 - see above
from scheduler_plugins.extender.settings import ExtenderSettings  # noqa: E402 - see above
from scheduler_plugins.settings import SchedulerSettings  # noqa: E402 - see above
from slacktide.settings import Row, Settings, describe  # noqa: E402 - see above
from standalone.api.settings import ApiSettings  # noqa: E402 - see above
from standalone.runner.settings import RunnerSettings  # noqa: E402 - see above

TARGET: Final = ROOT / "docs" / "settings.md"

_HEAD: Final = """\
# Settings

<!-- Written by docs/generate_settings.py from the settings classes; `make pytest` fails when it is out of date. -->

One key is one setting. `report.spool_bytes` of the agent is

| in | written as |
|---|---|
| the YAML file (`--config FILE`) | `report:` and below it, indented, `spool_bytes: 64Mi` |
| the environment | `SLACKTIDE_AGENT_REPORT__SPOOL_BYTES=64Mi` |
| a flag | `--report.spool-bytes 64Mi` |

A flag wins over the environment, the environment over the file, the file over the default. Times (`_seconds`) also
take `250ms`, `5s`, `2m`, `1h`, `1d`; sizes (`_bytes`) also take `64Ki`, `64Mi`, `2Gi`. **R** marks what SIGHUP
takes over without a restart. How files, reloads and errors work: [operations](operations.md#settings).

Each daemon prints this for itself with `--help`, and what is in force, with where each value came from, with
`--print-settings`.
"""


@dataclass(frozen=True, slots=True)
class Daemon:
    """One section. `prefix` begins its environment variables, `page` is where the daemon is explained."""

    title: str
    prefix: str
    module: str
    page: str
    settings: type[Settings]


DAEMONS: Final = (
    Daemon("Agent", "SLACKTIDE_AGENT_", "agent", "agent.md", AgentSettings),
    Daemon("Predictor", "SLACKTIDE_PREDICTOR_", "predictor", "predictor.md", PredictorSettings),
    Daemon("Scheduler", "SLACKTIDE_SCHEDULER_", "scheduler_plugins", "scheduler-plugins.md", SchedulerSettings),
    Daemon(
        "Extender", "SLACKTIDE_EXTENDER_", "scheduler_plugins.extender_main", "scheduler-extender.md", ExtenderSettings
    ),
    Daemon("Embedded API server", "SLACKTIDE_API_", "standalone.api", "standalone.md", ApiSettings),
    Daemon("Node runner", "SLACKTIDE_RUNNER_", "standalone.runner", "standalone.md", RunnerSettings),
)


def document() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(line for daemon in DAEMONS for line in _section(daemon))])


def _section(daemon: Daemon) -> Iterator[str]:
    yield f"## {daemon.title}"
    yield ""
    yield f"`python -m {daemon.module}`, variables `{daemon.prefix}...`, explained in [{daemon.page}]({daemon.page})."
    yield ""
    yield "| key | value | default | R | meaning |"
    yield "|---|---|---|---|---|"
    for row in describe(daemon.settings):
        yield f"| `{row.key}` | {_value(row)} | {_default(row)} | {'R' if row.reloadable else ''} | {_plain(row)} |"
    yield ""


def _value(row: Row) -> str:
    """Type, unit and range in words, as few as say it."""
    if row.type == "choice":
        return f"one of {row.range}"
    kind = row.unit or row.type
    return _escaped(f"{kind}, {row.range}" if row.range else kind)


def _default(row: Row) -> str:
    return f"`{_escaped(row.default.replace(',', ', '))}`" if row.default else "empty"


def _plain(row: Row) -> str:
    text = _escaped(row.description)
    return text if text[1:2].isupper() else text[:1].upper() + text[1:]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: list[str]) -> int:
    """Write the page, or with `--check` compare it."""
    return write_or_check(TARGET, document(), argv, "python docs/generate_settings.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
