"""The documentation says what the code has: settings, metrics, defaults in the text, and links that lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.settings import AgentSettings
from predictor.settings import PredictorSettings
from scheduler_plugins.extender.settings import ExtenderSettings
from scheduler_plugins.settings import SchedulerSettings
from slacktide.settings import options
from slacktide.settings.values import from_text
from standalone.api.settings import ApiSettings
from standalone.runner.settings import RunnerSettings

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PACKAGES = ("slacktide", "agent", "predictor", "scheduler_plugins", "standalone", "cli")
WHERE_METRICS_ARE_MADE = {
    "slacktide/observe/metrics.py",
    "slacktide/observe/logs.py",
    "slacktide/observe/daemon.py",
    "slacktide/cluster/metrics.py",
    "slacktide/transport/watched.py",
    "agent/drill_metrics.py",
    "agent/metrics.py",
    "agent/given.py",
    "predictor/metrics.py",
    "scheduler_plugins/metrics.py",
    "scheduler_plugins/extender/metrics.py",
    "standalone/api/metrics.py",
    "standalone/runner/metrics.py",
}


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


METRICS = load_script("generate_metrics")


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
    known = METRICS.names()
    packages = {f"slacktide_{name}" for name in PACKAGES}
    for page in PAGES:
        named = {name for name in re.findall(r"\bslacktide_[a-z_]+", page.read_text()) if name not in packages}
        assert named - known == set(), page.name


def test_names_of_metrics_say_their_unit_and_end_as_prometheus_expects():
    for section in METRICS.SECTIONS:
        for family, labels in METRICS.families(section.registry()):
            name = METRICS.name_of(family)
            assert re.fullmatch(r"(slacktide|scheduler)(_[a-z0-9]+)+", name)
            assert name.endswith("_total") == (family.type == "counter"), name
            assert not re.search(r"_(ms|millisecond|milliseconds|minutes|kb|mb|mib|percent)(_|$)", name)
            assert family.documentation, name
            assert not {"pod", "uid", "container"} & set(labels), name


@pytest.mark.parametrize("script", ["generate_settings.py", "generate_metrics.py"])
def test_what_is_written_from_the_code_is_current(script):
    command = [sys.executable, str(ROOT / "docs" / script), "--check"]
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
