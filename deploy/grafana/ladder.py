"""Panels about the ladder of one node, which more than one dashboard shows."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import CORES, COUNT, SHARE, Query, Question

HERE: Final = '{node="$node"}'
"""Selects the series of the node that the reader chose."""


def ls_short(runbook: str) -> Question:
    """Whether LS feels it."""
    return Question(
        "Is LS short of CPU?",
        SHARE,
        (
            Query(f"slacktide_agent_ls_short{HERE}", "short because of BE"),
            Query(f"slacktide_agent_ls_pressure{HERE}", "pressure, {{kind}}"),
            Query(f"slacktide_agent_steal_ratio{HERE}", "taken by the hypervisor"),
        ),
        runbook,
        "Pressure of kind psi is a share of the time, of kind run-delay seconds of waiting per CPU second.",
        bad=1.0,
    )


def rungs(runbook: str) -> Question:
    """Which rungs answer."""
    return Question(
        "Which rungs are in force?",
        COUNT,
        (Query(f"slacktide_agent_rung_level{HERE}", "{{rung}}"),),
        runbook,
        "0 is open.",
    )


def be_room(runbook: str) -> Question:
    """What BE may use, and uses."""
    return Question(
        "How much CPU may BE use?",
        CORES,
        (
            Query(f"slacktide_agent_be_quota_millis{HERE} / 1000", "limit"),
            Query('slacktide_agent_tier_cpu_millis{node="$node",tier="BE"} / 1000', "used"),
        ),
        runbook,
        "No line of the limit: there is none.",
    )
