"""Drills: what was rehearsed, with which end, how soon each step came, and what it did to LS and BE."""

from __future__ import annotations

from typing import Final

from deploy.grafana import ladder
from deploy.grafana.ladder import HERE
from deploy.grafana.panels import COUNT, SECONDS, SHARE, Board, Query, Question, Section, Shape

_RUNBOOK: Final = "a-drill-fails"
_SEEN: Final = "detected|throttled|evicted|silent|relaxed|ageing|closed"
"""Steps whose time counts from the raise."""
_BACK: Final = "retaken|connected|delivered|fresh|recovered"
"""Steps whose time counts from the end of the trouble."""
_DAY: Final = 86_400.0


def _steps(name: str, steps: str) -> str:
    return f'slacktide_drill_{name}_seconds{{node="$node",step=~"{steps}"}}'


_RAN: Final = Section(
    "What was rehearsed",
    (
        Question(
            "How many drills ran in this time, and how did they end?",
            COUNT,
            (
                Query("round(sum(increase(slacktide_agent_drills_total[$__range])))", "started"),
                Query("round(sum(increase(slacktide_agent_drills_aborted_total[$__range])))", "ended early"),
                Query("round(sum(increase(slacktide_agent_drills_failed_total[$__range])))", "not restored in time"),
            ),
            _RUNBOOK,
            shape=Shape.NUMBER,
        ),
        Question(
            "How many pods did drills evict, of all evictions?",
            COUNT,
            (
                Query("round(sum(increase(slacktide_agent_evictions_of_drills_total[$__range])))", "by drills"),
                Query("round(sum(increase(slacktide_agent_evictions_total[$__range])))", "all"),
            ),
            _RUNBOOK,
            shape=Shape.NUMBER,
        ),
        Question(
            "How did the drills of each kind end since the agents started?",
            COUNT,
            (Query("sum by (kind, outcome) (slacktide_drill_ended_total)"),),
            _RUNBOOK,
            "Missed: all came back, and a target was missed.",
            shape=Shape.TABLE,
        ),
        Question(
            "Where does a drill run now?",
            COUNT,
            (Query("sum by (kind) (slacktide_drill_active)", "{{kind}}"),),
            _RUNBOOK,
            "By default one node at a time.",
        ),
        Question(
            "How long ago did a drill of each kind pass?",
            SECONDS,
            (Query("time() - max by (kind) (slacktide_drill_last_passed_timestamp_seconds)", "{{kind}}"),),
            _RUNBOOK,
            "What is rehearsed weekly has passed within eight days. An agent that starts anew has forgotten its own.",
            warn=8 * _DAY,
            bad=15 * _DAY,
        ),
        Question(
            "What did LS feel at most?",
            SHARE,
            (Query("topk(10, max by (node, kind) (slacktide_drill_ls_pressure_max))", "{{node}} {{kind}}"),),
            "slacktidelshurt",
            "Highest measured LS pressure in the last drill of each kind; the ten worst nodes.",
            bad=1.0,
        ),
    ),
)

_ONE_NODE: Final = Section(
    "One node during a drill",
    (
        Question(
            "When did drills begin, and how long did they make trouble?",
            COUNT,
            (
                Query(f"increase(slacktide_agent_drills_total{HERE}[$__rate_interval])", "begun"),
                Query(f"slacktide_drill_raised{HERE}", "{{kind}} raised"),
            ),
            _RUNBOOK,
        ),
        Question(
            "How soon after the raise did each step of the last drill come?",
            SECONDS,
            (
                Query(_steps("step", _SEEN), "{{kind}} {{step}}"),
                Query(_steps("target", _SEEN), "{{kind}} {{step}}, allowed"),
            ),
            _RUNBOOK,
        ),
        Question(
            "How soon after its end was all as before?",
            SECONDS,
            (
                Query(
                    f"{_steps('step', _BACK)} - on (node, kind) group_left () {_steps('step', 'lowered')}",
                    "{{kind}} {{step}}",
                ),
                Query(_steps("target", _BACK), "{{kind}} {{step}}, allowed"),
            ),
            _RUNBOOK,
        ),
        ladder.rungs(_RUNBOOK),
        ladder.be_room(_RUNBOOK),
        ladder.ls_short("slacktidelshurt"),
    ),
)

BOARD: Final = Board(
    uid="slacktide-drills",
    title="Slacktide / Drills",
    about="Rehearsed floods: how many, with which end, how soon, and the ladder of one node while they run.",
    variable=("node", "slacktide_agent_drills_total"),
    sections=(_RAN, _ONE_NODE),
)
