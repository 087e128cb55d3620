"""Drills: what was rehearsed, what it did to LS and BE, and whether the node came back."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import CORES, COUNT, SHARE, Board, Query, Question, Section, Shape

_HERE: Final = '{node="$node"}'

BOARD: Final = Board(
    uid="slacktide-drills",
    title="Slacktide / Drills",
    about="Rehearsed floods: how many, with which end, and the ladder of one node while they run.",
    variable=("node", "slacktide_agent_drills_total"),
    sections=(
        Section(
            "What was rehearsed",
            (
                Question(
                    "How many drills ran in this time, and how did they end?",
                    COUNT,
                    (
                        Query("sum(increase(slacktide_agent_drills_total[$__range]))", "started"),
                        Query("sum(increase(slacktide_agent_drills_aborted_total[$__range]))", "ended early"),
                        Query("sum(increase(slacktide_agent_drills_failed_total[$__range]))", "not restored in time"),
                    ),
                    "a-drill-fails",
                    shape=Shape.NUMBER,
                ),
                Question(
                    "How many pods did drills evict, of all evictions?",
                    COUNT,
                    (
                        Query("sum(increase(slacktide_agent_evictions_of_drills_total[$__range]))", "by drills"),
                        Query("sum(increase(slacktide_agent_evictions_total[$__range]))", "all"),
                    ),
                    "a-drill-fails",
                    shape=Shape.NUMBER,
                ),
            ),
        ),
        Section(
            "One node during a drill",
            (
                Question(
                    "When did drills begin?",
                    COUNT,
                    (Query(f"increase(slacktide_agent_drills_total{_HERE}[$__rate_interval])", "begun"),),
                    "a-drill-fails",
                ),
                Question(
                    "Which rungs answered?",
                    COUNT,
                    (Query(f"slacktide_agent_rung_level{_HERE}", "{{rung}}"),),
                    "a-drill-fails",
                ),
                Question(
                    "How much room did BE lose and get back?",
                    CORES,
                    (
                        Query(f"slacktide_agent_be_quota_millis{_HERE} / 1000", "limit"),
                        Query('slacktide_agent_tier_cpu_millis{node="$node",tier="BE"} / 1000', "used"),
                    ),
                    "a-drill-fails",
                ),
                Question(
                    "Did LS feel it?",
                    SHARE,
                    (
                        Query(f"slacktide_agent_ls_short{_HERE}", "short because of BE"),
                        Query(f"slacktide_agent_ls_pressure{_HERE}", "pressure, {{kind}}"),
                    ),
                    "slacktidelshurt",
                    bad=1.0,
                ),
            ),
        ),
    ),
)
