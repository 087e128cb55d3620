"""The documentation says what the code has: settings, metrics, defaults in the text, and links that lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.capabilities import Capabilities
from agent.metrics import AgentMetrics
from agent.settings import AgentSettings
from predictor.metrics import Metrics as PredictorMetrics
from predictor.settings import PredictorSettings
from scheduler_plugins.extender.metrics import ExtenderMetrics
from scheduler_plugins.extender.settings import ExtenderSettings
from scheduler_plugins.framework.cache import CacheSize
from scheduler_plugins.metrics import SchedulerMetrics
from scheduler_plugins.settings import SchedulerSettings
from slacktide.cluster import ClusterMetrics
from slacktide.observe import Daemon, StopSignals, build_info
from slacktide.observe.logs import _counter, _dropped
from slacktide.settings import DaemonSettings, load, options
from slacktide.settings.values import from_text
from standalone.api.metrics import Metrics as ApiMetrics
from standalone.api.settings import ApiSettings
from standalone.runner.metrics import Metrics as RunnerMetrics
from standalone.runner.settings import RunnerSettings

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
OPERATIONS = ROOT / "docs" / "operations.md"
PACKAGES = ("slacktide", "agent", "predictor", "scheduler_plugins", "standalone", "cli")
WHERE_METRICS_ARE_MADE = {
    "slacktide/observe/metrics.py",
    "slacktide/observe/logs.py",
    "slacktide/observe/daemon.py",
    "slacktide/cluster/metrics.py",
    "agent/metrics.py",
    "predictor/metrics.py",
    "scheduler_plugins/metrics.py",
    "scheduler_plugins/extender/metrics.py",
    "standalone/api/metrics.py",
    "standalone/runner/metrics.py",
}


class Idle:
    """Queue and cache of a scheduler that has nothing to do."""

    def counts(self):
        return {}

    unschedulable_by_plugin = in_flight_counts = counts

    def size(self):
        return CacheSize(0, 0, 0)


def every_daemon(registry):
    registry = Daemon("test", load(DaemonSettings, "test", [], {}), StopSignals(), []).registry
    _counter(registry)
    _dropped(registry)
    build_info(registry, "test")
    return registry


def scheduler(registry):
    SchedulerMetrics(registry).watch(Idle(), Idle())


def extender(registry):
    ExtenderMetrics(registry).watch(Idle())


SECTIONS = {
    "Every daemon": every_daemon,
    "Client of the API": ClusterMetrics,
    "Agent": lambda registry: AgentMetrics(registry, Capabilities(mode="v2", cpu_version=2)),
    "Predictor": PredictorMetrics,
    "Scheduler": scheduler,
    "Extender": extender,
    "Embedded API server": ApiMetrics,
    "Node runner": RunnerMetrics,
}


def exported(make):
    registry = CollectorRegistry()
    made = make(registry)
    registry = made if isinstance(made, CollectorRegistry) else registry
    return {family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()}


def section_of(text, title):
    return re.search(rf"^### {re.escape(title)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)[1]


@pytest.mark.parametrize("title", SECTIONS)
def test_the_metrics_of_a_daemon_are_those_that_operations_lists(title):
    listed = re.findall(r"^\| `([a-z_]+)` \|", section_of(OPERATIONS.read_text(), title), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == exported(SECTIONS[title])


def test_metrics_are_made_only_where_the_lists_are_checked():
    maker = re.compile(r"\b(?:Counter|Gauge|Histogram|Summary|Info|Enum|\w+MetricFamily|ProcessCollector)\(\s*f?\"")
    special = {"slacktide/observe/metrics.py"}
    made = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "prometheus_client" in (text := path.read_text()) and maker.search(text)
    }
    assert made | special == WHERE_METRICS_ARE_MADE


def test_every_metric_named_in_any_page_exists():
    known = set().union(*(exported(make) for make in SECTIONS.values()))
    packages = {f"slacktide_{name}" for name in PACKAGES}
    for page in PAGES:
        named = {name for name in re.findall(r"\bslacktide_[a-z_]+", page.read_text()) if name not in packages}
        assert named - known == set(), page.name


def test_the_reference_of_settings_is_current():
    command = [sys.executable, str(ROOT / "docs" / "generate_settings.py"), "--check"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert outcome.returncode == 0, outcome.stderr


DEFAULTS = {
    "agent.md": (AgentSettings,),
    "agent-eviction.md": (AgentSettings,),
    "agent-resctrl.md": (AgentSettings,),
    "drills.md": (AgentSettings,),
    "predictor.md": (PredictorSettings,),
    "scheduler-plugins.md": (SchedulerSettings,),
    "scheduler-extender.md": (ExtenderSettings,),
    "standalone.md": (ApiSettings, RunnerSettings),
}


@pytest.mark.parametrize("page", DEFAULTS)
def test_a_default_in_brackets_behind_a_setting_is_the_default(page):
    known = [option for settings in DEFAULTS[page] for option in options(settings)]
    text = (ROOT / "docs" / page).read_text()
    stated = re.findall(r"`([a-z_.]+)`\s+\(([0-9.]+[A-Za-z]*)[,)]", text)
    assert len(stated) > 1
    for key, value in stated:
        path = tuple(key.split("."))
        defaults = {option.path: (option, option.default) for option in known if option.path[-len(path) :] == path}
        fitting = [full for full, (option, default) in defaults.items() if from_text(option, value) == default]
        assert fitting, f"{page}: {key} is {[default for _, default in defaults.values()]}"


def anchors(page):
    headings = re.findall(r"^#+ +(.+?)\s*$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def without_code(text):
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {link}"
