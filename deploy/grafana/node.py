"""One node: who uses what, what the ladder does and why, and whether the kernel obeys."""

from __future__ import annotations

from typing import Final

from deploy.grafana import ladder
from deploy.grafana.ladder import HERE
from deploy.grafana.panels import BYTES, CORES, COUNT, RATE, SECONDS, SHARE, Board, Query, Question, Section, Shape


def _rates(*names: str) -> tuple[Query, ...]:
    return tuple(
        Query(f"rate(slacktide_agent_{name}_total{HERE}[$__rate_interval])", name.replace("_", " ")) for name in names
    )


def _predicted(name: str, resource: str, divided: str = "") -> Query:
    return Query(
        f'max(slacktide_predictor_{name}{{node="$node",resource="{resource}"}}){divided}', name.replace("_", " ")
    )


BOARD: Final = Board(
    uid="slacktide-node",
    title="Slacktide / Node",
    about="Use by tier, pressure, rungs, and what the agent writes to the kernel of one node.",
    variable=("node", "slacktide_agent_turns_total"),
    sections=(
        Section(
            "Who uses what",
            (
                Question(
                    "What do the tiers use of the CPUs?",
                    CORES,
                    (Query(f"slacktide_agent_tier_cpu_millis{HERE} / 1000", "{{tier}}"),),
                    "slacktidelshurt",
                    shape=Shape.STACK,
                ),
                Question(
                    "What do the tiers hold of the memory?",
                    BYTES,
                    (Query(f"slacktide_agent_tier_memory_bytes{HERE}", "{{tier}}"),),
                    "slacktidelshurt",
                    shape=Shape.STACK,
                ),
                Question(
                    "What does the node sell of its CPUs, and why that much?",
                    CORES,
                    tuple(_predicted(name, "cpu", " / 1000") for name in ("peak", "reclaimable", "published", "sold")),
                    "sold-more-than-published",
                    "`slacktide explain node` lists every term.",
                ),
                Question(
                    "What does the node sell of its memory?",
                    BYTES,
                    tuple(_predicted(name, "memory") for name in ("peak", "reclaimable", "published", "sold")),
                    "sold-more-than-published",
                ),
            ),
        ),
        Section(
            "What the ladder does",
            (
                ladder.ls_short("slacktidelshurt"),
                ladder.rungs("a-node-is-closed"),
                ladder.be_room("little-is-sold"),
                Question(
                    "How often is BE cut, evicted, frozen and killed?",
                    RATE,
                    _rates("cuts", "evictions", "freezes", "kills"),
                    "slacktideevictionsoverbudget",
                ),
            ),
        ),
        Section(
            "Agent and kernel",
            (
                Question(
                    "Is the control loop on time?",
                    SECONDS,
                    (
                        Query(
                            f"histogram_quantile(0.99, rate(slacktide_agent_turn_seconds_bucket{HERE}"
                            "[$__rate_interval]))",
                            "turn, p99",
                        ),
                        Query(
                            f"histogram_quantile(0.99, rate(slacktide_agent_arrival_seconds_bucket{HERE}[1h]))",
                            "new container until limited, p99 of an hour",
                        ),
                    ),
                    "slacktideagentlate",
                    warn=0.25,
                    bad=1.0,
                ),
                Question(
                    "Does anything go wrong in it?",
                    RATE,
                    _rates("late_beats", "late_turns", "errors", "refused", "journal_errors", "watchdog"),
                    "slacktideagentlate",
                    warn=0.01,
                    bad=0.1,
                ),
                Question(
                    "Does somebody else write the same knobs?",
                    RATE,
                    _rates("writes", "drift", "fights", "mismatch"),
                    "slacktidefight",
                ),
                Question(
                    "Do BE threads stay where they were put?",
                    RATE,
                    _rates("spread_new", "spread_moves", "spread_foreign"),
                    "slacktidelshurt",
                ),
                Question(
                    "What happens to BE's share of cache and memory bandwidth?",
                    RATE,
                    _rates("rdt_writes", "rdt_moved", "rdt_refused", "rdt_drift"),
                    "slacktidefight",
                    "Nothing moves on a node without resctrl: the table beside says what it lacks.",
                ),
                Question(
                    "What does this node lack?",
                    COUNT,
                    (Query(f"max by (what, reason) (slacktide_agent_skipped_info{HERE})"),),
                    "what-a-node-lacks",
                    shape=Shape.TABLE,
                ),
                Question(
                    "What does the agent itself cost?",
                    SHARE,
                    (
                        Query(
                            'rate(slacktide_process_cpu_seconds_total{node="$node",job=~".*agent.*"}[$__rate_interval])',
                            "of one core",
                        ),
                    ),
                    "slacktideagentlate",
                    warn=0.05,
                    bad=0.1,
                ),
                Question(
                    "Do its samples arrive?",
                    RATE,
                    _rates("samples_sent", "samples_acknowledged", "samples_refused", "spool_drops"),
                    "slacktideagentsilent",
                ),
            ),
        ),
    ),
)
