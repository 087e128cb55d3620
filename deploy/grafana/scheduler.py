"""The scheduler and the extender: who waits and why, how long an attempt takes, which plugin takes the time."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import COUNT, RATE, SECONDS, Board, Query, Question, Section

_OURS: Final = 'job=~".*slacktide.*scheduler.*"'
"""The stock scheduler has metrics of the same names."""


def _quantile(name: str, share: float, legend: str, by: str = "le", where: str = f"{{{_OURS}}}") -> Query:
    inner = f"sum by ({by}) (rate({name}_bucket{where}[$__rate_interval]))"
    return Query(f"histogram_quantile({share}, {inner})", legend)


def _rate(name: str, by: str, legend: str, where: str = f"{{{_OURS}}}") -> Query:
    return Query(f"sum by ({by}) (rate({name}_total{where}[$__rate_interval]))", legend)


BOARD: Final = Board(
    uid="slacktide-scheduler",
    title="Slacktide / Scheduler",
    about="Queues, attempts, plugins, preemption, and the extender of the stock scheduler.",
    sections=(
        Section(
            "Who waits?",
            (
                Question(
                    "How many pods wait, and in which queue?",
                    COUNT,
                    (Query(f"sum by (queue) (scheduler_pending_pods{{{_OURS}}})", "{{queue}}"),),
                    "slacktidequeuestuck",
                ),
                Question(
                    "Which plugins refuse them?",
                    COUNT,
                    (Query(f"sum by (plugin) (scheduler_unschedulable_pods{{{_OURS}}}) or vector(0)", "{{plugin}}"),),
                    "pods-stay-pending",
                    "`slacktide explain pod` says it for one pod.",
                ),
                Question(
                    "How do attempts end?",
                    RATE,
                    (_rate("scheduler_schedule_attempts", "result", "{{result}}"),),
                    "slacktidequeuestuck",
                ),
                Question(
                    "How long from first ready to bound?",
                    SECONDS,
                    (
                        _quantile("scheduler_pod_scheduling_sli_duration_seconds", 0.5, "p50"),
                        _quantile("scheduler_pod_scheduling_sli_duration_seconds", 0.99, "p99"),
                    ),
                    "pods-stay-pending",
                    warn=5,
                    bad=60,
                ),
            ),
        ),
        Section(
            "How fast is it?",
            (
                Question(
                    "How long does an attempt take?",
                    SECONDS,
                    (
                        _quantile(
                            "scheduler_scheduling_attempt_duration_seconds", 0.99, "{{result}}, p99", "le, result"
                        ),
                        _quantile("scheduler_scheduling_algorithm_duration_seconds", 0.99, "finding a node, p99"),
                    ),
                    "the-scheduler-is-slow",
                    warn=0.1,
                    bad=1.0,
                ),
                Question(
                    "Which extension points take the time?",
                    SECONDS,
                    (
                        _quantile(
                            "scheduler_framework_extension_point_duration_seconds",
                            0.99,
                            "{{extension_point}}, p99",
                            "le, extension_point",
                        ),
                    ),
                    "the-scheduler-is-slow",
                    warn=0.05,
                    bad=0.5,
                ),
                Question(
                    "Which plugins take the time?",
                    SECONDS,
                    (
                        Query(
                            "topk(8, sum by (plugin, extension_point)"
                            f" (rate(scheduler_plugin_execution_duration_seconds_sum{{{_OURS}}}[$__rate_interval]))"
                            " / sum by (plugin, extension_point)"
                            f" (rate(scheduler_plugin_execution_duration_seconds_count{{{_OURS}}}[$__rate_interval])))",
                            "{{plugin}} {{extension_point}}",
                        ),
                    ),
                    "the-scheduler-is-slow",
                    warn=0.02,
                    bad=0.2,
                ),
                Question(
                    "Does it judge only the nodes that changed?",
                    RATE,
                    (_rate("slacktide_scheduler_cycles", "judged", "{{judged}}"),),
                    "the-scheduler-is-slow",
                    "Cycles by the nodes that were judged: `reused`, those that changed since a pod like this one;"
                    " `anew`, all of them; `alone`, all, since a plugin looks beyond single nodes.",
                ),
                Question(
                    "Do bindings succeed?",
                    RATE,
                    (
                        _rate("slacktide_scheduler_binds", "outcome", "{{outcome}}"),
                        Query(f'sum(scheduler_goroutines{{operation="binding",{_OURS}}}) or vector(0)', "under way"),
                    ),
                    "slacktideapifailing",
                ),
                Question(
                    "Does anything go wrong in it?",
                    RATE,
                    (
                        Query(
                            f"sum(rate(slacktide_scheduler_hint_errors_total{{{_OURS}}}[$__rate_interval]))"
                            " or vector(0)",
                            "hints that raised",
                        ),
                        Query(
                            f"sum(rate(scheduler_pod_scheduled_after_flush_total{{{_OURS}}}[$__rate_interval]))",
                            "woken by time alone",
                        ),
                        Query(
                            f"sum(rate(slacktide_scheduler_plugin_over_budget_total{{{_OURS}}}[$__rate_interval]))"
                            " or vector(0)",
                            "calls over budget",
                        ),
                    ),
                    "the-scheduler-is-slow",
                    warn=0.01,
                    bad=0.1,
                ),
                Question(
                    "How many pods are removed to make room?",
                    RATE,
                    (
                        Query(
                            f"sum(rate(scheduler_preemption_attempts_total{{{_OURS}}}[$__rate_interval]))", "attempts"
                        ),
                        Query(f"sum(rate(scheduler_preemption_victims_sum{{{_OURS}}}[$__rate_interval]))", "victims"),
                    ),
                    "pods-stay-pending",
                ),
            ),
        ),
        Section(
            "The extender",
            (
                Question(
                    "How are requests of the stock scheduler answered?",
                    RATE,
                    (_rate("slacktide_extender_requests", "verb, outcome", "{{verb}} {{outcome}}", ""),),
                    "slacktideextenderfailing",
                ),
                Question(
                    "How long do its answers take?",
                    SECONDS,
                    (
                        _quantile("slacktide_extender_request_duration_seconds", 0.5, "{{verb}}, p50", "le, verb", ""),
                        _quantile("slacktide_extender_request_duration_seconds", 0.99, "{{verb}}, p99", "le, verb", ""),
                    ),
                    "slacktideextenderfailing",
                    warn=0.05,
                    bad=1.0,
                ),
                Question(
                    "Is it full?",
                    COUNT,
                    (
                        Query("sum(slacktide_extender_connections)", "open connections"),
                        Query(
                            "sum(increase(slacktide_extender_connections_refused_total[10m]))",
                            "refused in ten minutes",
                        ),
                    ),
                    "slacktideextenderfailing",
                ),
                Question(
                    "What does it know?",
                    COUNT,
                    (Query("max by (type) (slacktide_extender_cache_size)", "{{type}}"),),
                    "slacktideextenderfailing",
                ),
            ),
        ),
    ),
)
