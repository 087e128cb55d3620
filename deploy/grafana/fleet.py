"""The whole cluster at a glance: what is sold, what it is worth, whether LS pays."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import BYTES, CORES, COUNT, RATE, SECONDS, SHARE, Board, Query, Question, Section, Shape

LEADS: Final = "* on (instance) group_left () slacktide_predictor_leader"
"""Both replicas of the predictor export the same sums; only the leader's count."""


def _fleet(unit: str, terms: str) -> str:
    return f'sum by (term) (slacktide_predictor_fleet_{unit}{{term=~"{terms}"}} {LEADS})'


_TIER_CPU: Final = "slacktide_agent_tier_cpu_millis"
_IDLE: Final = (
    f'(sum(slacktide_predictor_fleet_cpu_millis{{term="capacity"}} {LEADS}) - sum({_TIER_CPU}{{tier=~"LS|SYSTEM"}}))'
)

BOARD: Final = Board(
    uid="slacktide-fleet",
    title="Slacktide / Fleet",
    about="What best-effort work buys and gets, and whether latency-sensitive work pays for it.",
    sections=(
        Section(
            "What is sold",
            (
                Question(
                    "How many cores may BE buy, and how many has it bought?",
                    CORES,
                    (Query(f"{_fleet('cpu_millis', 'reclaimable|published|sold')} / 1000", "{{term}}"),),
                    "sold-more-than-published",
                    "Published is what the nodes' status says; it never falls below what is sold already.",
                ),
                Question(
                    "How much memory may BE buy, and how much has it bought?",
                    BYTES,
                    (Query(_fleet("memory_bytes", "reclaimable|published|sold"), "{{term}}"),),
                    "sold-more-than-published",
                ),
                Question(
                    "What do the tiers use of the CPUs?",
                    CORES,
                    (Query(f"sum by (tier) ({_TIER_CPU}) / 1000", "{{tier}}"),),
                    "slacktidelshurt",
                    shape=Shape.STACK,
                ),
                Question(
                    "What share of the CPU that LS leaves idle does BE use?",
                    SHARE,
                    (Query(f'clamp_max(sum({_TIER_CPU}{{tier="BE"}}) / clamp_min({_IDLE}, 1), 1)', "used by BE"),),
                    "little-is-sold",
                    "Where LS leaves nothing idle, all of that nothing is used.",
                ),
                Question(
                    "How many core hours did BE get in this time?",
                    "suffix: core h",
                    (
                        Query(
                            f'sum(avg_over_time({_TIER_CPU}{{tier="BE"}}[$__range])) / 1000 * $__range_s / 3600',
                            "core hours",
                        ),
                    ),
                    "little-is-sold",
                    shape=Shape.NUMBER,
                ),
                Question(
                    "Which namespaces get it?",
                    CORES,
                    (
                        Query(
                            "topk(10, sum by (namespace)"
                            " (rate(slacktide_agent_be_cpu_seconds_total[$__rate_interval])))",
                            "{{namespace}}",
                        ),
                    ),
                    "little-is-sold",
                    "`slacktide savings` adds them up.",
                    shape=Shape.STACK,
                ),
                Question(
                    "How many nodes sell nothing?",
                    COUNT,
                    (
                        Query(f"sum(slacktide_predictor_closed_nodes {LEADS})", "closed"),
                        Query("sum(slacktide_predictor_streams)", "nodes that report"),
                    ),
                    "a-node-is-closed",
                    warn=1,
                ),
            ),
        ),
        Section(
            "Does LS pay?",
            (
                Question(
                    "On which nodes is LS short of CPU?",
                    SHARE,
                    (
                        Query(
                            "topk(10, max by (node) (avg_over_time(slacktide_agent_ls_short[$__rate_interval])))",
                            "{{node}}",
                        ),
                    ),
                    "slacktidelshurt",
                    "Share of the time in which LS was short because of BE; the ten worst.",
                    warn=0.01,
                    bad=0.1,
                ),
                Question(
                    "How often is BE cut, evicted and killed?",
                    RATE,
                    (
                        Query("sum(rate(slacktide_agent_cuts_total[$__rate_interval]))", "cuts"),
                        Query("sum(rate(slacktide_agent_evictions_total[$__rate_interval]))", "evictions"),
                        Query("sum(rate(slacktide_agent_kills_total[$__rate_interval]))", "kills"),
                    ),
                    "slacktideevictionsoverbudget",
                ),
                Question(
                    "Does LS use more than was forecast more often than asked?",
                    SHARE,
                    (
                        Query(
                            "sum by (resource) (increase(slacktide_predictor_violations_total[6h]))"
                            " / sum by (resource) (increase(slacktide_predictor_outcomes_total[6h]))",
                            "{{resource}}, measured over 6 h",
                        ),
                        Query("max by (resource) (slacktide_predictor_asked_risk_ratio)", "{{resource}}, asked"),
                    ),
                    "slacktideviolationbudgetburn",
                    "A forecast is judged when its horizon has passed: there is no answer in the first hour.",
                    warn=0.02,
                    bad=0.05,
                ),
            ),
        ),
        Section(
            "Is it alive?",
            (
                Question(
                    "How old are the forecasts, and the oldest news of a node?",
                    SECONDS,
                    (
                        Query(f"max(slacktide_predictor_forecast_age_seconds {LEADS})", "slot that the peaks rest on"),
                        Query("max(slacktide_predictor_sample_age_seconds)", "oldest newest sample"),
                    ),
                    "slacktideforecastsstale",
                    warn=600,
                    bad=900,
                ),
                Question(
                    "Do all agents reach the predictor?",
                    COUNT,
                    (
                        Query("count(slacktide_agent_predictor_connected)", "agents"),
                        Query("sum(slacktide_agent_predictor_connected)", "connected"),
                    ),
                    "slacktideagentsilent",
                ),
                Question(
                    "What calls to the Kubernetes API fail?",
                    RATE,
                    (
                        Query(
                            'sum by (code) (rate(slacktide_api_requests_total{code!="2xx"}[$__rate_interval]))'
                            " or vector(0)",
                            "{{code}}",
                        ),
                    ),
                    "slacktideapifailing",
                    warn=0.1,
                    bad=1.0,
                ),
            ),
        ),
    ),
)
