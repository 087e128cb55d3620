"""The predictor: is the forecast good, does news come in, do numbers go out."""

from __future__ import annotations

from typing import Final

from deploy.grafana.panels import BYTES, COUNT, RATE, SECONDS, SHARE, Board, Query, Question, Section


def _quantile(name: str, share: float, legend: str, by: str = "le") -> Query:
    inner = f"sum by ({by}) (rate(slacktide_predictor_{name}_bucket[$__rate_interval]))"
    return Query(f"histogram_quantile({share}, {inner})", legend)


BOARD: Final = Board(
    uid="slacktide-predictor",
    title="Slacktide / Predictor",
    about="Score of every model, calibration, ingest, publishing and the predictor's own state.",
    sections=(
        Section(
            "Is the forecast good?",
            (
                Question(
                    "How often does the use rise above each model's answer?",
                    SHARE,
                    (
                        Query(
                            "max by (resource, model) (slacktide_predictor_model_violation_ratio)",
                            "{{resource}} {{model}}",
                        ),
                        Query("max by (resource) (slacktide_predictor_asked_risk_ratio)", "{{resource}}, asked"),
                    ),
                    "slacktideviolationbudgetburn",
                    warn=0.02,
                    bad=0.05,
                ),
                Question(
                    "How much does each model hold back?",
                    SHARE,
                    (
                        Query(
                            "max by (resource, model) (slacktide_predictor_model_reserve_ratio)",
                            "{{resource}} {{model}}",
                        ),
                    ),
                    "little-is-sold",
                    "Mean answer as a share of the highest use of seven days: less is more to sell.",
                ),
                Question(
                    "Which model is published?",
                    COUNT,
                    (Query("max by (resource, model) (slacktide_predictor_model_champion)", "{{resource}} {{model}}"),),
                    "slacktideviolationbudgetburn",
                ),
                Question(
                    "How much does calibration add?",
                    SHARE,
                    (
                        Query(
                            "max by (resource, model) (slacktide_predictor_model_shift)",
                            "{{resource}} {{model}}",
                        ),
                    ),
                    "slacktideviolationbudgetburn",
                ),
                Question(
                    "What made the nodes' peaks?",
                    COUNT,
                    (
                        Query(
                            "max by (resource, path, model) (slacktide_predictor_peaks)",
                            "{{resource}} {{path}} {{model}}",
                        ),
                        Query("max by (resource) (slacktide_predictor_widened_peaks)", "{{resource}} widened"),
                    ),
                    "slacktideforecastsstale",
                ),
                Question(
                    "Do forecasts come in time?",
                    SECONDS,
                    (
                        _quantile("step_seconds", 0.99, "forecast of one resource, p99"),
                        _quantile("pass_seconds", 0.99, "pass over all nodes, p99"),
                        Query("min(slacktide_predictor_forecast_age_seconds)", "age of what the peaks rest on"),
                    ),
                    "slacktideforecastsstale",
                    warn=600,
                    bad=900,
                ),
            ),
        ),
        Section(
            "Does news come in?",
            (
                Question(
                    "How many samples become durable, and how many do not?",
                    RATE,
                    (
                        Query("sum(rate(slacktide_predictor_samples_total[$__rate_interval]))", "stored"),
                        Query(
                            "sum(rate(slacktide_predictor_duplicate_samples_total[$__rate_interval]))", "known already"
                        ),
                        Query(
                            "sum by (reason) (rate(slacktide_predictor_refused_samples_total[$__rate_interval]))"
                            " or vector(0)",
                            "refused {{reason}}",
                        ),
                    ),
                    "samples-are-refused",
                ),
                Question(
                    "How long until a sample is safe?",
                    SECONDS,
                    (
                        _quantile("ack_seconds", 0.5, "acknowledged, p50"),
                        _quantile("ack_seconds", 0.99, "acknowledged, p99"),
                        _quantile("commit_seconds", 0.99, "durable write, p99"),
                    ),
                    "slacktidehistorydisk",
                    warn=5,
                    bad=30,
                ),
                Question(
                    "How many agents are connected, and how much waits?",
                    COUNT,
                    (
                        Query("sum(slacktide_predictor_streams)", "agents"),
                        Query("sum(slacktide_predictor_waiting_samples)", "samples that wait"),
                    ),
                    "slacktideagentsilent",
                ),
                Question(
                    "Whose clock is wrong?",
                    SECONDS,
                    (Query("topk(5, abs(max by (node) (slacktide_predictor_clock_skew_seconds)))", "{{node}}"),),
                    "a-clock-is-wrong",
                    warn=10,
                    bad=60,
                ),
            ),
        ),
        Section(
            "Do numbers go out?",
            (
                Question(
                    "Why are nodes patched, and how often does it fail?",
                    RATE,
                    (
                        Query(
                            "sum by (cause) (rate(slacktide_predictor_publications_total[$__rate_interval]))",
                            "{{cause}}",
                        ),
                        Query("sum(rate(slacktide_predictor_publish_failures_total[$__rate_interval]))", "failed"),
                        Query("sum(slacktide_predictor_waiting_writes)", "due and not out"),
                    ),
                    "slacktideapifailing",
                ),
                Question(
                    "How long from a sample to the node's number?",
                    SECONDS,
                    (_quantile("publish_lag_seconds", 0.99, "{{cause}}, p99", "le, cause"),),
                    "slacktideforecastsstale",
                    warn=30,
                    bad=60,
                ),
                Question(
                    "Does somebody else publish too?",
                    COUNT,
                    (
                        Query("max(slacktide_predictor_conflicting_nodes)", "nodes given up"),
                        Query(
                            "sum(increase(slacktide_predictor_foreign_changes_total[10m]))", "changes in ten minutes"
                        ),
                    ),
                    "slacktideconflict",
                    bad=1,
                ),
                Question(
                    "Who leads?",
                    COUNT,
                    (Query("slacktide_predictor_leader", "{{instance}}"),),
                    "slacktidenoleader",
                ),
            ),
        ),
        Section(
            "Its own state",
            (
                Question(
                    "How large is the history?",
                    BYTES,
                    (Query("max(slacktide_predictor_history_bytes)", "on disk"),),
                    "slacktidehistorydisk",
                ),
                Question(
                    "Is it safe?",
                    COUNT,
                    (
                        Query("min(slacktide_predictor_history_usable)", "usable"),
                        Query(
                            "sum(increase(slacktide_predictor_commit_failures_total[1h]))",
                            "writes that failed in an hour",
                        ),
                        Query(
                            "sum(increase(slacktide_predictor_history_days_dropped_total[1d]))",
                            "days dropped early in a day",
                        ),
                    ),
                    "slacktidehistorydisk",
                ),
                Question(
                    "What does it cost?",
                    COUNT,
                    (
                        Query(
                            'sum by (instance) (rate(slacktide_process_cpu_seconds_total{job=~".*predictor.*"}'
                            "[$__rate_interval]))",
                            "{{instance}}, cores",
                        ),
                    ),
                    "sizing",
                    warn=1.0,
                    bad=2.0,
                ),
                Question(
                    "How much memory does it hold?",
                    BYTES,
                    (Query('slacktide_process_resident_memory_bytes{job=~".*predictor.*"}', "{{instance}}"),),
                    "sizing",
                ),
            ),
        ),
    ),
)
