"""Alert rules: each fires when it should and not when it should not, has a runbook, and uses metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.test_docs import METRICS

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"]]
NAMES = sorted({rule["alert"] for rule in ALERTS})

NODE = '{node="n1"}'
LEADS = {'slacktide_predictor_leader{instance="a"}': "1x999", 'slacktide_predictor_leader{instance="b"}': "0x999"}
RISK = {'slacktide_predictor_asked_risk_ratio{resource="cpu"}': "0.01x9999"}


def outcomes(per_minute, violated):
    return {
        **RISK,
        'slacktide_predictor_outcomes_total{resource="cpu"}': f"0+{per_minute}x9999",
        'slacktide_predictor_violations_total{resource="cpu"}': f"0+{violated}x9999",
    }


def scheduler(pending, attempts):
    job = 'job="slacktide-system/slacktide-scheduler"'
    return {
        f'scheduler_pending_pods{{{job},queue="active"}}': f"{pending}x99",
        f'scheduler_schedule_attempts_total{{{job},result="scheduled"}}': f"0+{attempts}x99",
    }


def extender(failed, refused=0):
    return {
        'slacktide_extender_requests_total{verb="filter",outcome="judged"}': "0+100x99",
        'slacktide_extender_requests_total{verb="filter",outcome="failed"}': f"0+{failed}x99",
        "slacktide_extender_connections_refused_total": f"0+{refused}x99",
    }


def api(code, calls):
    return {
        'slacktide_api_requests_total{job="agent",code="2xx"}': "0+10x99",
        f'slacktide_api_requests_total{{job="agent",code="{code}"}}': f"0+{calls}x99",
    }


def counters(**rates):
    return {f"slacktide_agent_{name}_total{NODE}": f"0+{rate}x99" for name, rate in rates.items()}


def certificate(end):
    return {'slacktide_certificate_expiry_timestamp_seconds{job="agent",setting="report",part="ca"}': f"{end}x99"}


# (alert, series by minute, minutes until it is looked at, how many fire)
CASES = [
    ("SlacktideLSHurt", {f"slacktide_agent_ls_short{NODE}": "1x99"}, 12, 1),
    ("SlacktideLSHurt", {f"slacktide_agent_ls_short{NODE}": "1 1 0x97"}, 12, 0),
    ("SlacktideLSHurt", {f"slacktide_agent_ls_short{NODE}": " ".join(["NaN"] * 20)}, 12, 0),
    ("SlacktideWatchdogActed", {f"slacktide_agent_watchdog_total{NODE}": "0x5 1x94"}, 8, 1),
    ("SlacktideWatchdogActed", {f"slacktide_agent_watchdog_total{NODE}": "3x99"}, 8, 0),
    ("SlacktideAgentLate", counters(turns=60, late_turns=20, errors=0), 25, 1),
    ("SlacktideAgentLate", counters(turns=60, late_turns=0, errors=12), 25, 1),
    ("SlacktideAgentLate", counters(turns=60, late_turns=1, errors=0), 25, 0),
    ("SlacktideViolationBudgetBurn", outcomes(100, 15), 40, 1),
    ("SlacktideViolationBudgetBurn", outcomes(100, 15), 600, 2),
    ("SlacktideViolationBudgetBurn", outcomes(100, 3.5), 800, 1),
    ("SlacktideViolationBudgetBurn", outcomes(100, 1), 800, 0),
    ("SlacktideForecastsStale", {**LEADS, 'slacktide_predictor_forecast_age_seconds{instance="a"}': "2000x99"}, 10, 1),
    ("SlacktideForecastsStale", {**LEADS, 'slacktide_predictor_forecast_age_seconds{instance="b"}': "2000x99"}, 10, 0),
    ("SlacktideForecastsStale", {**LEADS, 'slacktide_predictor_forecast_age_seconds{instance="a"}': "400x99"}, 10, 0),
    ("SlacktideNoLeader", {'slacktide_predictor_leader{instance="a"}': "0x99"}, 5, 1),
    ("SlacktideNoLeader", {"up": "1x99"}, 5, 1),
    ("SlacktideNoLeader", LEADS, 5, 0),
    ("SlacktideConflict", {"slacktide_predictor_conflicting_nodes": "2x99"}, 7, 1),
    ("SlacktideConflict", {"slacktide_predictor_conflicting_nodes": "0x99"}, 7, 0),
    ("SlacktideHistoryDisk", {"slacktide_predictor_history_usable": "0x99"}, 7, 1),
    ("SlacktideHistoryDisk", {"slacktide_predictor_commit_failures_total": "0+1x99"}, 15, 1),
    ("SlacktideHistoryDisk", {"slacktide_predictor_history_usable": "1x99"}, 7, 0),
    ("SlacktideAgentSilent", {f"slacktide_predictor_sample_age_seconds{NODE}": "0+60x99"}, 7, 1),
    ("SlacktideAgentSilent", {f"slacktide_predictor_sample_age_seconds{NODE}": "2x99"}, 7, 0),
    ("SlacktideFight", counters(fights=1, rdt_fights=0), 25, 1),
    ("SlacktideFight", counters(fights=0, rdt_fights=2), 25, 1),
    ("SlacktideFight", counters(fights=0, rdt_fights=0), 25, 0),
    ("SlacktideEvictionsOverBudget", counters(evictions_over_budget=1, evictions_blocked=0), 12, 1),
    ("SlacktideEvictionsOverBudget", counters(evictions_over_budget=0, evictions_blocked=1), 20, 1),
    ("SlacktideEvictionsOverBudget", counters(evictions_over_budget=0, evictions_blocked=0), 20, 0),
    ("SlacktideQueueStuck", scheduler(3, 0), 12, 1),
    ("SlacktideQueueStuck", {'scheduler_pending_pods{job="slacktide-scheduler",queue="active"}': "3x99"}, 12, 1),
    ("SlacktideQueueStuck", scheduler(3, 5), 12, 0),
    ("SlacktideQueueStuck", scheduler(0, 0), 12, 0),
    ("SlacktideExtenderFailing", extender(20), 12, 1),
    ("SlacktideExtenderFailing", extender(0, 3), 12, 1),
    ("SlacktideExtenderFailing", extender(1), 12, 0),
    ("SlacktideAPIFailing", api("503", 5), 25, 1),
    ("SlacktideAPIFailing", api("unreachable", 5), 25, 1),
    ("SlacktideAPIFailing", api("404", 50), 25, 0),
    ("SlacktideAPIFailing", api("409", 50), 25, 0),
    ("SlacktideCertificateEnds", certificate(86400), 15, 1),
    ("SlacktideCertificateEnds", certificate(900), 20, 1),
    ("SlacktideCertificateEnds", certificate(7 * 86400), 20, 0),
]


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    assert {name for name, _, _, firing in CASES if firing} == set(NAMES)
    assert {name for name, _, _, firing in CASES if not firing} == set(NAMES)


def test_alerts_fire_when_they_should_and_only_then(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (Debian's package prometheus)")
    tests = [
        {
            "interval": "1m",
            "name": f"{name} {index}",
            "input_series": [{"series": series, "values": values} for series, values in given.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                    "eval_time": f"{minutes}m",
                    "exp_samples": [{"labels": "{}", "value": firing}],
                }
            ],
        }
        for index, (name, given, minutes, firing) in enumerate(CASES)
    ]
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    ran = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_alert_says_who_must_get_up_and_has_a_runbook_with_all_four_parts():
    text = RUNBOOKS.read_text()
    for rule in ALERTS:
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"].keys() == {"summary", "description"}
        section = re.search(rf"^## {rule['alert']}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]
        for part in ("**Means.**", "**Look at.**", "**Do.**", "**Escalate**"):
            assert part in section, f"{rule['alert']}: {part}"


EXPORTED = {
    METRICS.name_of(family): family.type
    for section in METRICS.SECTIONS
    for family, _ in METRICS.families(section.registry())
}
SERIES = {
    series
    for name, kind in EXPORTED.items()
    for series in ([f"{name}_bucket", f"{name}_sum", f"{name}_count"] if kind == "histogram" else [name])
}


def named(expression):
    return set(re.findall(r"\b(?:slacktide|scheduler)_[a-z0-9_]+", expression))


def test_no_rule_uses_a_metric_that_nobody_exports():
    for rule in ALERTS:
        assert named(rule["expr"]) <= SERIES, rule["alert"]
